"""Similarity of images to the eye: PSNR, and with the package ``piq`` SSIM and HaarPSI; images for pictures."""

from __future__ import annotations

import base64
import io
from importlib.util import find_spec

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

FIGURES = ("PSNR", "SSIM", "HaarPSI")
_LEAST_HAAR = 16
"""Least side of an image that HaarPSI takes."""


def unit(images: Tensor) -> Tensor:
    """Scale images (B, …) to [0, 1], each by its own range."""
    flat = images.flatten(1)
    low, high = (each.view(-1, *[1] * (images.ndim - 1)) for each in (flat.amin(dim=1), flat.amax(dim=1)))
    return (images - low) / (high - low).clamp(min=1e-6)


def total_variation(images: Tensor) -> Tensor:
    """Return the mean total variation of each of images (B, C, H, W); zeros for inputs (B, …) that are no images."""
    if images.ndim != 4:
        return images.new_zeros(len(images))
    return images.diff(dim=2).abs().mean(dim=(1, 2, 3)) + images.diff(dim=3).abs().mean(dim=(1, 2, 3))


def picture(image: Tensor) -> NDArray[np.float64]:
    """Return an image (C, H, W) as (H, W) or (H, W, 3) in [0, 1]; a vector of features as one row."""
    scaled = unit(image[None])[0].double()
    if scaled.ndim != 3:
        return scaled.reshape(1, -1).numpy()
    return (scaled[0] if len(scaled) == 1 else scaled.permute(1, 2, 0)[..., :3]).numpy()


def similarities(made: Tensor, right: Tensor, other: Tensor) -> NDArray[np.float64]:
    """Return PSNR (dB), SSIM and HaarPSI, (2, 3): with the right image, and with another of its class.

    Figures that an image is too small for, or that need ``piq`` where it is not installed, are NaN.
    """
    images = [unit(each) for each in (made, right, other)]
    return np.array([_of_pair(images[0], each) for each in images[1:]])


def _of_pair(made: Tensor, image: Tensor) -> tuple[float, float, float]:
    error = float((made - image).square().mean())
    psnr = 10.0 * float(np.log10(1.0 / max(error, 1e-10)))
    if image.ndim != 4 or find_spec("piq") is None:
        return psnr, float("nan"), float("nan")
    import piq  # noqa: PLC0415 (an extra)

    side = min(image.shape[2:])
    kernel = min(11, side - (side + 1) % 2)
    with torch.no_grad():
        ssim = float(piq.ssim(made, image, kernel_size=kernel, data_range=1.0))
        haar = float(piq.haarpsi(made, image, data_range=1.0)) if side >= _LEAST_HAAR else float("nan")
    return psnr, ssim, haar


def to_png(image: NDArray[np.float64]) -> str:
    """Return an image (H, W) or (H, W, 3) in [0, 1] as a PNG in base64."""
    buffer = io.BytesIO()
    Image.fromarray(np.rint(np.clip(image, 0.0, 1.0) * 255).astype(np.uint8)).save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()
