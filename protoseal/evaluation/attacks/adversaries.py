"""Readings of one site's prototypes by each adversary of the trust model, from the messages of a recorded run.

A *reading* is one way to turn a view into vectors for the victim's classes. An adversary may have several: a
coordinator of a masked sum has the victim's masked upload and the mean that it opened. A reading of protected bytes
takes them as if nothing protected them, so that a protection that was silently left out shows as a successful attack.

Limits: the colluding sites here are honest but curious: they follow the protocol and share what they hold. The one
other site is the one that shares most classes with the victim. Under FedPC with several groups, and under FedPLCC,
colluding sites do not subtract their own part from the mixed results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

import numpy as np

from agreement import Agreement, Family
from agreement.aggregation.encrypted_sums import EncryptedSum
from agreement.payload_forms import directions_form, limits_of, result_form, values_form
from agreement.round_plan import Form
from algorithms.gram_matrix import Bool
from algorithms.pfpl import Weighting
from crypto.ckks.packing import Packing
from crypto.ckks.parameters import upload_forms
from crypto.ckks.secret_key import CkksSecret
from crypto.ckks.serialization import read_payload
from crypto.ckks.sums import SummingSite
from crypto.keys import KEY_BYTES
from crypto.plain import SCHEME as PLAIN
from crypto.protection import Combination, Payload
from crypto.rotation import class_key, rotate
from protoseal.evaluation.attacks.recorded_run import Labels, RecordedRun, Rows
from protoseal_wire import codec
from protoseal_wire.codec import Malformed
from protoseal_wire.messages import Phase
from secure_server.storage.store import Received

_HALVINGS = 60


class Adversary(StrEnum):
    """Adversaries of the trust model whose views are recorded."""

    COORDINATOR = "the coordinator"
    PEER = "one other site"
    PEERS = "all other sites together"
    COLLUSION = "the coordinator and one other site"


@dataclass(frozen=True)
class Learned:
    """Vectors for the victim's prototypes: ``rows`` (M, d) in feature units, of classes ``labels`` (M,).

    ``reading`` says in words what the vectors are. ``initial`` is true if they are features of the initial model, not
    of the model of the last round.
    """

    reading: str
    rows: Rows = field(repr=False)
    labels: Labels = field(repr=False)
    initial: bool = False

    def of_class(self, number: int) -> Rows:
        """Return the rows of one class, (m, d)."""
        return np.asarray(self.rows[self.labels == number])


@lru_cache(maxsize=64)
def readings(run: RecordedRun, adversary: Adversary, victim: str) -> tuple[Learned, ...]:
    """Return what the adversary learns of the victim's prototypes, one entry for each reading, the best last."""
    accomplice = accomplice_of(run, victim)
    match adversary:
        case Adversary.COORDINATOR:
            return (*_uploaded(run, victim), *_opened_mean(run, victim, []))
        case Adversary.PEER:
            return tuple(_from_results(run, victim, [accomplice]))
        case Adversary.PEERS:
            return tuple(_from_results(run, victim, sorted(set(run.sites) - {victim})))
        case Adversary.COLLUSION:
            return tuple(_with_secrets(run, victim, accomplice))


def accomplice_of(run: RecordedRun, victim: str) -> str:
    """Return the one other site: of those that share most classes with the victim, the first by name."""
    own, others = set(run.sites[victim].labels.tolist()), sorted(set(run.sites) - {victim})
    return max(others, key=lambda name: len(own & set(run.sites[name].labels.tolist())))


# The coordinator's readings


def payload_of(received: Received, agreement: Agreement) -> Payload:
    """Decode an upload of VALUES or DIRECTIONS."""
    key = received.key
    if key is None:
        raise ValueError("a statement is no upload of values")
    form = directions_form(agreement) if key.phase is Phase.DIRECTIONS else values_form(agreement, key.round)
    try:
        return codec.decode_payload(received.content, limits_of(agreement), form)
    except Malformed:  # from a large group, with a signature beside it
        return codec.decode_masked_values(received.content, limits_of(agreement), form).payload


def _uploaded(run: RecordedRun, victim: str) -> Iterator[Learned]:
    """Yield the victim's upload of prototypes, read as if it were not protected."""
    agreement, held = run.agreement, np.unique(run.sites[victim].labels)
    if not (agreement.method.traits.prototypes or agreement.clusters):
        return
    payload = payload_of(run.upload(victim), agreement)
    match agreement.plan.values:
        case Form.ROWS:
            rotated = payload.scheme != PLAIN
            words = "its rows, rotated by a secret matrix, as they are" if rotated else "its prototypes"
            yield Learned(words, payload.arrays[0][held] * agreement.norm_bound, held)
        case Form.VECTOR:
            yield Learned("its prototypes", agreement.layout.split(payload.arrays[0])[0][held], held)
        case Form.LOCAL_CLUSTERS:
            rows, labels, *_ = payload.arrays
            yield Learned("its local prototypes", rows, labels.astype(np.int64))
        case Form.WORDS:
            yield Learned("its masked words, read as numbers", _unmasked(payload, agreement)[held], held)
        case _:
            yield Learned("its ciphertexts, read as numbers", _as_numbers(payload, agreement)[held], held)


def _unmasked(payload: Payload, agreement: Agreement) -> Rows:
    """Read masked words as the fixed-point numbers of rows (K, d) that they would be without masks."""
    words = payload.words[0]
    signed = words.view(np.int64 if words.dtype == np.uint64 else np.int32)
    steps = agreement.fixed_point().resolution[0]
    count = len(agreement.classes) * agreement.dim
    numbers = np.resize(signed.astype(np.float64), count) * steps
    return np.asarray(numbers.reshape(len(agreement.classes), agreement.dim))


def _as_numbers(payload: Payload, agreement: Agreement) -> Rows:
    """Read a ciphertext's words as numbers in units of the norm bound, one row (d,) after the other."""
    blob = payload.blobs[0]
    count = len(agreement.classes) * agreement.dim
    words = np.frombuffer(blob[-8 * count :].ljust(8 * count, b"\0"), dtype="<i8").astype(np.float64)
    rows = words.reshape(len(agreement.classes), agreement.dim)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-9)
    return np.asarray(rows / lengths * agreement.norm_bound)


# Readings of results


def _from_results(run: RecordedRun, victim: str, sites: list[str]) -> Iterator[Learned]:
    """Yield what colluding ``sites`` learn from their results and their own prototypes."""
    family = run.agreement.method.traits.family
    if family is Family.PEERS:
        yield _others_combination(run, victim, sites)
    elif family is Family.CLUSTERS:
        given = run.sites[sites[0]].received
        if given.clusters is not None and given.cluster_labels is not None:
            yield Learned("the clusters of all sites", given.clusters, given.cluster_labels)
    else:
        yield from _opened_mean(run, victim, sites)


def _others_combination(run: RecordedRun, victim: str, sites: list[str]) -> Learned:
    """Return the combination of peers that a site received; several sites solve theirs for the victim's prototypes."""
    received = {name: set(np.flatnonzero(run.sites[name].received.has_personal).tolist()) for name in sites}
    shared = np.array(
        [k for k in np.unique(run.sites[victim].labels) if any(k in each for each in received.values())]
    )
    if len(sites) == 1:
        combined = np.array([_combined(run, sites[0], int(k)) for k in shared])
        return Learned(
            "the combination of its peers that it received", combined.reshape(-1, run.agreement.dim), shared
        )
    holders = {int(k): [name for name in sites if k in received[name]] for k in shared}
    solved = np.array([_solved(run, names, k) for k, names in holders.items()]).reshape(-1, run.agreement.dim)
    return Learned("the victim's prototypes, solved from the sites' results", solved, shared)


def _combined(run: RecordedRun, site: str, number: int) -> Rows:
    """Return Σ_m w_im C_m (d,) of one class, which follows from a site's target and its own prototype."""
    own, alpha = run.sites[site].received, run.agreement.own_share
    return np.asarray((own.personal[number] - alpha * own.local[number]) / max(1.0 - alpha, 1e-9))


def _solved(run: RecordedRun, holders: list[str], number: int) -> Rows:
    """Solve the combinations of all ``holders`` but one for that one's prototype (d,) of class ``number``.

    With t = d_iv the only unknown, one site's combination gives C_v(t), and ‖C_i − C_v(t)‖² = t determines t up to a
    few roots; the other sites' combinations choose the root.
    """
    rows = {name: run.sites[name].received.local[number] for name in holders}
    weigh, first = _weights_of(run.agreement), holders[0]
    combined = {name: _combined(run, name, number) for name in holders}

    def of(site: str, victim_row: Rows) -> Rows:
        peers = np.array([*(rows[name] for name in holders if name != site), victim_row])
        return np.asarray(weigh(np.square(peers - rows[site]).sum(axis=1)) @ peers)

    def candidate(t: float) -> Rows:
        known = np.array([rows[name] for name in holders[1:]]).reshape(-1, run.agreement.dim)
        w = weigh(np.append(np.square(known - rows[first]).sum(axis=1), t))
        return np.asarray((combined[first] - w[:-1] @ known) / max(w[-1], 1e-12))

    def off(t: float) -> float:
        return float(np.square(rows[first] - candidate(t)).sum() - t)

    grid = np.geomspace(1e-6, 1.0, 400) * (2.0 * run.agreement.norm_bound) ** 2
    values = np.array([off(t) for t in grid])
    roots = [_root(off, float(grid[i]), float(grid[i + 1])) for i in np.flatnonzero(np.diff(np.sign(values)))]
    found = [candidate(t) for t in roots] or [candidate(float(grid[np.abs(values).argmin()]))]
    return min(
        found, key=lambda row: sum(float(np.square(of(name, row) - combined[name]).sum()) for name in holders)
    )


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return a root between two points where the function has different signs, by bisection."""
    rises = function(low) < 0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if (function(middle) < 0) == rises else (low, middle)
    return (low + high) / 2


def _weights_of(agreement: Agreement) -> Callable[[Rows], Rows]:
    """Return PFPL's weights (m,) as a function of squared distances (m,), for a receiver with m peers."""

    def weights(distances: Rows) -> Rows:
        total, count = distances.sum(), len(distances)
        match agreement.pfpl.weighting:
            case Weighting.DISTANCE:
                return np.asarray(distances / total)
            case Weighting.COMPLEMENT:
                return np.asarray((total - distances) / ((count - 1) * total)) if count > 1 else np.ones(1)
            case Weighting.INVERSE:
                near = 1.0 / np.sqrt(distances)
                return np.asarray(near / near.sum())
            case _:
                return np.full(count, 1.0 / count)

    return weights


def _opened_mean(run: RecordedRun, victim: str, known: list[str]) -> Iterator[Learned]:
    """Yield the mean over the holders of each class, less the prototypes of the ``known`` sites."""
    agreement = run.agreement
    if not agreement.layout.classes or agreement.method.traits.family not in (Family.SUMS, Family.GROUPS):
        return
    if agreement.protection.ckks_key and not known:
        return  # the coordinator cannot decrypt the sum
    rows, has = _mean_of(run, known[0] if known else victim)
    known = known if _is_one_sum(run) else []
    shared = np.intersect1d(np.flatnonzero(has), run.sites[victim].labels)
    left = []
    for k in shared:
        holders = [name for name, site in run.sites.items() if k in site.labels]
        mine = [run.sites[name].received.local[k] for name in known if name in holders]
        left.append((len(holders) * rows[k] - np.sum(mine, axis=0)) / (len(holders) - len(mine)))
    words = "the mean over sites" + (", less the colluding sites' own prototypes" if known else "")
    yield Learned(words, np.array(left).reshape(-1, agreement.dim), shared)


def _is_one_sum(run: RecordedRun) -> bool:
    """Return whether a result is the mean over all sites, and no mixture of several groups' means."""
    agreement = run.agreement
    single = agreement.fedpc.groups == 1 or len(run.sites) < 2 * agreement.min_holders
    return single or not agreement.method.is_grouped


def _mean_of(run: RecordedRun, site: str) -> tuple[Rows, Bool]:
    """Return the mean prototypes (K, d) in the site's last result, and the classes (K,) that have one."""
    agreement = run.agreement
    _, content = run.result(site)
    payload = codec.decode_payload(content, limits_of(agreement), result_form(agreement))
    if agreement.protection.ckks_key and agreement.method.is_grouped:
        given = run.sites[site].received
        return given.personal, given.has_personal
    if agreement.protection.ckks_key:
        sums = EncryptedSum(agreement)
        values = SummingSite(ckks_key_of(run, site), sums.form).unprotect(payload, agreement.max_sites)
        means = sums.means(sums.opened(values))
        return means.rows, means.has
    vector, has = payload.arrays
    return agreement.layout.split(vector)[0], has == 1.0


# Readings with a colluding site's secrets


def _with_secrets(run: RecordedRun, victim: str, accomplice: str) -> Iterator[Learned]:
    """Yield what the coordinator reads with the secrets that one site holds, and what that site learns by itself."""
    agreement, held = run.agreement, np.unique(run.sites[victim].labels)
    if not (agreement.method.traits.prototypes or agreement.clusters):
        return
    upload = run.upload(victim)
    payload = payload_of(upload, agreement)
    match agreement.plan.values:
        case Form.ROWS if payload.scheme != PLAIN:
            rows = _rotated_back(
                run, accomplice, upload, payload.arrays[0], np.arange(len(agreement.classes))
            )
            yield Learned(
                "its prototypes, rotated back by a site's seed", rows[held] * agreement.norm_bound, held
            )
        case Form.ROWS | Form.VECTOR | Form.LOCAL_CLUSTERS:
            yield from _uploaded(run, victim)
        case Form.CIPHERTEXTS if not agreement.clusters:
            yield Learned(
                "its prototypes, decrypted by a site's key", _decrypted(run, accomplice, payload)[held], held
            )
        case _ if agreement.clusters:
            yield _directions(run, victim, accomplice)
        case _:
            yield from _opened_mean(run, victim, [accomplice])


def ckks_key_of(run: RecordedRun, site: str) -> CkksSecret:
    """Return the CKKS key that the site holds."""
    return CkksSecret.from_bytes(run.setups[site].group[KEY_BYTES:])


def _rotated_back(run: RecordedRun, site: str, upload: Received, rows: Rows, labels: Labels) -> Rows:
    secrets, key = run.setups[site], upload.key
    if key is None:
        raise ValueError("a statement is no upload of rows")
    context = secrets.rotation_context(key, key.phase)
    keys = [class_key(secrets.group[:KEY_BYTES], context, int(k)) for k in labels]
    return np.concatenate([rotate(each, rows[i : i + 1], inverse=True) for i, each in enumerate(keys)])


def _directions(run: RecordedRun, victim: str, accomplice: str) -> Learned:
    """Return the directions of the victim's local prototypes, with the norm bound for their unknown norm."""
    upload = run.upload(victim, Phase.DIRECTIONS)
    rows, classes = payload_of(upload, run.agreement).arrays
    labels = classes.astype(np.int64)
    back = _rotated_back(run, accomplice, upload, rows, labels)
    known = run.sites[accomplice].received.local
    norm = float(np.median(np.linalg.norm(known[known.any(axis=1)], axis=1)))
    return Learned("directions of its local prototypes, rotated back by a site's seed", back * norm, labels)


def _decrypted(run: RecordedRun, site: str, payload: Payload) -> Rows:
    """Decrypt an upload of prototypes: rows (K, d) in feature units."""
    agreement, secret = run.agreement, ckks_key_of(run, site)
    if agreement.sums:
        values = SummingSite(secret, EncryptedSum(agreement).form).unprotect(payload, agreement.max_sites)
        return agreement.layout.split(values[: agreement.layout.length])[0]
    packing = Packing(len(agreement.classes), agreement.dim)
    forms = upload_forms(Combination(agreement.pfpl.weighting.value), packing.parts)
    vectors = [secret.decrypt(each) for each in read_payload(payload, forms)[: packing.parts]]
    return packing.unpack(vectors) * agreement.norm_bound
