"""The digits task of the peers: IDX files, a LeNet-size network, evaluation."""
import gzip
import pathlib

import numpy as np
import torch
from torch import nn

DATA = pathlib.Path(__file__).resolve().parents[2] / "flodl-worker" / "examples" / "softmax" / "data"


def read_idx(path):
    with gzip.open(path, "rb") as file:
        raw = file.read()
    dimensions = raw[3]
    shape = [int.from_bytes(raw[4 + 4 * i:8 + 4 * i], "big") for i in range(dimensions)]
    return np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def load(split, folder=DATA):
    images = read_idx(pathlib.Path(folder) / f"{split}-images-idx3-ubyte.gz")
    labels = read_idx(pathlib.Path(folder) / f"{split}-labels-idx1-ubyte.gz")
    pixels = torch.from_numpy(images.astype(np.float32) / 255.0).unsqueeze(1)
    return (pixels - 0.1307) / 0.3081, torch.from_numpy(labels.astype(np.int64))


def network():
    return nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10))


@torch.no_grad()
def accuracy(model, images, labels):
    model.eval()
    right = sum((model(images[i:i + 500]).argmax(1) == labels[i:i + 500]).sum().item() for i in range(0, len(labels), 500))
    model.train()
    return right / len(labels)
