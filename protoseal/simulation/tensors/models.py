"""Models of all sites of a run, those of one architecture as rows of one tensor on the device.

Values of the averaged part are bounded as a site bounds them before it sends them, and rounded as a site rounds what it
receives (:meth:`secure_client.training.averaged_parameters.AveragedPart.load`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agreement import AveragingSection
from algorithms.gram_matrix import Float
from protoseal.simulation.batched.flat_models import CannotStack, FlatModels, Layout
from secure_client.privacy.bounds import saturate
from secure_client.training.learner import Learner

Numbers = list[Tensor]
"""All numbers of a site's models."""


class SiteModels(Protocol):
    """Models of all sites: to undo training, and to average and load the averaged part."""

    def begin(self, sites: Sequence[str]) -> None:
        """Keep a copy of these sites' models, to which :meth:`undo` returns."""
        ...

    def undo(self, site: str | None = None) -> None:
        """Restore a site's models, by default those of all sites, as of the last call of :meth:`begin`."""
        ...

    def copy(self, site: str) -> Numbers:
        """Return a copy of a site's models."""
        ...

    def paste(self, site: str, rows: Numbers) -> None:
        """Restore what :meth:`copy` returned."""
        ...

    @property
    def finite_sites(self) -> set[str]:
        """Sites of which every number of every model is finite."""
        ...

    def add_up(self, sites: Sequence[str], weights: Sequence[int]) -> NDArray[np.float64]:
        """Return the sum of the sites' averaged parts times their weights, (p + q,), in float64 and in this order."""
        ...

    def load(self, sites: Sequence[str], averaged: Float) -> None:
        """Give sites the same averaged part (p + q,), rounded to the models' type."""
        ...


def bind_models(learners: Sequence[Learner], averaging: AveragingSection) -> SiteModels:
    """Return the learners' models as rows of one tensor for each architecture, or as they are if that cannot be."""
    try:
        return ModelRows(learners, averaging)
    except CannotStack:
        return UnboundModels(learners, averaging)


def float64_device(device: torch.device) -> torch.device:
    """Return the device of arithmetic in float64: the CPU for Apple's ``mps``, which has none, else the same."""
    return torch.device("cpu") if device.type == "mps" else device


def _largest(rows: Tensor) -> Tensor:
    """Return the largest magnitude in each row (S,), NaN where the row has one."""
    return torch.maximum(rows.amax(dim=1), -rows.amin(dim=1))


class ModelRows:
    """Rows of the sites' models. See :class:`SiteModels`."""

    def __init__(self, learners: Sequence[Learner], averaging: AveragingSection) -> None:
        """Bind the learners' models to the rows of one tensor for each architecture.

        Raises :class:`CannotStack` for a model whose tensors have other types than one of floating point and int64.
        """
        self._learners = {learner.site: learner for learner in learners}
        self._averaging = averaging
        kinds: list[tuple[Layout, list[torch.nn.Module]]] = []
        for model in (model for learner in learners for model in learner.models):
            layout = Layout(model)
            same = next((models for known, models in kinds if known == layout), None)
            if same is None:
                kinds.append((layout, same := []))
            same.append(model)
        self.blocks = [FlatModels(models) for _, models in kinds]
        """Rows of all models, a block for each architecture."""
        places = {
            id(model): (block, row)
            for block, (_, models) in enumerate(kinds)
            for row, model in enumerate(models)
        }
        self._places = {learner.site: [places[id(model)] for model in learner.models] for learner in learners}
        # Kept from round to round: clearing the pages of new memory takes the system longer than the copy itself.
        self._saved = [[part.new_empty(0) for part in self._parts(block)] for block in range(len(kinds))]
        self._saved_at: dict[tuple[int, int], int] = {}

    def begin(self, sites: Sequence[str]) -> None:
        """See :class:`SiteModels`, here and below."""
        self._saved_at = {}
        for block, saved in enumerate(self._saved):
            rows = [row for site in sites for place, row in self._places[site] if place == block]
            self._saved_at |= {(block, row): position for position, row in enumerate(rows)}
            for part, copied in zip(self._parts(block), saved, strict=True):
                copied.resize_(len(rows), part.shape[1])
                torch.index_select(part, 0, self._saved_rows(block), out=copied)

    def undo(self, site: str | None = None) -> None:
        """Restore a site's models, by default those of all sites, as of the last call of :meth:`begin`."""
        if site is None:
            for block, saved in enumerate(self._saved):
                for part, copied in zip(self._parts(block), saved, strict=True):
                    part.index_copy_(0, self._saved_rows(block), copied)
            return
        places = self._places[site]
        self.paste(site, [part[self._saved_at[place]] for place in places for part in self._saved[place[0]]])

    def _saved_rows(self, block: int) -> Tensor:
        rows = [row for place, row in self._saved_at if place == block]
        return torch.tensor(rows, dtype=torch.int64, device=self.blocks[block].values.device)

    def copy(self, site: str) -> Numbers:
        """Return a copy of a site's models."""
        return [part[row].clone() for block, row in self._places[site] for part in self._parts(block)]

    def paste(self, site: str, rows: Numbers) -> None:
        """Restore what :meth:`copy` returned."""
        parts = [part[row] for block, row in self._places[site] for part in self._parts(block)]
        for part, numbers in zip(parts, rows, strict=True):
            part.copy_(numbers)

    def _parts(self, block: int) -> tuple[Tensor, Tensor]:
        return self.blocks[block].values, self.blocks[block].counts

    @property
    def finite_sites(self) -> set[str]:
        """Sites of which every number of every model is finite."""
        finite = [_largest(block.values).isfinite().tolist() for block in self.blocks]
        return {
            site for site, places in self._places.items() if all(finite[block][row] for block, row in places)
        }

    def add_up(self, sites: Sequence[str], weights: Sequence[int]) -> NDArray[np.float64]:
        """Return the sum of the sites' averaged parts times their weights, (p + q,), in float64 and in this order."""
        total = torch.zeros(sum(self._sizes), dtype=torch.float64, device=self._exact)
        for site, weight, is_within in zip(sites, weights, self._are_within_bounds(sites), strict=True):
            total += self._vector(site, is_within).mul_(weight)
        return total.cpu().numpy()

    def load(self, sites: Sequence[str], averaged: Float) -> None:
        """Give sites the same averaged part (p + q,), rounded to the models' type."""
        values = self._flat.values
        largest = torch.finfo(values.dtype).max
        rounded = torch.from_numpy(averaged).to(self._exact).clamp(-largest, largest)
        rounded = rounded.to(values.dtype).to(values.device)
        rounded = torch.where(self._variances, rounded.clamp(min=0.0), rounded)
        rows = self._rows(sites)
        widths = [columns.stop - columns.start for columns in self._columns]
        for columns, part in zip(self._columns, torch.split(rounded, widths), strict=True):
            values[rows, columns] = part

    def _vector(self, site: str, is_within: bool) -> Tensor:
        """Return a copy of a site's averaged part (p + q,), within the bounds, in float64."""
        learner = self._learners[site]
        if learner.has_initial_features:
            # Buffers of a frozen extractor could move in training; what is averaged is the initial model's.
            exact = torch.from_numpy(learner.averaged_vector())
        else:
            row = self._flat.values[self._places[site][0][1]]
            parts = [row[columns] for columns in self._columns]
            joined = parts[0] if len(parts) == 1 else torch.cat(parts)
            exact = joined.to(self._exact).to(torch.float64, copy=True)
            if is_within:
                return exact
        return torch.from_numpy(saturate(exact.cpu().numpy(), self._averaging, site)).to(self._exact)

    def _are_within_bounds(self, sites: Sequence[str]) -> list[bool]:
        """Return for each site True if no number of its averaged part is beyond its bound, waiting for a GPU once."""
        values = self._flat.values
        rows = [self._places[site][0][1] for site in sites]
        # One by one where others' rows would be read for nothing: copying rows takes longer than reading them.
        parts = [values] if rows == list(range(len(values))) else [values[row : row + 1] for row in rows]
        largest = [torch.cat([_largest(part[:, columns]) for part in parts]) for columns, _ in self._bounds]
        return [
            all(number <= bound for number, (_, bound) in zip(numbers, self._bounds, strict=True))
            for numbers in torch.stack(largest, dim=1).tolist()
        ]

    def _rows(self, sites: Sequence[str]) -> Tensor:
        """Return the rows of the models whose part is averaged, the first of each site."""
        return torch.tensor([self._places[site][0][1] for site in sites], device=self._flat.values.device)

    @property
    def _flat(self) -> FlatModels:
        """Block of the averaged models: a method that averages has sites of one architecture."""
        return self.blocks[0]

    @property
    def _exact(self) -> torch.device:
        return float64_device(self._flat.values.device)

    @cached_property
    def _names(self) -> frozenset[str]:
        return next(iter(self._learners.values())).averaged_names

    @cached_property
    def _columns(self) -> list[slice]:
        return self._flat.layout.columns(self._names)

    @cached_property
    def _sizes(self) -> tuple[int, int]:
        return next(iter(self._learners.values())).averaged_sizes

    @cached_property
    def _bounds(self) -> list[tuple[slice, float]]:
        """Columns of the averaged part, each with the bound of its numbers."""
        model, *_ = next(iter(self._learners.values())).models
        parameters = {name for name, _ in model.named_parameters()}
        agreed, columns = self._averaging, self._flat.layout.columns
        return [
            *((part, agreed.parameter_bound) for part in columns(self._names & parameters)),
            *((part, agreed.buffer_bound) for part in columns(self._names - parameters)),
        ]

    @cached_property
    def _variances(self) -> Tensor:
        """Numbers of the averaged part that are running variances, (p + q,)."""
        places = self._flat.layout.floats
        flags = [
            torch.full((place.stop - place.start,), name.endswith("running_var"))
            for name, place in places.items()
            if name in self._names
        ]
        return torch.cat(flags).to(self._flat.values.device)


class UnboundModels:
    """Models that share no tensor, such as those with a mask of truth values. See :class:`SiteModels`."""

    def __init__(self, learners: Sequence[Learner], averaging: AveragingSection) -> None:
        self._learners = {learner.site: learner for learner in learners}
        self._averaging = averaging
        self._saved: dict[str, Numbers] = {}

    def begin(self, sites: Sequence[str]) -> None:
        """See :class:`SiteModels`, here and below."""
        self._saved.clear()
        self._saved |= {site: self.copy(site) for site in sites}

    def undo(self, site: str | None = None) -> None:
        """Restore a site's models, by default those of all sites, as of the last call of :meth:`begin`."""
        for name in self._saved if site is None else [site]:
            self.paste(name, self._saved[name])

    def copy(self, site: str) -> Numbers:
        """Return a copy of a site's models."""
        return [tensor.clone() for tensor in self._tensors(site)]

    def paste(self, site: str, rows: Numbers) -> None:
        """Restore what :meth:`copy` returned."""
        for tensor, numbers in zip(self._tensors(site), rows, strict=True):
            tensor.copy_(numbers)

    @property
    def finite_sites(self) -> set[str]:
        """Sites of which every number of every model is finite."""
        return {site for site, learner in self._learners.items() if learner.is_finite}

    def add_up(self, sites: Sequence[str], weights: Sequence[int]) -> NDArray[np.float64]:
        """Return the sum of the sites' averaged parts times their weights, (p + q,), in float64 and in this order."""
        total = np.zeros(sum(self._learners[sites[0]].averaged_sizes))
        for site, weight in zip(sites, weights, strict=True):
            total += saturate(self._learners[site].averaged_vector(), self._averaging, site) * weight
        return total

    def load(self, sites: Sequence[str], averaged: Float) -> None:
        """Give sites the same averaged part (p + q,), rounded to the models' type."""
        for site in sites:
            self._learners[site].load_averaged(averaged)

    def _tensors(self, site: str) -> list[Tensor]:
        return [tensor for model in self._learners[site].models for tensor in model.state_dict().values()]
