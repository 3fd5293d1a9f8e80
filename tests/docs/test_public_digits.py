"""The script that makes an extractor from public digits: what it writes is what an agreement may begin from."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from agreement import Norm
from secure_client.models.pretrained import load_pretrained
from secure_client.models.prototype_model import build_model

SCRIPT = Path(__file__).parents[2] / "experiments" / "privacy" / "public_digits.py"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two kinds of digits, dark on bright and bright on dark."""
    rng = np.random.default_rng(0)
    labels = np.arange(80) % 10
    images = np.zeros((80, 28, 28, 1), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[6:22, 4 + 2 * label : 6 + 2 * label] = 255
    images[rng.permutation(80)[:40]] ^= 255
    np.savez(
        tmp_path / "public.npz",
        x_train=images[:64],
        y_train=labels[:64],
        x_test=images[64:],
        y_test=labels[64:],
    )
    return tmp_path


@pytest.mark.full
def test_script_writes_weights_that_an_agreement_can_start_from(data: Path) -> None:
    out = data / "public.safetensors"
    options = ["--data-root", data, "--out", out, "--data", "npz:DATA_ROOT/public.npz"]
    command = [sys.executable, SCRIPT, *options, "--model", "tanh-cnn", "--dim", "8", "--epochs", "1"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    model = build_model("tanh-cnn", classes=10, dim=8, channels=1, image_size=28, seed=1, norm=Norm.GROUP)
    loaded = load_pretrained(model, out, done.stdout.split()[-1])
    assert loaded.taken == 6
    assert all(name.startswith("classifier.") for name in loaded.absent)


def test_ink_is_bright_whatever_it_was() -> None:
    bright_ink = runpy.run_path(str(SCRIPT))["bright_ink"]
    bright = torch.full((2, 1, 6, 6), -1.0)
    bright[:, :, 2:4, 2:4] = 1.0
    mixed = torch.stack([bright[0], -bright[1]])
    assert torch.equal(bright_ink(mixed), bright)
