# SPDX-License-Identifier: Apache-2.0
"""denoising-diffusion-pytorch's Trainer: accumulated gradients, a moving average, images from a folder."""

import tempfile

import numpy as np
import torch
from denoising_diffusion_pytorch import GaussianDiffusion, Trainer, Unet
from PIL import Image

torch.manual_seed(0)
rng = np.random.default_rng(0)
with tempfile.TemporaryDirectory() as folder:
    for index in range(128):
        Image.fromarray(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(f"{folder}/{index:03}.png")
    diffusion = GaussianDiffusion(
        Unet(dim=16, dim_mults=(1, 2), flash_attn=False), image_size=16, timesteps=50
    )
    Trainer(
        diffusion,
        folder,
        train_batch_size=8,
        gradient_accumulate_every=4,
        train_num_steps=40,
        num_samples=4,
        save_and_sample_every=40,
        calculate_fid=False,
        results_folder=f"{folder}/results",
    ).train()
