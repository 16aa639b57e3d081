"""The same digits and the same network: images prepared once, and a learning rate that learns."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

EPOCHS = 14
IMAGE_SIZE = 32


def load_images():
    """All images, enlarged and scaled, as one tensor: less work than to do it image by image."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    images = F.interpolate(images, size=(IMAGE_SIZE, IMAGE_SIZE), mode="bilinear", align_corners=True)
    return images, torch.tensor(digits.target)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(16 * 8 * 8, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, images):
        return self.classifier(self.features(images))


def main():
    torch.manual_seed(0)
    images, labels = load_images()
    dataset = TensorDataset(images, labels)
    # A batch of indices at a time: one indexing operation instead of 64 and a collation.
    batches = BatchSampler(RandomSampler(dataset), batch_size=64, drop_last=False)
    loader = DataLoader(dataset, sampler=batches, batch_size=None)
    model = Network()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    for epoch in range(EPOCHS):
        total = 0.0
        for batch, target in loader:
            optimizer.zero_grad()
            loss = criterion(model(batch), target)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch + 1}/{EPOCHS}  loss {total / len(loader):.4f}", flush=True)


if __name__ == "__main__":
    main()
