# SPDX-License-Identifier: Apache-2.0
"""Stable-Baselines3's PPO on CartPole: rollouts, and ten passes over each in batches of 64."""

from stable_baselines3 import PPO

PPO("MlpPolicy", "CartPole-v1", seed=0, device="cpu", verbose=1).learn(total_timesteps=10_240)
