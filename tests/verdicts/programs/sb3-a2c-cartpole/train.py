# SPDX-License-Identifier: Apache-2.0
"""Stable-Baselines3's A2C on four CartPoles at a time, with RMSprop."""

from stable_baselines3 import A2C
from stable_baselines3.common.env_util import make_vec_env

A2C("MlpPolicy", make_vec_env("CartPole-v1", n_envs=4, seed=0), seed=0, device="cpu", verbose=1).learn(24_000)
