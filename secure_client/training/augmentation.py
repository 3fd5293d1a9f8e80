"""Random crops and horizontal flips of training images, drawn apart from everything else that training draws.

An image is padded with black, a window of its own size is cut out at random, and the window is mirrored with
probability 1/2. Only training reads augmented images: prototypes and tests are of the images as they are.

The draws of an epoch come from a generator of the job's own. To apply them copies pixels, so that an image becomes the
same bits whatever other images, of whichever sites, are in its batch.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Augmentation:
    """Augmentation of images (C, H, W): a crop after ``padding`` pixels on each side, and a flip if ``flips``.

    ``black`` has the value of a black pixel in each of the C channels, after preprocessing.
    """

    padding: int
    flips: bool
    black: tuple[float, ...]

    def generator(self, seed: int) -> torch.Generator:
        """Return the generator, on the CPU, of the draws of a job with this seed."""
        # The order of batches and dropout are drawn from the seed itself, so that draws here would repeat theirs.
        digest = hashlib.sha256(f"augmentation\0{seed}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") % 2**63)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw for ``count`` images: row and column of the window in the padded image, and 1 for a flip.

        Return int64 (count, 3) on the CPU.
        """
        windows = torch.randint(2 * self.padding + 1, (count, 2), generator=generator)
        flips = torch.randint(1 + self.flips, (count, 1), generator=generator)
        return torch.cat([windows, flips], dim=1)

    def apply(self, images: Tensor, draws: Tensor) -> Tensor:
        """Return images (N, C, H, W) changed by :meth:`draw`'s (N, 3), on the same device."""
        count, channels, height, width = images.shape
        pad = self.padding
        padded = images.new_empty(count, channels, height + 2 * pad, width + 2 * pad)
        for channel, value in enumerate(self.black):
            padded[:, channel].fill_(value)  # a tensor of these values would be a copy that a GPU waits for
        padded[:, :, pad : pad + height, pad : pad + width] = images
        image, colour, row, column = (
            torch.arange(size, device=images.device).view(size, *(1,) * after)
            for size, after in ((count, 3), (channels, 2), (height, 1), (width, 0))
        )
        top, left, flips = draws.to(images.device).T.reshape(3, count, 1, 1, 1)
        return padded[image, colour, top + row, left + torch.where(flips == 1, width - 1 - column, column)]
