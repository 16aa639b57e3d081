# SPDX-License-Identifier: Apache-2.0
"""Stable-Baselines3's DQN on CartPole: one batch out of the replay buffer each four frames."""

from stable_baselines3 import DQN

model = DQN("MlpPolicy", "CartPole-v1", seed=0, device="cpu", learning_starts=200, verbose=1)
model.learn(total_timesteps=12_000)
