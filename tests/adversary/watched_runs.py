"""A coordinator that plays a whole run towards a site's own loop, returns what it likes, and records all it sees.

The site runs :func:`secure_client.client_loop.take_part` from joining to the end. The coordinator is the real one, but
for the results that it returns, so that every request is one that a site goes along with.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tenseal import sealapi
from torch.utils.data import TensorDataset

from agreement import Agreement, AveragingSection, MaskingSection, Method, Protection
from agreement.derived.payload_shapes import directions_shape, limits_of, values_shape
from crypto.ckks.parameters import context, level_id
from crypto.ckks.serialization import dump, read_payload
from crypto.ckks.sums import SummingServer
from crypto.protection import Payload
from protoseal.simulation.local_federation import DirectTransport, LocalFederation, LocalSite
from protoseal_wire import codec
from protoseal_wire.messages import JoinReply, JoinRequest, Phase, PhaseKey, Task, Wait
from secure_client.checkpoints.learner_factory import (
    build_agreed_model,
    build_checkpointed_learner,
    build_learner,
)
from secure_client.client_loop import take_part
from secure_client.data import SiteData
from secure_client.session import Session
from secure_client.training.averaged_parameters import AveragedPart
from secure_server.aggregator import Aggregator
from secure_server.exchanges.exchange import Outcome
from tests.support.scripted_sums import MAKES_SECRETS, one_secret
from tests.support.small import short_training, small_agreement, small_data

VICTIM = "clinic-a"
ROUNDS = 3
HUGE = float(np.finfo(np.float32).max)
_NEAR_THE_BOUND = 0.9
_CHANGED = 1
"""The record; of the first one the site tries its model before it joins."""
_SITES, _SAMPLES = 4, 66
_PATIENCE = 200
Vector = NDArray[np.float64]
Seen = tuple[str, int, int, object]
"""Call as the coordinator sees it: its kind or phase, round and attempt, and the public form of its content."""


def leaving_agreement(
    method: Method,
    protection: Protection,
    model: str,
    privacy: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Agreement:
    """Return the small federation's agreement for one of ``leaving_models``, with tests' own settings."""
    fields: dict[str, Any] = {
        **dict(small_agreement(rounds=ROUNDS)),
        "method": method,
        "protection": protection,
        "masking": MaskingSection(ring_bits=64),
        "training": short_training(f"tests.support.tiny_models:{model}", lr=0.1),
        "fedplcc": {"most_prototypes": 1, "most_clusters": 1},
        "fedpc": {"groups": 1},
        "averaging": AveragingSection(parameters=1),
        **({} if privacy is None else {"privacy": privacy}),
        **changes,
    }
    drafted = Agreement.model_validate(fields)
    if not method.averages:
        return drafted
    sizes = AveragedPart(build_agreed_model(drafted, drafted.training.model), method.traits.averaged).sizes
    return Agreement.model_validate(
        {**fields, "averaging": AveragingSection(parameters=sizes[0], buffers=sizes[1])}
    )


def data_of(agreement: Agreement, pixel: float | None) -> dict[str, SiteData]:
    """Return the small federation's scans; one of the victim's records has ``pixel`` everywhere."""
    found = {name: _tested(each, None) for name, each in small_data(agreement).items()}
    return {**found, VICTIM: _tested(found[VICTIM], pixel)}


def _tested(data: SiteData, pixel: float | None) -> SiteData:
    train: Any = data.train
    inputs, labels = (each.clone() for each in train.tensors)
    if pixel is not None:
        inputs[_CHANGED] = pixel
    both = TensorDataset(inputs, labels)
    return SiteData(both, both)


@dataclass
class Watch:
    """Record of what the coordinator saw of the victim, and of the sites that are gone."""

    seen: list[Seen] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    outcome: Task | None = None
    error: str | None = None


class _ProcessEndedError(BaseException):
    """End of the process as by a signal: nothing catches it."""


class Watched(DirectTransport):
    """The victim's way to the coordinator. While the victim waits, the other sites take their turns."""

    def __init__(
        self, federation: LocalFederation, others: Sequence[LocalSite], watch: Watch, *, restarts: bool
    ) -> None:
        super().__init__(federation.coordinator, federation.agreement.run, VICTIM)
        self._restarts, self._begun = restarts, False
        self._agreement, self._others, self._watch = federation.agreement, others, watch

    def join(self, request: JoinRequest) -> JoinReply:
        """See :class:`secure_client.client_loop.Transport`, here and below."""
        for other in () if self._begun else self._others:
            other.join()
        self._begun = True
        self._watch.seen.append(("JOIN", 0, 0, None))
        return super().join(request)

    def next_task(self) -> Task:
        for _ in range(_PATIENCE):
            task = super().next_task()
            if not isinstance(task, Wait):
                return task
            self._others_turn()
        raise AssertionError("the victim waits for ever")

    def upload(self, key: PhaseKey, content: bytes) -> None:
        form = public_form(self._agreement, key, content)
        self._watch.seen.append((key.phase.name, key.round, key.attempt, form))
        self._watch.sizes.append(len(content))
        super().upload(key, content)
        if self._restarts and key.phase is Phase.RESULT:
            raise _ProcessEndedError

    def leave(self) -> None:
        self._watch.seen.append(("LEAVE", 0, 0, None))
        self._watch.gone.add(VICTIM)
        super().leave()

    def _others_turn(self) -> None:
        for other in self._others:
            if other.name in self._watch.gone:
                continue
            try:
                other.step()
            except Exception:  # a double's: it leaves as the loop would have it do
                self._watch.gone.add(other.name)
                other.transport.leave()


def public_form(agreement: Agreement, key: PhaseKey, content: bytes) -> object:
    """Return a message's content apart from values, ciphertexts, masked words, signatures and fresh keys."""
    if key.phase is Phase.PRESENCE:
        stated = codec.decode_presence(content, limits_of(agreement))
        anchor = None if stated.anchor is None else stated.anchor.seq
        return stated.site, tuple(stated.holds.tolist()), stated.keys is None, len(stated.base), anchor
    if key.phase is Phase.DIRECTIONS:
        return _classes(codec.decode_payload(content, limits_of(agreement), directions_shape(agreement)))
    if key.phase is Phase.VALUES and agreement.clusters and agreement.protection is Protection.PLAIN:
        return _classes(
            codec.decode_payload(content, limits_of(agreement), values_shape(agreement, key.round))
        )
    return content if key.phase is Phase.RESULT else None


def _classes(payload: Payload) -> tuple[float, ...]:
    """Return the classes of a site's local prototypes."""
    return tuple(payload.arrays[1].tolist())


def watched(
    agreement: Agreement,
    folder: Path,
    patch: pytest.MonkeyPatch,
    *,
    pixel: float | None,
    restarts: bool = False,
) -> Watch:
    """Play a run to its end, or until the victim leaves. Beside ``folder`` lie identities that runs share.

    With ``restarts`` the victim's process ends after each result, and is started again on its journal.
    """
    watch = Watch()
    state = folder / "state"
    state.mkdir()
    if (folder.parent / "identities").exists():
        shutil.copytree(folder.parent / "identities", state / "identities")
    with patch.context() as playing:
        if agreement.protection is Protection.CKKS:
            playing.setattr(MAKES_SECRETS, one_secret)
        playing.setattr("secure_client.client_loop._SHORTEST_TURN_SECONDS", 0.0)
        return_crafted_results(playing, agreement)
        with LocalFederation(agreement, data_of(agreement, pixel), state=state) as federation:
            if not (folder.parent / "identities").exists():
                shutil.copytree(state / "identities", folder.parent / "identities")
            (site,) = (each for each in federation.sites if each.name == VICTIM)
            others = [each for each in federation.sites if each.name != VICTIM]
            transport = Watched(federation, others, watch, restarts=restarts)
            try:
                watch.outcome = _to_the_end(federation, site, transport)
            except Exception as error:  # for who reads a failure: the coordinator sees what was noted before
                watch.error = f"{type(error).__name__}: {error}"
    return watch


def _to_the_end(federation: LocalFederation, site: LocalSite, transport: Watched) -> Task:
    session = site.session
    while True:
        try:
            return take_part(session, transport)
        except _ProcessEndedError:
            session = _again(federation, session)


def _again(federation: LocalFederation, session: Session) -> Session:
    """Return the session of a new process on the same journal."""
    agreement, journal = federation.agreement, session._journal
    data, model = federation._data[VICTIM], agreement.training.model
    learner = build_learner(agreement, VICTIM, data, model=model, device="cpu")
    return Session(
        agreement, session._party, build_checkpointed_learner(agreement, learner, journal), journal
    )


# Crafted results


def return_crafted_results(patch: pytest.MonkeyPatch, agreement: Agreement) -> None:
    """Have the coordinator return models of its own, near the agreed bound, or one site's answer to another."""
    if agreement.protection is Protection.CKKS and agreement.method is not Method.PFPL:
        add = SummingServer.add
        patch.setattr(
            SummingServer, "add", lambda server, payloads: _moved(agreement, server, add(server, payloads))
        )
        return
    combine = Aggregator.combine
    patch.setattr(Aggregator, "combine", lambda self, attempt: _crafted(agreement, combine(self, attempt)))


def _crafted(agreement: Agreement, outcome: Outcome) -> Outcome:
    results = {name: _replaced(agreement, each) for name, each in outcome.results.items()}
    if agreement.protection is Protection.CKKS:  # PFPL: each site is given its neighbour's
        names = sorted(results)
        results = {name: results[names[at - 1]] for at, name in enumerate(names)}
    return replace(outcome, results=results)


def _replaced(agreement: Agreement, payload: Payload) -> Payload:
    arrays = list(payload.arrays)
    if agreement.protection is Protection.CKKS:
        return payload
    if not agreement.method.averages:  # prototypes as long as may be, in the opposite direction
        rows = arrays[0].reshape(len(agreement.classes), agreement.dim)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        longest = 1.0 if agreement.method is Method.PFPL else agreement.norm_bound
        arrays[0] = (-longest * rows / np.where(norms > 0.0, norms, 1.0)).reshape(arrays[0].shape)
        return replace(payload, arrays=tuple(arrays))
    at = 3 if agreement.clusters else 0
    model = poison(agreement)
    arrays[at] = np.concatenate([arrays[at][: len(arrays[at]) - len(model)], model])
    return replace(payload, arrays=tuple(arrays))


def poison(agreement: Agreement) -> Vector:
    """Return a model (p + q,) near the bounds: training from it diverges, variances are negative."""
    averaging = agreement.averaging
    parameters = np.full(averaging.parameters, _NEAR_THE_BOUND * averaging.parameter_bound)
    return np.concatenate([parameters, np.full(averaging.buffers, -_NEAR_THE_BOUND * averaging.buffer_bound)])


def _moved(agreement: Agreement, server: SummingServer, total: Payload) -> Payload:
    """Return the sum with the poison added to every model: the coordinator needs no key for that."""
    model, form, weighted = poison(agreement), server._layout, agreement.layout.weighted
    terms = float(_SAMPLES if weighted else _SITES)
    tail = 1 + int(weighted) + (0 if agreement.clusters else len(agreement.classes))
    values = np.zeros(form.length)
    values[form.length - tail - len(model) : form.length - tail] = model
    if not agreement.method.averages:
        values[: len(agreement.classes) * agreement.dim] = agreement.norm_bound / 5.0
    vectors = form.vector.pack(form.split(values))
    moved = []
    for ciphertext, slots in zip(read_payload(total, form.answers), vectors, strict=True):
        plaintext = sealapi.Plaintext()
        scaled = (np.asarray(slots) * terms).tolist()
        sealapi.CKKSEncoder(context()).encode(
            scaled, level_id(form.answers[0].level), ciphertext.scale, plaintext
        )
        sealapi.Evaluator(context()).add_plain_inplace(ciphertext, plaintext)
        moved.append(dump(ciphertext))
    return Payload(total.scheme, blobs=tuple(moved))
