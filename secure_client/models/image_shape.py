"""Parameters that every built-in network is made from: features, channels, image side, batch or group norm."""

from __future__ import annotations

from dataclasses import dataclass

from agreement import Norm
from secure_client.errors import ModelError

SMALL_SIDE = 64
"""Up to this side, in pixels, torchvision's networks shrink an image by 8 before they pool it, beyond it by 32."""


@dataclass(frozen=True)
class Shape:
    """Shape of a network: ``dim`` (d) features of square images, and the normalisation, if any."""

    dim: int
    channels: int
    image_size: int
    norm: Norm = Norm.BATCH

    @property
    def is_small(self) -> bool:
        """True if a network for photographs must reduce resolution late, to keep pixels of a small image."""
        return self.image_size <= SMALL_SIDE

    def check_side(self, name: str, least: int, advice: str = "") -> None:
        """Raise :class:`ModelError` for images of fewer than ``least`` pixels a side."""
        side = self.image_size
        if side < least:
            raise ModelError(
                f"{name} needs images of at least {least}×{least} pixels, not {side}×{side}{advice}"
            )
