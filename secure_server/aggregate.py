"""The one bridge between methods and protections at the coordinator.

A method says which weights it wants, a protection says how it can combine; here the two meet. Nothing else in the
coordinator knows either.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import BrokenExecutor, Executor
from functools import partial
from pathlib import Path

from algorithms.pfpl.aggregation import peer_weights
from crypto.ckks import work
from crypto.ckks.server import CkksServer
from crypto.errors import MalformedError
from crypto.plain import PlainServer
from crypto.protection import Combination, Payload, ServerHalf
from protoseal.config import Agreement, Protection
from protoseal.terms import cohort_of
from protoseal_wire.messages import ActiveList
from secure_server.workers import run_apart


def server_half(agreement: Agreement, keys_path: Path, executor: Executor | None) -> ServerHalf:
    """The server's half of the agreed protection, set up for the agreed method.

    ``keys_path`` is where the group's evaluation keys lie once a site has made them (``ckks`` only). Heavy work
    goes to ``executor``, or is done in this thread when there is none.
    """
    pfpl = agreement.pfpl
    if agreement.protection is Protection.CKKS:
        return CkksServer(Combination(pfpl.weighting.value), keys_path, executor)
    weights = partial(
        peer_weights, weighting=pfpl.weighting, squared=pfpl.squared, tau=agreement.agreement_threshold
    )
    return PlainServer(weights)


class Aggregator:
    """Combines the payloads of one attempt."""

    def __init__(self, agreement: Agreement, keys_path: Path, executor: Executor | None = None) -> None:
        self._agreement, self._keys_path, self._executor = agreement, keys_path, executor
        self._server = server_half(agreement, keys_path, executor)

    def validate(self, payload: Payload, site: str, active: ActiveList) -> None:
        """Raise :class:`crypto.errors.MalformedError` unless the payload may enter :meth:`combine`."""
        self._server.validate(payload, site, cohort_of(active, self._agreement))

    def combine(self, payloads: Mapping[str, Payload], active: ActiveList) -> dict[str, Payload]:
        """One answer for each participant."""
        return self._server.combine(payloads, cohort_of(active, self._agreement))

    def check_keys(self, evaluation_keys: bytes) -> bytes:
        """The keys' SHA-256; :class:`crypto.errors.MalformedError` unless they can be computed with.

        Once they are accepted, a round that fails for want of good keys is not its sites' fault and fails again.
        Where heavy work goes to processes, this takes one of its own, with bounded memory and time (:func:`run_apart`).
        It is waited for, so that a maker can keep this thread busy for as long, and again with each try until its
        set-up's deadline. Without processes nothing is bounded: the sites are then this process's own.
        """
        if self._executor is None:
            return work.check_keys(evaluation_keys)
        try:
            return run_apart(work.check_keys, evaluation_keys)
        except BrokenExecutor as error:
            raise MalformedError("evaluation keys that take too much time or memory to load") from error

    def keep_keys(self, evaluation_keys: bytes) -> None:
        """Put the group's evaluation keys, which are public, where the worker processes read them."""
        if self._keys_path.exists() and self._keys_path.read_bytes() == evaluation_keys:
            return
        scratch = self._keys_path.with_suffix(".new")
        scratch.write_bytes(evaluation_keys)
        scratch.replace(self._keys_path)
