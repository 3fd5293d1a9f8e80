"""Decisions in a privacy ledger: lines that spend nothing, but change what other lines mean.

An exposure voids the guarantee, a loss marks an earlier ledger as lost, and an allowance changes the limit. Limit: the
reason and the time of a decision are the site's own statements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from privacy.ledger.entries import Entry, Fact, Limit, entry_from_json

LONGEST_REASON = 500
_EXPOSED, _LOST, _LIMIT = "no guarantee", "ledger lost", "limit"


@dataclass(frozen=True)
class Exposure:
    """Exposure of exact values in a run: no record of the data set has a guarantee from then on.

    ``facts`` hold what the site notes of the records, as those of a spending do.
    """

    run: str
    agreement_hash: bytes
    time: str
    facts: Mapping[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True)
class Loss:
    """Loss of an earlier ledger, which had reached entry ``seq``: the spending of the data set is unknown."""

    seq: int
    time: str


@dataclass(frozen=True)
class Allowance:
    """Change of the limit from this line on, with the ``reason`` that the deciding person gave.

    Raises ``ValueError`` unless ``reason`` is 1 to 500 printable characters.
    """

    limit: Limit
    reason: str
    time: str

    def __post_init__(self) -> None:
        if not (self.reason.strip() and len(self.reason) <= LONGEST_REASON and self.reason.isprintable()):
            raise ValueError(f"a reason must have 1 to {LONGEST_REASON} printable characters")


Line = Entry | Exposure | Loss | Allowance
"""Content of a line after the first."""


def exposure_to_json(exposure: Exposure) -> dict[str, object]:
    """Return the content of the exposure's line."""
    return {
        "kind": _EXPOSED,
        "time": exposure.time,
        "run": exposure.run,
        "agreement": exposure.agreement_hash.hex(),
        **({"facts": dict(exposure.facts)} if exposure.facts else {}),
    }


def loss_to_json(loss: Loss) -> dict[str, object]:
    """Return the content of the loss's line."""
    return {"kind": _LOST, "time": loss.time, "entry": loss.seq}


def allowance_to_json(allowance: Allowance) -> dict[str, object]:
    """Return the content of the allowance's line."""
    return {
        "kind": _LIMIT,
        "time": allowance.time,
        **allowance.limit.to_json(),
        "reason": allowance.reason,
    }


def line_from_json(content: Mapping[str, object]) -> Line:
    """Decode a line after the first. Raises ``ValueError`` for a line that no ledger of this version has."""
    readers: Mapping[object, Callable[[Mapping[str, object]], Line]] = {
        _EXPOSED: _exposure,
        _LOST: _loss,
        _LIMIT: _allowance,
    }
    kind = content.get("kind")
    return (readers.get(kind, entry_from_json) if isinstance(kind, str) else entry_from_json)(content)


def _exposure(content: Mapping[str, object]) -> Exposure:
    run, agreement, time = (content.get(name) for name in ("run", "agreement", "time"))
    if not (isinstance(run, str) and isinstance(agreement, str) and isinstance(time, str)):
        raise ValueError("an exposure needs run, agreement and time, each as text")
    facts = content.get("facts", {})
    if not isinstance(facts, dict):
        raise ValueError("the facts of an exposure must be an object")
    exposure = Exposure(run, bytes.fromhex(agreement), time, facts)
    _check_all_said(exposure_to_json(exposure), content)
    return exposure


def _loss(content: Mapping[str, object]) -> Loss:
    seq, time = content.get("entry"), content.get("time")
    if type(seq) is not int or not isinstance(time, str):
        raise ValueError("a loss needs an entry number and a time")
    _check_all_said(loss_to_json(Loss(seq, time)), content)
    return Loss(seq, time)


def _allowance(content: Mapping[str, object]) -> Allowance:
    reason, time = content.get("reason"), content.get("time")
    if not (isinstance(reason, str) and isinstance(time, str)):
        raise ValueError("a change of the limit needs a reason and a time")
    allowance = Allowance(Limit.from_json(content), reason, time)
    _check_all_said(allowance_to_json(allowance), content)
    return allowance


def _check_all_said(known: Mapping[str, object], content: Mapping[str, object]) -> None:
    if known != content:
        raise ValueError(f"unexpected fields or values in a line of kind {content.get('kind')!r}")
