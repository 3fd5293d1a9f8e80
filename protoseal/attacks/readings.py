"""Readings of one site's prototypes by each adversary of the trust model, from the messages of a recorded run.

A *reading* is one way to turn a view into vectors for the victim's classes. An adversary may have several: a
coordinator of a masked sum has the victim's masked upload and the mean that it opened. A reading of protected bytes
takes them as if nothing protected them, so that a protection that was silently left out shows as a successful attack.

Colluding sites subtract their own part from the mean of a sum or of a cluster. Under FedPC the coordinator opens each
group's mean (``plain``, ``masked``), and a group's leader its own group's (``ckks``). Other sites receive a mixture of
the groups' means (:mod:`protoseal.attacks.opened_sums`). Under FedPLCC every site is sent the assignment of all sites'
rows to clusters, except under ``plain``. Under PFPL several sites solve their results for the others
(:mod:`protoseal.attacks.solved_combinations`).

Limits

- Colluding sites are honest but curious: they follow the protocol and share what they hold.
- The one other site shares most classes with the victim, under FedPC within the victim's group.
- Half of n sites are ⌈n/2⌉ of them. Under FedPC they are one of each other group and then the victim's group, enough
  to read the victim from g + J − 2 ≤ ⌈n/2⌉ on, for its group of g sites and J groups.
- Colluding sites subtract nothing from a mixture that they cannot solve: without a site of each group they know neither
  the weights ρ nor the other groups' means, unless one of them leads the victim's group.
- They subtract nothing under FedPLCC and ``plain``, since no site is told which rows are in a cluster, nor how many of
  the rows are the victim's.
- Shared noise has no reading: sites add it to a sum in parts. A coordinator of FedPLCC does not solve cosines and inner
  products of clusters' sums for norms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from agreement import Agreement, Family
from agreement.derived.encrypted_sums import EncryptedClusterSum, EncryptedSum
from agreement.registry.round_plan import PayloadKind
from algorithms.pfpl import Weighting
from crypto.ckks.packing import Packing
from crypto.ckks.parameters import upload_shapes
from crypto.ckks.serialization import read_payload
from crypto.keys import KEY_BYTES
from crypto.plain import SCHEME as PLAIN
from crypto.protection import Combination, Payload
from crypto.rotation import class_key, rotate
from protoseal.attacks.opened_sums import (
    decrypt_sum,
    find_group,
    find_means,
    list_groups,
    list_holdings,
    load_ckks_key,
    open_clusters,
    open_means,
    read_assignment,
)
from protoseal.attacks.recorded_run import Labels, RecordedRun, Rows, cached_in_run
from protoseal.attacks.solved_combinations import ClassSolutions, solve_class
from protoseal_wire.cluster_assignment import AssignedClusters, read_clusters
from protoseal_wire.messages import AssignedRows, Phase
from secure_server.store import Received


class Adversary(StrEnum):
    """Adversaries of the trust model whose views are recorded."""

    COORDINATOR = "the coordinator"
    PEER = "one other site"
    HALF = "half of the sites together"
    PEERS = "all other sites together"
    COLLUSION = "the coordinator and one other site"


@cached_in_run
def readings(run: RecordedRun, adversary: Adversary, victim: str) -> tuple[LearnedRows, ...]:
    """Return what the adversary learns of the victim's prototypes by each reading; the best of a collusion is last."""
    match adversary:
        case Adversary.COORDINATOR:
            return (*_read_upload(run, victim), *_read_opened_means(run, victim))
        case Adversary.COLLUSION:
            return tuple(_read_with_secrets(run, victim, choose_accomplice(run, victim)))
        case _:
            return tuple(result_readings(run, victim, colluding_sites(run, adversary, victim)))


def colluding_sites(run: RecordedRun, adversary: Adversary, victim: str) -> list[str]:
    """Return the sites that the adversary controls.

    Half of the sites are the first by name besides the victim, with several groups those that solve most.
    """
    others = sorted(set(run.sites) - {victim})
    match adversary:
        case Adversary.COORDINATOR:
            return []
        case Adversary.HALF:
            return _order_by_group(run, victim, others)[: (len(run.sites) + 1) // 2]
        case Adversary.PEERS:
            return others
        case _:
            return [choose_accomplice(run, victim)]


def _order_by_group(run: RecordedRun, victim: str, others: list[str]) -> list[str]:
    """Return the other sites, under FedPC in this order: one of each other group, the victim's group, the rest."""
    if not run.agreement.method.is_grouped:
        return others
    group = find_group(run, victim)
    # One site of each group solves the mixtures; only then can members of the victim's group subtract their own.
    firsts = {min(members) for members in list_groups(run)} - {min(group)}
    return sorted(others, key=lambda name: (name not in firsts, name not in group, name))


def choose_accomplice(run: RecordedRun, victim: str) -> str:
    """Return the one other site: of those that share most classes with the victim, the first by name.

    For a method with groups, the site is of the victim's group, unless the victim is alone there.
    """
    near = find_group(run, victim) if run.agreement.method.is_grouped else ()
    own, others = set(run.sites[victim].labels.tolist()), sorted(set(run.sites) - {victim})
    return max(
        sorted(set(near) - {victim}) or others,
        key=lambda name: len(own & set(run.sites[name].labels.tolist())),
    )


# The coordinator's readings


def _read_upload(run: RecordedRun, victim: str) -> Iterator[LearnedRows]:
    """Yield the victim's upload of prototypes, read as if it were not protected."""
    agreement, held = run.agreement, np.unique(run.sites[victim].labels)
    if not (agreement.method.traits.prototypes or agreement.clusters):
        return
    payload = run.payload(victim)
    match agreement.plan.values:
        case PayloadKind.ROWS:
            rotated = payload.scheme != PLAIN
            words = "its rows, rotated by a secret matrix, as they are" if rotated else "its prototypes"
            yield LearnedRows(words, payload.arrays[0][held] * agreement.norm_bound, held)
        case PayloadKind.VECTOR:
            yield LearnedRows("its prototypes", agreement.layout.split(payload.arrays[0])[0][held], held)
        case PayloadKind.LOCAL_CLUSTERS:
            rows, labels, *_ = payload.arrays
            yield LearnedRows("its local prototypes", rows, labels.astype(np.int64))
        case PayloadKind.WORDS:
            yield LearnedRows(
                "its masked words, read as numbers", _read_words_as_rows(payload, agreement)[held], held
            )
        case _:
            yield LearnedRows(
                "its ciphertexts, read as numbers", _read_ciphertext_as_rows(payload, agreement)[held], held
            )


def _read_opened_means(run: RecordedRun, victim: str, sites: Sequence[str] = ()) -> Iterator[LearnedRows]:
    """Yield the means that the coordinator opens, less the prototypes of colluding ``sites``."""
    if run.agreement.protection.ckks_key:
        return  # the coordinator cannot decrypt a sum
    plan = run.agreement.plan
    if run.agreement.method.traits.family is Family.CLUSTERS:
        if plan.masked:  # in plain, the upload tells more
            yield from cluster_readings(run, victim, sites)
    elif plan.sums:
        yield from mean_readings(run, victim, sites, coordinator=True)


def _read_words_as_rows(payload: Payload, agreement: Agreement) -> Rows:
    """Read masked words as the fixed-point numbers of rows (K, d) that they would be without masks.

    A build that forgot its masks is read exactly.
    """
    words = payload.words[0]
    signed = words.view(np.int64 if words.dtype == np.uint64 else np.int32)
    steps = agreement.fixed_point().resolution[0]
    count = len(agreement.classes) * agreement.dim
    numbers = np.resize(signed.astype(np.float64), count) * steps
    return np.asarray(numbers.reshape(len(agreement.classes), agreement.dim))


def _read_ciphertext_as_rows(payload: Payload, agreement: Agreement) -> Rows:
    """Read a ciphertext's words as numbers in units of the norm bound, one row (d,) after the other."""
    blob = payload.blobs[0]
    count = len(agreement.classes) * agreement.dim
    words = np.frombuffer(blob[-8 * count :].ljust(8 * count, b"\0"), dtype="<i8").astype(np.float64)
    rows = words.reshape(len(agreement.classes), agreement.dim)
    # Random words have no scale that means anything: rows of the bound's length are as good a guess as any.
    lengths = np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-9)
    return np.asarray(rows / lengths * agreement.norm_bound)


# Readings with a colluding site's secrets


def _read_with_secrets(run: RecordedRun, victim: str, accomplice: str) -> Iterator[LearnedRows]:
    """Yield what the coordinator reads with the secrets that one site holds."""
    agreement, held = run.agreement, np.unique(run.sites[victim].labels)
    if not (agreement.method.traits.prototypes or agreement.clusters):
        return
    upload = run.upload(victim)
    payload = run.read(upload)
    match agreement.plan.values:
        case PayloadKind.ROWS if payload.scheme != PLAIN:
            rows = _rotate_back(run, accomplice, upload, payload.arrays[0], np.arange(len(agreement.classes)))
            yield LearnedRows(
                "its prototypes, rotated back by a site's seed", rows[held] * agreement.norm_bound, held
            )
        case PayloadKind.ROWS | PayloadKind.VECTOR | PayloadKind.LOCAL_CLUSTERS:
            yield from _read_upload(run, victim)
        case PayloadKind.CIPHERTEXTS if not agreement.clusters:
            yield LearnedRows(
                "its prototypes, decrypted by a site's key",
                _decrypt_rows(run, accomplice, payload)[held],
                held,
            )
        case _ if agreement.clusters:
            yield from _read_opened_means(run, victim, [accomplice])
            yield from _read_local_prototypes(run, victim, accomplice)
        case _:
            # A site's pairwise keys open its own masks alone: the two share no more than the sum and its own part.
            yield from _read_opened_means(run, victim, [accomplice])


def round_zero_readings(run: RecordedRun, adversary: Adversary, victim: str) -> Iterator[LearnedRows]:
    """Yield the prototypes of the initial model that FedPC's round 0 sends, as the coordinator has them.

    Without protection they are in the clear; else a colluding site's seed rotates them back.
    """
    if run.initial is None or adversary not in (Adversary.COORDINATOR, Adversary.COLLUSION):
        return
    agreement, upload = run.agreement, run.upload(victim, number=0)
    payload, held = run.read(upload), np.unique(run.sites[victim].labels)
    rows, words = payload.arrays[0], "its prototypes of the initial model"
    if payload.scheme != PLAIN:
        if adversary is Adversary.COORDINATOR:
            return
        rows = _rotate_back(run, choose_accomplice(run, victim), upload, rows, np.arange(1))
        words += ", rotated back by a site's seed"
    # Round 0 sends all classes as one row, in units of the longest that K rows within the bound can make.
    longest = agreement.norm_bound * np.sqrt(len(agreement.classes))
    yield LearnedRows(words, rows.reshape(-1, agreement.dim)[held] * longest, held, initial=True)


def _rotate_back(run: RecordedRun, site: str, upload: Received, rows: Rows, labels: Labels) -> Rows:
    secrets, key = run.setups[site], upload.key
    if key is None:
        raise ValueError("a statement is no upload of rows")
    context = secrets.rotation_context(key, key.phase)
    keys = [class_key(secrets.group[:KEY_BYTES], context, int(k)) for k in labels]
    return np.concatenate([rotate(key, rows[i : i + 1], inverse=True) for i, key in enumerate(keys)])


def _read_local_prototypes(run: RecordedRun, victim: str, accomplice: str) -> Iterator[LearnedRows]:
    """Yield the victim's local prototypes: directions, with the accomplice's norms or with norms solved for."""
    back, labels = _read_directions(run, victim, accomplice)
    own_prototypes = run.sites[accomplice].received.local
    norm = float(np.median(np.linalg.norm(own_prototypes[own_prototypes.any(axis=1)], axis=1)))
    yield LearnedRows(
        "directions of its local prototypes, rotated back by a site's seed", back * norm, labels
    )
    norms = _solve_norms(run, victim, accomplice)
    if norms is not None:
        yield LearnedRows(
            "its local prototypes, from directions and clusters' sums", back * norms[:, None], labels
        )


def _read_directions(run: RecordedRun, site: str, accomplice: str) -> tuple[Rows, Labels]:
    """Return the directions (M, d) of a site's local prototypes, rotated back, and their classes (M,)."""
    upload = run.upload(site, Phase.DIRECTIONS)
    rows, classes = run.read(upload).arrays
    labels = classes.astype(np.int64)
    return _rotate_back(run, accomplice, upload, rows, labels), labels


def _solve_norms(run: RecordedRun, victim: str, accomplice: str) -> Rows | None:
    """Solve the clusters' sums for the norms (M,) of the victim's rows; None if they do not determine the norms.

    The sums are over all sites' rows, or under ``ckks`` over the victim's, whose upload the site's key decrypts.
    """
    assignment = read_assignment(run)
    if assignment is None:
        raise ValueError("no site is sent an assignment under plain")
    victim_clusters = next(assigned.clusters for assigned in assignment.sites if assigned.site == victim)
    encrypted = run.agreement.protection.ckks_key
    owners = [assigned for assigned in assignment.sites if assigned.site == victim or not encrypted]
    directions = np.concatenate([_read_directions(run, owner.site, accomplice)[0] for owner in owners])
    clusters = np.concatenate([owner.clusters for owner in owners])
    is_own = np.concatenate([np.full(len(owner.clusters), owner.site == victim) for owner in owners])
    sums, norms = (
        _open_cluster_sums(run, victim, accomplice, read_clusters(assignment)),
        np.zeros(len(victim_clusters)),
    )
    for number in np.unique(victim_clusters):
        # A cluster's sum is Σ norm · direction over its rows: d equations in as many unknowns as it has rows.
        among = clusters == number
        solved, _, rank, _ = np.linalg.lstsq(directions[among].T, sums[number], rcond=None)
        if rank < among.sum():
            return None
        norms[victim_clusters == number] = solved[is_own[among]]
    return norms


def _open_cluster_sums(run: RecordedRun, victim: str, accomplice: str, assigned: AssignedClusters) -> Rows:
    """Return the sums (G, d) over clusters: of all sites' rows, or under ``ckks`` of the victim's."""
    agreement, number = run.agreement, len(assigned.labels)
    if agreement.protection.ckks_key:
        payload = run.payload(victim)
        values = decrypt_sum(run, accomplice, payload, EncryptedClusterSum(agreement, number))
        own = agreement.clustering
        return own.split(values[: own.length(number, agreement.dim)], number, agreement.dim)[0]
    clusters, _ = open_clusters(run, victim, run.result(victim)[1])
    return np.asarray(clusters.rows * assigned.rows.sum(axis=0)[:, None])


def _decrypt_rows(run: RecordedRun, site: str, payload: Payload) -> Rows:
    """Decrypt an upload of prototypes: rows (K, d) in feature units."""
    agreement, secret = run.agreement, load_ckks_key(run, site)
    if agreement.sums:
        values = decrypt_sum(run, site, payload, EncryptedSum(agreement))
        return agreement.layout.split(values[: agreement.layout.length])[0]
    packing = Packing(len(agreement.classes), agreement.dim)
    forms = upload_shapes(Combination(agreement.pfpl.weighting.value), packing.parts)
    vectors = [secret.decrypt(ciphertext) for ciphertext in read_payload(payload, forms)[: packing.parts]]
    return packing.unpack(vectors) * agreement.norm_bound


_LESS = ", less the colluding sites' own prototypes"


@dataclass(frozen=True)
class LearnedRows:
    """Vectors for the victim's prototypes: ``rows`` (M, d) in feature units, of classes ``labels`` (M,).

    ``reading`` says in words what the vectors are. ``initial`` is true if they are features of the initial model, not
    of the model of the last round. ``details`` are figures on the reading by name.
    """

    reading: str
    rows: Rows = field(repr=False)
    labels: Labels = field(repr=False)
    initial: bool = False
    details: Mapping[str, float] = field(default_factory=dict)

    def of_class(self, number: int) -> Rows:
        """Return the rows of one class, (m, d)."""
        return np.asarray(self.rows[self.labels == number])


def result_readings(run: RecordedRun, victim: str, sites: Sequence[str]) -> Iterator[LearnedRows]:
    """Yield what colluding ``sites`` learn from their results and their own prototypes."""
    match run.agreement.method.traits.family:
        case Family.PEERS:
            yield from _combination_readings(run, victim, sites)
        case Family.CLUSTERS:
            yield from cluster_readings(run, victim, sites)
        case _:
            yield from mean_readings(run, victim, sites)


# Sums over sites, or over groups of sites


def mean_readings(
    run: RecordedRun, victim: str, sites: Sequence[str], *, coordinator: bool = False
) -> Iterator[LearnedRows]:
    """Yield the mean over the holders of each class in the victim's sum, less the prototypes of colluding ``sites``."""
    agreement = run.agreement
    if not agreement.layout.classes or agreement.distributed_noise:
        return
    group, means = find_group(run, victim), find_means(run, victim, sites, coordinator=coordinator)
    colluders = sorted(set(sites) & set(group)) if means else []
    mean = means[0] if means else open_means(run, sites[0], run.result(sites[0])[1])
    sent = np.intersect1d(
        np.flatnonzero(list_holdings(run, group)[group.index(victim)]), run.sites[victim].labels
    )
    shared = sent[mean.has[sent]]
    left = [_subtract_colluders(run, group, colluders, int(k), mean.rows[k]) for k in shared]
    one_group = len(list_groups(run)) == 1
    name = "the mean over sites" if one_group else "the mean over its group's sites"
    words = (name if means else "a mixture of all groups' means") + (_LESS if colluders else "")
    details = {} if one_group else {"solutions of the groups' mixtures": float(len(means))}
    yield LearnedRows(words, np.array(left).reshape(-1, agreement.dim), shared, details=details)


def _subtract_colluders(
    run: RecordedRun, group: Sequence[str], colluders: Sequence[str], number: int, mean: Rows
) -> Rows:
    """Return the mean (d,) of one class over the group's holders, less the ``colluders``' rows."""
    holders = [name for name in group if number in run.sites[name].labels]
    colluding_rows = [run.sites[name].received.local[number] for name in colluders if name in holders]
    return np.asarray(
        (len(holders) * mean - np.sum(colluding_rows, axis=0)) / (len(holders) - len(colluding_rows))
    )


# Sums over clusters


def cluster_readings(run: RecordedRun, victim: str, sites: Sequence[str]) -> Iterator[LearnedRows]:
    """Yield the means of the clusters with a row of the victim, less the rows of colluding ``sites``.

    Without sites, the clusters are the coordinator's. Without an assignment, all clusters are read as they are.
    """
    site = sites[0] if sites else victim
    clusters, _ = open_clusters(run, site, run.result(site)[1])
    assignment = read_assignment(run)
    if assignment is None:
        yield LearnedRows("the clusters of all sites", clusters.rows, clusters.labels)
        return
    assigned = read_clusters(assignment)
    counts, has = assigned.rows.sum(axis=0), assigned.rows[assigned.sites.index(victim)] > 0
    sums = counts[:, None] * clusters.rows
    for site_rows in assignment.sites:
        if site_rows.site in sites:
            np.subtract.at(sums, site_rows.clusters, assigned_rows(run, site_rows))
            counts = counts - np.bincount(site_rows.clusters, minlength=len(counts))
    words = "the clusters with its prototypes" + (_LESS if sites else "")
    yield LearnedRows(words, sums[has] / counts[has, None], clusters.labels[has])


def assigned_rows(run: RecordedRun, assigned: AssignedRows) -> Rows:
    """Return the site's local prototypes (M, d) as assigned: those of classes that are not withheld."""
    site = run.sites[assigned.site]
    return np.asarray(site.rows[np.isin(site.labels, assigned.classes)])


# Combinations of peers


def _combination_readings(run: RecordedRun, victim: str, sites: Sequence[str]) -> Iterator[LearnedRows]:
    """Yield the combination of peers that a site received, or the prototypes that several sites solve theirs for.

    The equations do not say whose a solved row is, so that a class has the rows of all sites that were solved for. A
    class without a solution has the combination of peers. A second round is read where it chooses among solutions.
    """
    shared = [
        int(k)
        for k in np.unique(run.sites[victim].labels)
        if any(run.sites[name].received.has_personal[k] for name in sites)
    ]
    solved = {k: solve_class(run, tuple(sites), k) for k in shared}
    if len(sites) == 1:
        yield _join_classes(run, "the combination of its peers that it received", solved)
    elif run.agreement.pfpl.weighting is Weighting.UNIFORM:
        yield _join_classes(run, "the mean over sites" + _LESS, solved)
    else:
        yield _with_solution_counts(
            _join_classes(run, "prototypes solved from the sites' results", solved), solved
        )
    if all(run.earlier.values()) and any(len(solution.plausible) > 1 for solution in solved.values()):
        before = {k: solve_class(run, tuple(sites), k, earlier=True) for k in shared}
        chosen = {k: solution.near(before[k]) for k, solution in solved.items()}
        words = "prototypes solved from two rounds of the sites' results"
        yield _with_solution_counts(_join_classes(run, words, chosen), chosen)


def _join_classes(run: RecordedRun, reading: str, solved: Mapping[int, ClassSolutions]) -> LearnedRows:
    rows = [solution.rows for solution in solved.values()]
    labels = np.repeat(np.array([*solved], dtype=np.int64), [len(part) for part in rows])
    return LearnedRows(reading, np.concatenate([np.empty((0, run.agreement.dim)), *rows]), labels)


def _with_solution_counts(learned: LearnedRows, solved: Mapping[int, ClassSolutions]) -> LearnedRows:
    """Return the reading with the mean numbers of solutions of a class's equations."""
    numbers = {
        "solutions of a class": [len(solution.every) for solution in solved.values()],
        "plausible solutions of a class": [len(solution.plausible) for solution in solved.values()],
    }
    details = {name: float(np.mean(counts)) for name, counts in numbers.items() if counts}
    return replace(learned, details=details)


LENGTHS = "lengths of its rows, which a rotation keeps"


def group_by_reading(views: Mapping[str, Sequence[LearnedRows]]) -> dict[str, dict[str, LearnedRows]]:
    """Return for each reading what was read of each site that has it."""
    grouped: dict[str, dict[str, LearnedRows]] = {}
    for site, learned_rows in views.items():
        for learned in learned_rows:
            grouped.setdefault(learned.reading, {})[site] = learned
    return grouped


def add_length_readings(run: RecordedRun, learned: Sequence[LearnedRows]) -> list[LearnedRows]:
    """Return the readings, and after rotated rows their lengths, (M, 1)."""
    readings_and_lengths = []
    for reading in learned:
        readings_and_lengths.append(reading)
        if run.agreement.plan.values is PayloadKind.ROWS and "as they are" in reading.reading:
            lengths = np.linalg.norm(reading.rows, axis=1, keepdims=True)
            readings_and_lengths.append(replace(reading, reading=LENGTHS, rows=lengths))
    return readings_and_lengths
