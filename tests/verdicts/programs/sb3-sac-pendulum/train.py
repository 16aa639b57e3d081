# SPDX-License-Identifier: Apache-2.0
"""Stable-Baselines3's SAC on Pendulum: an actor, two critics and the entropy have an optimizer each."""

from stable_baselines3 import SAC

SAC("MlpPolicy", "Pendulum-v1", seed=0, device="cpu", learning_starts=200, verbose=1).learn(
    total_timesteps=1_000
)
