"""Ranges of a site's inputs beside the agreed scale, which find images that are read as darkness or as plain areas.

A site with such inputs would train and answer as others do, and spoil every result without an error. The ranges stay at
the site. Limits: a count of dark images among others is no error, and a class whose images are all dark is only such a
count; an image with one bright pixel, as of a burned-in marker, is no dark one. A refused start follows from the data
alone, outside epsilon: the same data are refused at every start.
"""

from __future__ import annotations

import torch
from torch import Tensor

from agreement import InputSection, PreprocessingSection, TableSection
from secure_client.errors import DataError

DARK = 0.1
"""Share of the agreed scale that no value of a dark image reaches."""
EXTREME = 1e6
"""Size beyond which a feature's value is said to be extreme."""
_CONSTANT, _DARK = "have one value in all pixels", "stay below a tenth of the scale"
SWITCH = "accept_dark_or_constant_inputs"
"""Setting that lets a site use inputs that :meth:`InputRanges.check` refuses."""


class InputRanges:
    """Least, largest and mean value of each channel of images, or of all features, and counts of conspicuous inputs."""

    def __init__(self, agreed: InputSection | None, where: str) -> None:
        """``where`` names the inputs in errors. Values are shown on the scale of 0 to 1 that ``agreed`` begins from."""
        self._agreed = agreed if isinstance(agreed, PreprocessingSection) else None
        self.where = where
        self._names = [repr(name) for name in agreed.features] if isinstance(agreed, TableSection) else []
        self._number = 0
        self._low = self._high = self._total = torch.empty(0)
        self._rows: dict[str, tuple[int, int]] = {}
        self._farthest = (0.0, 0, 0)
        self._images = True

    def add(self, inputs: Tensor) -> None:
        """Add a batch of a model's inputs, images (B, C, H, W) or features (B, F), in the order of the data."""
        self._images = inputs.ndim > 2
        flat = inputs.flatten(2) if self._images else inputs.unsqueeze(-1)
        low, high, mean = (
            values.float().cpu() for values in (flat.amin(2), flat.amax(2), flat.float().mean(2))
        )
        if self._images and self._agreed is not None:  # undo the agreed normalisation
            std, offset = torch.tensor(self._agreed.std), torch.tensor(self._agreed.mean)
            low, high, mean = low * std + offset, high * std + offset, mean * std + offset
        if self._images:
            # A scan of 12 bits stored in 16, or divided by 255 twice, is dark; an empty mask in its place is constant.
            self._count(_CONSTANT, (low == high).all(1))
            if self._agreed is not None:
                self._count(_DARK, (high < DARK).all(1))
        else:
            self._count("are zeros", (low == 0).all(1))
            self._note_farthest(low)
        lowest, highest, total = low.amin(0), high.amax(0), mean.double().sum(0)
        if self._number:
            lowest, highest = torch.minimum(self._low, lowest), torch.maximum(self._high, highest)
            total = total + self._total
        self._low = lowest
        self._high = highest
        self._total = total
        self._number += len(inputs)

    def check(self, accept: str = f"set {SWITCH} = true") -> None:
        """Raise :class:`DataError` if all images are constant or dark, or if all of several records are equal.

        ``accept`` says how the user accepts such inputs.
        """
        advice = f"correct how they are stored or read, or {accept}"
        if not self._images:
            if self._number > 1 and bool((self._low == self._high).all()):
                raise DataError(f"{self.where}: all {self._number} records have the same features; {advice}")
            return
        if self._are_all(_CONSTANT):
            raise DataError(
                f"{self.where}: every image has one value in all of its pixels ({self._describe_values()}); {advice}"
            )
        if self._are_all(_DARK):
            raise DataError(
                f"{self.where}: no image reaches a tenth of the agreed scale of 0 to 1 ({self._describe_values()});"
                f" {advice}"
            )

    @property
    def channels(self) -> list[dict[str, float]]:
        """Least, largest and mean value of each channel; of all features together."""
        low, high, mean = self._low, self._high, self._total / self._number
        if not self._images:
            low, high, mean = (
                low.amin(0, keepdim=True),
                high.amax(0, keepdim=True),
                mean.mean(0, keepdim=True),
            )
        rows = [low, high, mean]
        if self._images and self._agreed is not None:
            # Undoing the agreed scaling rounds: a stored 0 would be shown as 1e-08.
            rows = [row.double().round(decimals=6) for row in rows]
        values = zip(*(row.tolist() for row in rows), strict=True)
        return [dict(zip(("least", "largest", "mean"), channel, strict=True)) for channel in values]

    @property
    def warnings(self) -> list[str]:
        """Counts of conspicuous inputs, in words."""
        kind, part = ("images", "channel") if self._images else ("records", "feature")
        warnings = [
            f"{count} of {self._number} {kind} {what}, the first is sample {first}"
            for what, (count, first) in self._rows.items()
        ]
        same = torch.nonzero(self._low == self._high).flatten().tolist()
        if same and self._number > 1:
            warnings.append(
                f"{len(same)} of {len(self._low)} {part}s have one value in all {kind}, the first is {part}"
                f" {self._name_part(same[0])}"
            )
        value, sample, feature = self._farthest
        if abs(value) > EXTREME:
            warnings.append(
                f"sample {sample} has the extreme value {value:.4g} in feature {self._name_part(feature)}"
            )
        return warnings

    def __str__(self) -> str:
        return self._describe_values() + "".join(f"; WARNING: {warning}" for warning in self.warnings)

    def _describe_values(self) -> str:
        names = [f"channel {number}" for number in range(len(self._low))] if self._images else ["features"]
        parts = [
            f"{name}: {channel['least']:.4g} to {channel['largest']:.4g}, mean {channel['mean']:.4g}"
            for name, channel in zip(names, self.channels, strict=True)
        ]
        if self._images and self._agreed is not None:
            means = ", ".join(f"{value:g}" for value in self._agreed.mean)
            parts.append(f"agreed scale: 0 to 1, mean {means}")
        return "; ".join(parts)

    def _name_part(self, part: int) -> str:
        """Return the name of a table's feature, or else the number of the feature or channel, from 0."""
        return self._names[part] if self._names else str(part)

    def _are_all(self, what: str) -> bool:
        return self._rows.get(what, (0, 0))[0] == self._number > 0

    def _count(self, what: str, rows: Tensor) -> None:
        """Count the rows (B,) that are true, and note the first."""
        count = int(rows.sum())
        if count:
            before, first = self._rows.get(what, (0, self._number + int(rows.int().argmax())))
            self._rows[what] = (before + count, first)

    def _note_farthest(self, values: Tensor) -> None:
        """Note the value (B, F) that is farthest from 0, with its sample and feature."""
        place = int(values.abs().argmax())
        row, column = divmod(place, values.shape[1])
        value = float(values[row, column])
        if abs(value) > abs(self._farthest[0]):
            self._farthest = (value, self._number + row, column)
