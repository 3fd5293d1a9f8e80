"""Scattering coefficients of images: features by fixed wavelets, without training.

Wavelets at two scales, moduli and averages, all fixed (Mallat 2012; Bruna and Mallat 2013). A linear layer after the
coefficients learnt best by DP-SGD without public data (Tramèr and Boneh 2021).
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

SCALES, ORIENTATIONS = 2, 8
"""Scales J and orientations L of the literature."""
FACTOR = 2**SCALES
"""Factor by which a side shrinks."""
PATHS = 1 + SCALES * ORIENTATIONS + ORIENTATIONS**2
"""Coefficients at a position: the average, one for each wavelet, one for each pair of a fine and a coarse wavelet."""
_WIDTH, _FREQUENCY, _SLANT = 0.8, 3 * math.pi / 4, 4 / ORIENTATIONS
"""Parameters of the finest wavelets: pixels, radians a pixel, and width along the wave over width across."""
_PERIODS = 2
"""Number of periods in each direction that are summed to a filter on a torus; the remainder is below 1e-9."""


class Scattering(nn.Module):
    """Map (B, C, s, s) → (B, C·81, ⌊s/4⌋, ⌊s/4⌋), of each image and channel by itself, without parameters.

    With wavelets ψ of 8 orientations at scales 1 and 2 and an average φ at scale 4, of x: x ∗ φ, |x ∗ ψ| ∗ φ and
    ||x ∗ ψ₁| ∗ ψ₂| ∗ φ with ψ₁ of scale 1 and ψ₂ of scale 2. Each is sampled as coarsely as its last filter allows.
    The image is continued by reflection, 4 pixels and more, so s ≥ 8. Where 4 divides s, it is Kymatio's
    ``Scattering2D(J=2)``; filters are float32.
    """

    fine: Tensor
    coarse: Tensor
    average: Tensor
    half_average: Tensor

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side
        size = math.ceil((side + 2 * FACTOR) / FACTOR) * FACTOR
        self._padding = (FACTOR, size - side - FACTOR) * 2
        places = FACTOR + FACTOR * torch.arange(side // FACTOR)
        # The average φ along one side; along both sides its spectrum is the product.
        low = _spectrum(_gaussian(size, _WIDTH * FACTOR / 2, 0.0, 1.0))[0]
        constants = {
            "fine": _wavelets(size, scale=1),
            "coarse": _wavelets(size, scale=2) / 4,  # the mean of the four frequencies that become one
            "average": _filter_matrix(low)[places],
            "half_average": _filter_matrix(_halve(low))[places // 2],
        }
        for name, constant in constants.items():
            # The filters are not part of the state: they are neither trained nor sent nor averaged.
            self.register_buffer(name, constant.float(), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scattering coefficients of images (B, C, S, S)."""
        padded = functional.pad(images, self._padding, mode="reflect").unsqueeze(2)
        # Each path is sampled as coarsely as its last filter allows: coarser ones hold no further information.
        spectrum = torch.fft.fft2(padded)
        fine = torch.fft.ifft2(spectrum * self.fine).abs()
        coarse = torch.fft.ifft2(_filter_and_halve(spectrum, self.coarse)).abs()
        pairs = torch.fft.ifft2(_filter_and_halve(torch.fft.fft2(fine).unsqueeze(3), self.coarse)).abs()
        every, half = torch.cat([padded, fine], dim=2), torch.cat([coarse, pairs.flatten(2, 3)], dim=2)
        averaged = [
            self.average @ every @ self.average.mT,
            self.half_average @ half @ self.half_average.mT,
        ]
        return torch.cat(averaged, dim=2).flatten(1, 2)


def _filter_and_halve(spectrum: Tensor, filters: Tensor) -> Tensor:
    """Filter spectra (…, n, n) by (L, n, n) and drop every second pixel: (…, L, n/2, n/2), times 4."""
    half = spectrum.shape[-1] // 2
    parts = (slice(None, half), slice(half, None))
    first, *others = (spectrum[..., i, j] * filters[..., i, j] for i in parts for j in parts)
    for part in others:
        first += part
    return first


def _wavelets(size: int, scale: int) -> Tensor:
    """Return spectra of Morlet wavelets, float64 (8, size, size): waves under a Gaussian, corrected to sum to zero."""
    spectra = []
    for turn in range(ORIENTATIONS):
        angle = (ORIENTATIONS // 2 - 1 - turn) * math.pi / ORIENTATIONS
        envelope = _gaussian(size, _WIDTH * scale, angle, _SLANT)
        wave = _gaussian(size, _WIDTH * scale, angle, _SLANT, _FREQUENCY / scale)
        spectra.append(_spectrum(wave - wave.sum() / envelope.sum() * envelope))
    return torch.stack(spectra)


def _gaussian(size: int, width: float, angle: float, slant: float, frequency: float = 0.0) -> Tensor:
    """Return a Gaussian of deviations ``width``, ``width/slant`` that carries a wave, on a torus, complex128 (n, n)."""
    reach = torch.arange(-_PERIODS * size, (_PERIODS + 1) * size, dtype=torch.float64)
    down, right = torch.meshgrid(reach, reach, indexing="ij")
    along = down * math.cos(angle) + right * math.sin(angle)
    across = right * math.cos(angle) - down * math.sin(angle)
    values = torch.polar(
        torch.exp(-(along.square() + (slant * across).square()) / (2 * width**2)), frequency * along
    )
    periods = 2 * _PERIODS + 1
    folded = values.reshape(periods, size, periods, size).sum(dim=(0, 2))
    return folded * slant / (2 * math.pi * width**2)


def _spectrum(filter_: Tensor) -> Tensor:
    """Return the spectrum, which is real because each filter's other half is its conjugate."""
    return cast("Tensor", torch.fft.fft2(filter_).real)


def _halve(spectrum: Tensor) -> Tensor:
    """Return the filter for every second pixel, (n/2,), without the upper half of the frequencies."""
    quarter, size = len(spectrum) // 4, len(spectrum)
    low = torch.cat([spectrum[:quarter], torch.zeros(size // 2), spectrum[quarter + size // 2 :]])
    return low.reshape(2, -1).sum(dim=0)


def _filter_matrix(spectrum: Tensor) -> Tensor:
    """Return the filter on a torus as a matrix, (n,) → (n, n)."""
    basis = torch.fft.fft(torch.eye(len(spectrum), dtype=torch.float64))
    return cast("Tensor", torch.fft.ifft(basis * spectrum).real.mT)
