"""Means that an adversary reads from a recorded run's last round: received, opened, decrypted, or solved for.

The coordinator's sums come from the coordinator's own code, on the messages that it received. A site opens the results
and sums that it downloaded, under ``ckks`` with the key that every site holds.

With J groups (FedPC), a site receives a mixture of the groups' means. One site of each group together have all J
mixtures, which are J equations in J means. Only the J·(J − 1)/2 cosines that weigh the mixtures are unknown, and these
follow from the means: least squares from random starts finds the cosines, and so each group's prototypes and model.
The other members of the victim's group then subtract their own. For a group of g sites, g + J − 2 colluding sites read
the last one.

Limits: of several solutions, the one that fits best is taken. No solution is attempted for a victim that is alone in
its group, or with shared noise. One site solves for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares  # type: ignore[import-untyped]  # it ships no types

from agreement import Agreement
from agreement.derived.cohorts import group_cohort
from agreement.derived.encrypted_sums import EncryptedClusterSum, EncryptedGroups, EncryptedSum
from agreement.derived.means import Means
from agreement.derived.payload_shapes import limits_of, result_shape, sums_shape
from agreement.registry.round_plan import PayloadKind
from algorithms.fedpc import Groups, mix_groups
from algorithms.fedplcc import GlobalClusters
from algorithms.gram_matrix import Bool
from crypto.ckks.group_mixing import MixingSite
from crypto.ckks.secret_key import CkksSecret
from crypto.ckks.sums import SummingSite
from crypto.keys import KEY_BYTES
from crypto.pki.identity import load_certificate, p256_key
from crypto.pki.trust import fingerprint
from crypto.protection import Payload, whole_numbers
from crypto.roster import Member, Roster
from protoseal.attacks.recorded_run import RecordedRun, Rows, cached_in_run
from protoseal_wire import codec
from protoseal_wire.messages import ActiveList, Assignment, Phase, PhaseKey
from secure_client.exchanges.clusters import read_cleartext_clusters
from secure_client.exchanges.sum_halves import read_cleartext_means
from secure_server.exchanges.exchange import Attempt, ExchangeParts, build_half

# Results, as a site opens them


def load_ckks_key(run: RecordedRun, site: str) -> CkksSecret:
    """Return the CKKS key that the site holds."""
    return CkksSecret.from_bytes(run.setups[site].group[KEY_BYTES:])


def open_means(run: RecordedRun, site: str, content: bytes) -> Means:
    """Return the means in a result that the site received, of a method that sums without clusters."""
    agreement, payload = run.agreement, _decode_result(run, content)
    match agreement.plan.result:
        case PayloadKind.CIPHERTEXTS if agreement.method.is_grouped:
            groups = EncryptedGroups(agreement)
            return groups.mixed(MixingSite(load_ckks_key(run, site), groups.form).unprotect(payload))
        case PayloadKind.CIPHERTEXTS:
            return _decrypt_means(run, site, payload)
        case PayloadKind.PEER_SUMS:
            total, holders = payload.arrays
            rows, model = agreement.layout.split(total)
            return Means(rows / holders.clip(1.0)[:, None], holders > 0.0, model)
        case _:
            return read_cleartext_means(agreement, payload, payload.scheme)


def open_clusters(run: RecordedRun, site: str, content: bytes) -> tuple[GlobalClusters, Rows]:
    """Return the clusters and the mean model (p + q,) in a result that the site received."""
    agreement, payload = run.agreement, _decode_result(run, content)
    if agreement.plan.result is PayloadKind.CLUSTERS:
        return read_cleartext_clusters(agreement, payload, payload.scheme)
    labels = whole_numbers(payload.arrays[0], len(agreement.classes))
    sums = EncryptedClusterSum(agreement, len(labels))
    return sums.means(decrypt_sum(run, site, payload, sums), labels)


def decrypt_sum(
    run: RecordedRun, site: str, payload: Payload, sums: EncryptedSum | EncryptedClusterSum
) -> Rows:
    """Decrypt an upload to sums of ciphertexts, or a sum of uploads, with the site's key."""
    ciphertexts = Payload(payload.scheme, blobs=payload.blobs)
    return SummingSite(load_ckks_key(run, site), sums.form).unprotect(ciphertexts, run.agreement.max_sites)


def _decrypt_means(run: RecordedRun, site: str, payload: Payload) -> Means:
    sums = EncryptedSum(run.agreement)
    return sums.means(sums.opened(decrypt_sum(run, site, payload, sums)))


def _decode_result(run: RecordedRun, content: bytes) -> Payload:
    return codec.decode_payload(content, limits_of(run.agreement), result_shape(run.agreement))


# Members of the round


def find_group(run: RecordedRun, site: str) -> tuple[str, ...]:
    """Return the participants of the site's group; every site and the coordinator know all groups."""
    return next(group for group in list_groups(run) if site in group)


@cached_in_run
def list_groups(run: RecordedRun) -> tuple[tuple[str, ...], ...]:
    """Return the participants of the last round by their groups, as every site was told."""
    limits, form = limits_of(run.agreement), result_shape(run.agreement)
    content = _find_request(run, min(run.sites), Phase.PRESENCE)
    there = {statement.site for statement in read_active_list(run).statements}
    groups = codec.decode_round_start(content, limits, form).groups
    return tuple(tuple(site for site in group if site in there) for group in groups)


def list_holdings(run: RecordedRun, group: tuple[str, ...]) -> Bool:
    """Return the classes (n, K) that each member of a group adds to the group's sum, as its members stated."""
    return group_cohort(read_active_list(run), group, run.agreement).holds


def read_assignment(run: RecordedRun) -> Assignment | None:
    """Return the assignment to clusters that every site was sent; None under ``plain``, where no site is."""
    plan = run.agreement.plan
    if Phase.DIRECTIONS not in plan.phases:
        return None
    phase = plan.phases[1]  # the step after DIRECTIONS brings the assignment
    return codec.decode_assignment(_find_request(run, min(run.sites), phase), limits_of(run.agreement))


def read_active_list(run: RecordedRun) -> ActiveList:
    """Return the statements of the last round's participants, as every site was sent them."""
    content = _find_request(run, min(run.sites), run.agreement.plan.phases[0])
    return codec.decode_active_list(content, limits_of(run.agreement))


def _find_request(run: RecordedRun, site: str, phase: Phase) -> bytes:
    """Return what the site downloaded for a step of the last attempt."""
    key = replace(_last_attempt(run), phase=phase)
    return dict(run.downloads[site])[key]


def _last_attempt(run: RecordedRun) -> PhaseKey:
    return replace(run.result(min(run.sites))[0], phase=Phase.PRESENCE)


# Groups' means


def decrypt_leader_means(run: RecordedRun, group: tuple[str, ...]) -> Means:
    """Return the group's means under ``ckks``, which its leader, the first by name, decrypts and nobody else receives.

    Only for a method with groups.
    """
    leader = min(group)
    content = _find_request(run, leader, Phase.MEANS)
    payload = codec.decode_payload(content, limits_of(run.agreement), sums_shape(run.agreement))
    return _decrypt_means(run, leader, payload)


@cached_in_run
def open_coordinator_means(run: RecordedRun, group: tuple[str, ...]) -> Means:
    """Return the group's means as the coordinator opens them under ``plain`` and ``masked``.

    The result of a single group is its mean, so the coordinator's code computes the result of this group alone.
    """
    # With one group left, the coordinator's own code mixes nothing, and its result is the group's mean.
    attempt = replace(_rebuild_attempt(run), groups=(group,))
    parts = ExchangeParts(run.agreement, limits_of(run.agreement), keys_path=Path())
    outcome = build_half(parts).outcome(attempt)
    result = outcome.results[group[0]]
    return read_cleartext_means(run.agreement, result, result.scheme)


def _rebuild_attempt(run: RecordedRun) -> Attempt:
    """Return the coordinator's view of the last attempt, from the messages that it received and sent."""
    attempt_key = _last_attempt(run)
    answers = {
        (received.key, received.site): received.content
        for received in run.received
        if received.key is not None
    }
    survivors = {
        phase: tuple(sorted(site for key, site in answers if key == replace(attempt_key, phase=phase)))
        for phase in run.agreement.plan.phases
    }
    return Attempt(
        key=attempt_key,
        roster=_rebuild_roster(run),
        active=read_active_list(run),
        groups=list_groups(run),
        survivors=survivors,
        answer=lambda phase, site: answers[replace(attempt_key, phase=phase), site],
    )


def _rebuild_roster(run: RecordedRun) -> Roster:
    """Return the roster, with the hash that the sites answered."""
    limits = limits_of(run.agreement)
    request = [content for key, content in run.downloads[min(run.sites)] if key.phase is Phase.ROSTER][-1]
    answer = [
        received.content for received in run.received if received.key and received.key.phase is Phase.ROSTER
    ][-1]
    members = {}
    for statement in codec.decode_roster(request, limits).statements:
        certificate = load_certificate(statement.certificate)
        members[statement.site] = Member(
            statement.site, statement.channel_key, p256_key(certificate), fingerprint(certificate)
        )
    return Roster(members, codec.decode_roster_answer(answer, limits).roster_hash)


_STARTS, _STEP = 12, 1e-14
_ROOT, _SAME = 1e-4, 1e-3
"""Largest relative error of a mixture at a solution, which leaves room for CKKS, and difference of equal cosines."""


def find_means(
    run: RecordedRun, victim: str, sites: Sequence[str], *, coordinator: bool = False
) -> tuple[Means, ...]:
    """Return the means of the sum with the victim's values; none if ``sites`` (and the coordinator) have a mixture.

    For a method that sums in groups or over all sites. Several are solutions of the same equations, the best first.
    Under ``ckks`` the coordinator needs a site.
    """
    group, encrypted = find_group(run, victim), run.agreement.protection.ckks_key
    if len(list_groups(run)) == 1:
        site = sites[0] if sites else victim
        return (open_means(run, site, run.result(site)[1]),)
    if coordinator and not encrypted:
        return (open_coordinator_means(run, group),)
    if encrypted and min(group) in sites:
        return (decrypt_leader_means(run, group),)
    return solve_means(run, victim, tuple(sites))


@cached_in_run
def solve_means(run: RecordedRun, victim: str, sites: tuple[str, ...]) -> tuple[Means, ...]:
    """Return the means of the victim's group that ``sites`` solve their results for; none without one of each group."""
    agreement, groups = run.agreement, list_groups(run)
    receivers = [next((site for site in group if site in sites), "") for group in groups]
    if agreement.distributed_noise or not all(receivers):
        return ()
    hidden = next(index for index, group in enumerate(groups) if victim in group)
    results = [open_means(run, site, run.result(site)[1]) for site in receivers]
    mixed = Groups(
        np.array([result.rows for result in results]),
        np.array([result.has for result in results]),
        np.array([result.model for result in results]),
    )
    has = np.array([list_holdings(run, group).sum(axis=0) >= agreement.min_holders for group in groups])
    return tuple(
        Means(solution.rows[hidden], solution.has[hidden], solution.theta[hidden])
        for solution in unmix_groups(agreement, mixed, has)
    )


def unmix_groups(agreement: Agreement, mixed: Groups, has: Bool) -> list[Groups]:
    """Return the groups' means that have these mixtures, one for each solution, the best first.

    ``mixed`` are the J groups' mixtures; ``has`` (J, K) says which classes each group has.
    """
    upper = np.triu_indices(len(has), 1)
    literal, scale = agreement.fedpc.literal, float(np.abs(mixed.rows).max()) or 1.0

    def means(cosines: Rows, theta: Rows) -> Groups:
        # The cosines fix the weights of the mixtures, and then the means solve linear equations.
        weights = np.eye(len(has))
        weights[upper] = weights.T[upper] = cosines
        weights /= weights.sum(axis=1, keepdims=True)
        rows = np.zeros(mixed.rows.shape)
        for k in range(has.shape[1]):
            shares = weights[np.ix_(mixed.has[:, k], has[:, k])]
            divisors = 1.0 if literal else shares.sum(axis=1, keepdims=True)
            rows[has[:, k], k] = np.linalg.lstsq(
                shares / divisors, mixed.rows[mixed.has[:, k], k], rcond=None
            )[0]
        return Groups(rows, has, np.asarray(np.linalg.lstsq(weights, theta, rcond=None)[0], np.float64))

    def errors(cosines: Rows) -> Rows:
        # At a solution the means have the cosines that were guessed, and so mix to the same results again. Models
        # are left out: they weigh nothing, and would only cost time.
        without_models = means(cosines, np.zeros((len(has), 1)))
        again = mix_groups(without_models, literal=literal, tau=agreement.agreement_threshold)
        return np.asarray((again.rows - mixed.rows).ravel() / scale)

    ends: list[tuple[float, Rows]] = []
    for start in np.random.default_rng(0).uniform(size=(_STARTS, len(upper[0]))):
        end = least_squares(errors, start, bounds=(0, 1), xtol=_STEP, ftol=_STEP, gtol=_STEP)
        error = float(np.abs(end.fun).max())
        if error <= _ROOT and all(np.abs(end.x - other).max() > _SAME for _, other in ends):
            ends.append((error, end.x))
    return [means(cosines, mixed.theta) for _, cosines in sorted(ends, key=lambda end: end[0])]
