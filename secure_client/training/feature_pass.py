"""Pass of a model over all records of a site, which no faulty record can abort.

A batch on which the model fails is computed again without the records that make it fail, so that one record's error
changes no other record's features. A record that fails, or whose features are not finite, counts as zeros under its
own label. With noise so does a record that cannot be read; without it, :class:`secure_client.errors.DataLost` ends the
pass. With noise this keeps the query's sensitivity: a record changes its own row alone. The order and the number of
rows never depend on what the model computes.

Limits. The time of a pass shows the number of records that cannot be read, or on which a plug-in's model raises: a
batch with k of them is computed k + 2 times, and its records some 1 + k/3 times more, without padding
(:func:`secure_client.training.batches.isolate_failures`). A model that fails on all records gives zeros for all, which
only the site's log reports.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from secure_client.error_containment import one_line
from secure_client.errors import DataError
from secure_client.models.prototype_model import PrototypeModel, compute_outputs
from secure_client.models.wrapped_models import FixedBatchModel
from secure_client.training.batches import BatchSource, isolate_failures, split_batches
from secure_client.training.evaluation import EVALUATION_BATCH

EmbeddedBatch = tuple[Tensor, Tensor]
"""Features (B, d) and labels int64 (B,) of a batch, on the device of the source."""
_log = logging.getLogger("protoseal.site")


class FeaturePass:
    """Features of a source's records by one model, in ``eval()`` mode."""

    def __init__(
        self,
        model: PrototypeModel,
        source: BatchSource,
        labels: Tensor,
        *,
        dim: int,
        device: torch.device,
        where: str,
    ) -> None:
        """``labels`` int64 (N,) are those of all records; ``where`` names the site in the log."""
        self._model = model
        self._source = source
        self._labels = labels
        self._dim = dim
        self._device = device
        self._where = where
        self._failed: dict[int, str] = {}
        self._infinite: dict[int, str] = {}
        self.unreadable: list[str] = []
        """Errors of the records that could not be read."""

    def embed(self, order: Iterable[int]) -> Iterator[EmbeddedBatch]:
        """Yield the features of the records in this order."""
        self._model.eval()
        for batch in split_batches(list(order), EVALUATION_BATCH):
            yield self._embed_batch(batch)
        for warning in self.warnings:
            _log.warning("%s: %s", self._where, warning)

    def has_finite(self) -> bool:
        """Return True if the model makes finite features of a record, or that record cannot be read; stop there."""
        training = self._model.training
        self._model.eval()
        try:
            # The first record alone: nearly every model is settled by it, without a pass over all data.
            for group in [[0], *split_batches(range(1, len(self._labels)), EVALUATION_BATCH)]:
                self._embed_batch(group)
                if len(self._failed | self._infinite) <= group[-1]:
                    return True
            return False
        finally:
            self._model.train(training)

    def _embed_batch(self, group: Sequence[int]) -> EmbeddedBatch:
        parts, order = isolate_failures(group, self._compute, probe=self._probe, fallback=self._zeros)
        if len(parts) == 1:
            return parts[0]
        features, labels = (torch.cat(rows) for rows in zip(*parts, strict=True))
        order = order.to(labels.device)
        return features[order], labels[order]

    def _zeros(self, record: int, error: BaseException) -> EmbeddedBatch:
        """Return zeros under the label of a record that cannot be read, or on which the model fails."""
        if isinstance(error, DataError):
            self.unreadable.append(str(error))
        else:
            _log.debug("%s: the model failed on a record: %s", self._where, error, exc_info=error)
            self._failed[record] = f" ({type(error).__name__}: {one_line(error)})"
        # The label read at the start: the counts of classes depend on nothing that the model does.
        label = self._labels[record : record + 1].to(self._device)
        return torch.zeros(1, self._dim, device=self._device), label

    def _probe(self, group: Sequence[int]) -> None:
        # Without padding: only whether the model raises counts here.
        ((inputs, _),) = self._source.batches([group])
        with torch.no_grad():
            compute_outputs(
                self._model.inner if isinstance(self._model, FixedBatchModel) else self._model, inputs
            )

    def _compute(self, group: Sequence[int]) -> EmbeddedBatch:
        ((inputs, labels),) = self._source.batches([group])
        with torch.no_grad():
            features = compute_outputs(self._model, inputs).features
        finite = features.isfinite().all(dim=1)
        if not bool(finite.all()):
            rows = zip(group, finite.tolist(), strict=True)
            self._infinite |= {record: "" for record, is_finite in rows if not is_finite}
        # A NaN in one row would spread to the class's mean, and hide or show all other records of the class.
        return torch.where(finite.unsqueeze(1), features, 0.0), labels

    @property
    def warnings(self) -> list[str]:
        """Numbers of the records that count as zeros, in words, with the first of each kind; secrets of this site."""
        kinds = {"make the model fail": self._failed, "have features that are not finite": self._infinite}
        warnings = [
            f"{len(records)} training records {what} and count as zeros, the first: sample {min(records)}"
            f"{records[min(records)]}"
            for what, records in kinds.items()
            if records
        ]
        if self.unreadable:
            number, first = len(self.unreadable), self.unreadable[0]
            warnings.append(
                f"{number} training records could not be read and count as zeros, one of them: {first}"
            )
        return warnings
