"""Handwritten digits, as a first attempt often looks: it works, but it is slow and does not learn."""

import random

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

EPOCHS = 8
IMAGE_SIZE = 32


def resize(image, size):
    """Bilinear resize of a square image given as a list of rows."""
    scale = (len(image) - 1) / (size - 1)
    resized = []
    for row in range(size):
        y = row * scale
        top = min(int(y), len(image) - 2)
        fy = y - top
        line = []
        for column in range(size):
            x = column * scale
            left = min(int(x), len(image) - 2)
            fx = x - left
            above = image[top][left] * (1 - fx) + image[top][left + 1] * fx
            below = image[top + 1][left] * (1 - fx) + image[top + 1][left + 1] * fx
            line.append(above * (1 - fy) + below * fy)
        resized.append(line)
    return resized


def shift(image, dx, dy):
    """The image moved by some pixels, with black coming in."""
    size = len(image)
    moved = [[0.0] * size for _ in range(size)]
    for y in range(size):
        for x in range(size):
            if 0 <= y - dy < size and 0 <= x - dx < size:
                moved[y][x] = image[y - dy][x - dx]
    return moved


class Digits(Dataset):
    """The digits of scikit-learn, enlarged and shifted at random each time one is asked for."""

    def __init__(self):
        digits = load_digits()
        self.images = digits.images.tolist()
        self.labels = digits.target.tolist()

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = resize(self.images[index], IMAGE_SIZE)
        image = shift(image, random.randint(-2, 2), random.randint(-2, 2))
        return torch.tensor(image).unsqueeze(0) / 16.0, self.labels[index]


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
    random.seed(0)
    loader = DataLoader(Digits(), batch_size=32, shuffle=True)
    model = Network()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    for epoch in range(EPOCHS):
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch + 1}/{EPOCHS}  loss {total / len(loader):.4f}", flush=True)


if __name__ == "__main__":
    main()
