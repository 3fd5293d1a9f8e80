"""Extractor of digits trained on public data: USPS's scans and Chars74K's typefaces, without MNIST.

``python experiments/privacy/public_digits.py --data-root DIR --out FILE.safetensors`` trains a built-in network on both
data sets, with fresh random rotations, shifts, scalings, shears and warps in each epoch. It prints the SHA-256 of the
file, for an agreement's ``pretrained_sha256``. Weights are reproducible from ``--seed`` with the same versions on the
same machine.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import click
import safetensors.torch
import torch
from rich.progress import track
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision.transforms import v2

from agreement import PreprocessingSection
from secure_client.data.preprocess import to_tensor
from secure_client.data.sources import read_sources
from secure_client.models.prototype_model import PrototypeModel, build_model

SIDE, CLASSES = 28, 10
DARK = -1.0
PREPROCESSING = PreprocessingSection(image_size=SIDE, channels=1, mean=(0.5,), std=(0.5,))
WARPS = v2.Compose(
    [
        v2.RandomAffine(degrees=15, translate=(0.08, 0.08), scale=(0.6, 1.0), shear=15, fill=DARK),
        v2.ElasticTransform(alpha=30.0, sigma=4.0, fill=DARK),
    ]
)


def read_public(data: str, root: Path) -> TensorDataset:
    """Return training and test parts: images (N, 1, 28, 28) in [−1, 1], bright on dark as in MNIST, and labels (N,)."""
    parts = [
        part for source in read_sources(data, data_root=root, agreed=PREPROCESSING) for part in source.parts
    ]
    images = torch.cat([to_tensor(part.inputs, PREPROCESSING, where=data) for part in parts])
    return TensorDataset(bright_ink(images), torch.cat([torch.from_numpy(part.labels) for part in parts]))


def bright_ink(images: Tensor) -> Tensor:
    """Return images (N, 1, H, W), inverting images whose edge is bright on average."""
    edges = (images[..., 0, :], images[..., -1, :], images[..., 0], images[..., -1])
    ground = torch.cat(edges, dim=-1).mean(dim=(1, 2))
    return torch.where(ground[:, None, None, None] > 0, -images, images)


def train(model: PrototypeModel, public: TensorDataset, epochs: int, lr: float) -> None:
    """Train by cross-entropy and Adam, with one cycle of the learning rate."""
    batches = DataLoader(public, batch_size=64, shuffle=True, drop_last=True)
    optimiser = torch.optim.Adam(model.parameters(), lr=lr)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimiser, lr, total_steps=epochs * len(batches))
    for _ in track(range(epochs), "training on public data"):
        for images, labels in batches:
            loss = nn.functional.cross_entropy(model(torch.stack([WARPS(image) for image in images])), labels)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            cycle.step()


@click.command()
@click.option("--data-root", type=click.Path(path_type=Path, file_okay=False), required=True)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True)
@click.option("--data", default="usps+npz:DATA_ROOT/chars74k_fnt_digits.npz", show_default=True)
@click.option("--model", "name", default="small-cnn", show_default=True)
@click.option("--dim", default=64, show_default=True)
@click.option("--epochs", default=20, show_default=True)
@click.option("--lr", default=2e-3, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(
    data_root: Path, out: Path, data: str, name: str, dim: int, epochs: int, lr: float, seed: int
) -> None:
    """Train an extractor on public digits, write it to --out, and print the SHA-256 of that file."""
    torch.manual_seed(seed)
    model = build_model(name, classes=CLASSES, dim=dim, channels=1, image_size=SIDE, seed=seed)
    train(model, read_public(data, data_root), epochs, lr)
    safetensors.torch.save_file(model.state_dict(), out)
    click.echo(hashlib.sha256(out.read_bytes()).hexdigest())


if __name__ == "__main__":
    main()
