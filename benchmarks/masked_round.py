"""A masked round of many sites through their own sessions and the coordinator, for ``python -m benchmarks.pairwise``.

Journals, the store, certificates, the roster and every check are those of a deployment, in one process and without
sockets. There is a model with next to nothing to train: one layer on features that are the pixels again and again.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import process_time

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from agreement import Agreement, MaskingSection, Method, Protection
from agreement.derived.payload_shapes import limits_of, result_shape
from protoseal.simulation.local_federation import DirectTransport, LocalFederation, LocalSite
from protoseal.simulation.site_pool import SiteTesting
from protoseal_wire import codec
from protoseal_wire.messages import Phase, PhaseKey, Task, Work
from secure_client.data import SiteData
from secure_client.data.preprocess import to_dataset
from secure_client.data.samples import Samples

Float = NDArray[np.float64]
SIDE = 8
_NEVER = 10**6
_NORM_BOUND = 10.0
_SMALL = 0.01
"""First factor for pixels up to 1, so that no prototype of a million numbers exceeds its bound."""

_ACKNOWLEDGED = 64
"""Bytes: an acknowledgement has fewer, a result has more."""


class Repeated(nn.Module):
    """Pixels again and again, times one trained number: (B, 1, 8, 8) to (B, dim), which costs next to nothing."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self._dim = dim
        self._factor = nn.Parameter(torch.tensor(_SMALL))

    def forward(self, images: Tensor) -> Tensor:
        """Their first ``dim`` numbers."""
        pixels = self._factor * images.flatten(1)
        return pixels.repeat(1, -(-self._dim // pixels.shape[1]))[:, : self._dim]


def build(num_classes: int, dim: int) -> tuple[nn.Module, nn.Module]:
    """(backbone, classifier), as a model of one's own."""
    return Repeated(dim), nn.Linear(dim, num_classes)


class _Timed(DirectTransport):
    """A site's calls, with the coordinator's seconds in them and the bytes of both directions."""

    def __init__(self, calls: DirectTransport, round_: MaskedRound) -> None:
        super().__init__(calls._coordinator, calls._run, calls._site)
        self._round = round_

    def next_task(self) -> Task:
        """See :class:`secure_client.client_loop.Transport`, here and below."""
        with self._round.in_coordinator():
            return super().next_task()

    def download(self, work: Work) -> bytes:
        with self._round.in_coordinator():
            content = super().download(work)
        self._round.count(self._round.received_by, self._site, work.key, content)
        return content

    def upload(self, key: PhaseKey, content: bytes) -> None:
        with self._round.in_coordinator():
            super().upload(key, content)
        self._round.count(self._round.sent_by, self._site, key, content)


class MaskedRound:
    """Times and bytes of one round, by phase: the coordinator's seconds and those of each site that stayed.

    Bytes are without the result's, which a plain sum has as well, and the set-up's. ``ring_bits`` and
    ``fraction_bits`` are those of a masked word.
    """

    def __init__(self, agreement: Agreement) -> None:
        fixed_point = agreement.fixed_point()
        self.ring_bits, self.fraction_bits = fixed_point.ring_bits, fixed_point.fraction_bits[0]
        self.coordinator: defaultdict[Phase, float] = defaultdict(float)
        self.sites: defaultdict[Phase, list[float]] = defaultdict(list)
        self.sent_by: defaultdict[str, int] = defaultdict(int)
        self.received_by: defaultdict[str, int] = defaultdict(int)
        self.results: set[bytes] = set()
        self._spent = 0.0

    def count(self, direction: defaultdict[str, int], site: str, key: PhaseKey, content: bytes) -> None:
        """Add the bytes of ``content`` to those of one ``direction``, or keep the content if it is the result."""
        if key.round == 1 and key.phase is not Phase.RESULT:
            direction[site] += len(content)
        elif key.round == 1 and len(content) > _ACKNOWLEDGED:
            self.results.add(content)

    @contextmanager
    def in_coordinator(self) -> Iterator[None]:
        """Time a call that the coordinator answers."""
        begin = process_time()
        yield
        self._spent += process_time() - begin

    def taken(self) -> float:
        """Return the coordinator's seconds since the last call of this method."""
        spent, self._spent = self._spent, 0.0
        return spent

    def drop(self, site: str) -> None:
        """Forget the bytes of a site that left."""
        del self.sent_by[site], self.received_by[site]

    @property
    def sent(self) -> float:
        """Bytes that the median site that stayed sent."""
        return statistics.median(self.sent_by.values())

    @property
    def received(self) -> float:
        """Bytes that the median site that stayed received."""
        return statistics.median(self.received_by.values())

    def site_step(self, phase: Phase) -> float:
        """Return the median site's seconds in one phase."""
        return statistics.median(self.sites[phase])

    @property
    def site_seconds(self) -> float:
        """Return the median site's seconds in all phases except PRESENCE, where it trains."""
        return sum(self.site_step(phase) for phase in self.sites if phase is not Phase.PRESENCE)

    @property
    def coordinator_seconds(self) -> float:
        """All phases."""
        return sum(self.coordinator.values())


def play(sites: int, classes: int, dim: int, dropped: int, masking: MaskingSection) -> MaskedRound:
    """Play the first round of FedProto. ``dropped`` sites make shares and leave; the others get its result.

    Raises ``RuntimeError`` unless the round succeeded at its first attempt.
    """
    agreement = _agreement(sites, classes, dim, masking)
    data = _data(agreement, sites)
    leaving = {name for i, name in enumerate(data) if _drops(i, sites, dropped)}
    with LocalFederation(agreement, data, testing=SiteTesting(every=_NEVER)) as federation:
        return _round(federation, leaving)


def _round(federation: LocalFederation, leaving: set[str]) -> MaskedRound:
    round_, sent = MaskedRound(federation.agreement), dict[str, Float]()
    for site in federation.sites:
        site.transport = _Timed(site.transport, round_)
        site.join()
    there = list(federation.sites)
    while federation.coordinator.state.round < 2:
        for site in tuple(there):
            phase = _turn(site, round_, stays=site.name not in leaving)
            if phase is Phase.VALUES:
                sent[site.name] = site.learner.train_round(1)[0]
            if phase is Phase.SHARES and site.name in leaving:
                site.transport.leave()
                there.remove(site)
    (only,) = federation.rounds
    if (only.attempt, only.abandoned) != (1, False):
        raise RuntimeError("the round did not come out at its first attempt")
    for name in leaving:
        round_.drop(name)
    _check_mean(federation.agreement, round_, list(sent.values()))
    return round_


def _turn(site: LocalSite, round_: MaskedRound, *, stays: bool) -> Phase | None:
    """Return the step of round 1 that the site did, if there was one for it."""
    begin = process_time()
    task = site.step()
    whole, coordinator = process_time() - begin, round_.taken()
    if not isinstance(task, Work) or task.key.round != 1:
        return None
    round_.coordinator[task.key.phase] += coordinator
    if stays:
        round_.sites[task.key.phase].append(whole - coordinator)
    return task.key.phase


def _check_mean(agreement: Agreement, round_: MaskedRound, rows: Sequence[Float]) -> None:
    """Check that the result is the mean over the sites whose values came: another result is nothing to time."""
    (content,) = round_.results
    mean = codec.decode_payload(content, limits_of(agreement), result_shape(agreement)).arrays[0]
    half_a_unit = agreement.fixed_point().resolution / 2
    if (np.abs(mean - np.mean(rows, axis=0).ravel()) > half_a_unit + 1e-12).any():
        raise RuntimeError("the result is not the mean of the survivors' values")


def _drops(place: int, sites: int, dropped: int) -> bool:
    """Spread evenly."""
    return (place + 1) * dropped // sites > place * dropped // sites


def _agreement(sites: int, classes: int, dim: int, masking: MaskingSection) -> Agreement:
    return Agreement.model_validate(
        {
            "federation": "bench.example",
            "run": "bench",
            "method": Method.FEDPROTO,
            "protection": Protection.MASKED,
            "rounds": 2,
            "classes": tuple(str(label) for label in range(classes)),
            "dim": dim,
            "norm_bound": _NORM_BOUND,
            "max_sites": max(256, sites),
            "preprocessing": {"image_size": SIDE, "channels": 1, "mean": (0.5,), "std": (0.5,)},
            "masking": masking,
            "training": {"model": f"{__name__}:build", "batch_size": classes, "local_epochs": 1},
        }
    )


def _data(agreement: Agreement, sites: int) -> dict[str, SiteData]:
    """Return one image of each class for each site."""
    generator, labels = np.random.default_rng(0), np.arange(len(agreement.classes))
    data: dict[str, SiteData] = {}
    for number in range(1, sites + 1):
        name = f"site-{number:04d}"
        images = generator.integers(0, 256, (len(labels), SIDE, SIDE, 1), dtype=np.uint8)
        samples = Samples(images, labels, np.zeros_like(labels))
        data[name] = SiteData(to_dataset(samples, agreement.preprocessing, where=name), None)
    return data
