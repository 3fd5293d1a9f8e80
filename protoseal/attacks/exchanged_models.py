"""Models that an adversary reads in a recorded run, of the methods that average models or extractors.

Colluding sites subtract their own models from the mean of the victim's sum.

Limits: the sites' numbers of samples are taken as known. Colluding sites subtract nothing from a mixture of several
groups' models (FedPC) that they cannot solve for the victim's group (:mod:`protoseal.attacks.opened_sums`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from agreement import Agreement
from agreement.derived.encrypted_sums import EncryptedClusterSum, EncryptedSum
from agreement.registry.round_plan import PayloadKind
from protoseal.attacks.opened_sums import decrypt_sum, find_group, find_means, open_clusters, open_means
from protoseal.attacks.readings import Adversary, choose_accomplice, colluding_sites
from protoseal.attacks.recorded_run import RecordedRun, Rows
from protoseal_wire.messages import Phase
from secure_client.checkpoints.learner_factory import build_agreed_model
from secure_client.models.prototype_model import PrototypeModel
from secure_client.training.averaged_parameters import AveragedPart


@dataclass(frozen=True)
class ExchangedModel:
    """Averaged part of a model, ``vector`` (p + q,), over the uploads of ``sites`` sites, the victim's among them."""

    reading: str
    vector: Rows = field(repr=False)
    sites: int = 1


def read_models(run: RecordedRun, adversary: Adversary, victim: str) -> Iterator[ExchangedModel]:
    """Yield the models that the adversary reads in the last round; none for a method that exchanges no models."""
    agreement = run.agreement
    if not agreement.method.averages:
        return
    encrypted = agreement.protection.ckks_key
    if adversary is Adversary.COORDINATOR or (adversary is Adversary.COLLUSION and not encrypted):
        yield _read_upload(run, victim)
    if adversary is Adversary.COLLUSION and encrypted:
        yield ExchangedModel(
            "its model, decrypted by a site's key",
            _decrypt_model(run, victim, choose_accomplice(run, victim)),
        )
    elif adversary is not Adversary.COORDINATOR or not encrypted:
        opens = adversary in (Adversary.COORDINATOR, Adversary.COLLUSION)
        sites = colluding_sites(run, adversary, victim)
        yield read_average(run, victim, sites, coordinator=opens)


def find_base(run: RecordedRun, site: str) -> Rows:
    """Return the averaged part (p + q,) that the site's last round began with: a result's, or the initial model's."""
    earlier = [
        content
        for key, content in run.downloads[site]
        if key.phase is Phase.RESULT and 0 < key.round < run.agreement.rounds
    ]
    if earlier:
        return _open_model(run, site, earlier[-1])
    agreement = run.agreement
    initial = build_agreed_model(agreement, agreement.training.model, run.config.pretrained)
    return AveragedPart(initial, agreement.method.traits.averaged).vector()


def load_model(run: RecordedRun, vector: Rows) -> PrototypeModel:
    """Return the initial model with ``vector`` (p + q,), within the agreed bounds, as its averaged part."""
    agreement = run.agreement
    # What is read from random bytes exceeds every bound, and would overflow.
    bounds = np.full(len(vector), agreement.averaging.buffer_bound)
    bounds[: agreement.averaging.parameters] = agreement.averaging.parameter_bound
    model = build_agreed_model(agreement, agreement.training.model, run.config.pretrained)
    AveragedPart(model, agreement.method.traits.averaged).load(
        np.clip(np.nan_to_num(vector), -bounds, bounds)
    )
    return model.eval()


def _read_upload(run: RecordedRun, victim: str) -> ExchangedModel:
    """Read the victim's upload as if it were not protected."""
    agreement = run.agreement
    payload = run.payload(victim)
    length = agreement.layout.length
    match agreement.plan.values:
        case PayloadKind.VECTOR | PayloadKind.LOCAL_CLUSTERS:
            return ExchangedModel("its model", _divide_by_weight(agreement, payload.arrays[-1]))
        case PayloadKind.WORDS:
            words = payload.words[0][-length:]
            signed = words.view(np.int64 if words.dtype == np.uint64 else np.int32).astype(np.float64)
            numbers = signed * agreement.fixed_point().resolution
            return ExchangedModel("its masked words, read as numbers", _divide_by_weight(agreement, numbers))
        case _:
            # The last bytes are of coefficients; a header comes first.
            content = b"".join(payload.blobs)[-8 * length :].ljust(8 * length, b"\0")
            numbers = np.frombuffer(content, dtype="<i8") / 2.0**63
            return ExchangedModel("its ciphertexts, read as numbers", _divide_by_weight(agreement, numbers))


def _divide_by_weight(agreement: Agreement, contribution: Rows) -> Rows:
    """Return the model (p + q,) of a contribution (L,), divided by its weight."""
    _, model = agreement.layout.split(contribution)
    weight = float(contribution[-1]) if agreement.layout.weighted else 1.0
    return np.asarray(model / (weight or 1.0))


def _decrypt_model(run: RecordedRun, victim: str, accomplice: str) -> Rows:
    agreement, length = run.agreement, run.agreement.layout.length
    payload = run.payload(victim)
    if not agreement.clusters:
        values = decrypt_sum(run, accomplice, payload, EncryptedSum(agreement))
        return _divide_by_weight(agreement, values[:length])
    clusters, _ = open_clusters(run, accomplice, run.result(accomplice)[1])
    values = decrypt_sum(run, accomplice, payload, EncryptedClusterSum(agreement, len(clusters.labels)))
    return _divide_by_weight(agreement, values[-length - 1 : -1])


def read_average(
    run: RecordedRun, victim: str, colluders: Sequence[str], *, coordinator: bool
) -> ExchangedModel:
    """Return the averaged model that the adversary has, less the ``colluders``' own models."""
    group, mean = find_group(run, victim), _open_mean_model(run, victim, colluders, coordinator=coordinator)
    if mean is None:
        mixed = _open_model(run, colluders[0], run.result(colluders[0])[1])
        return ExchangedModel("a mixture of all groups' averaged models", mixed, len(run.sites))
    colluders = [name for name in colluders if name in group]
    if not colluders:
        return ExchangedModel("the averaged model", mean, len(group))
    # A mean over samples weighs sites by their counts, which the agreement cuts off.
    weight_limit = run.agreement.averaging.most_samples if run.agreement.layout.weighted else 1
    weights = {name: min(len(run.sites[name].train), weight_limit) for name in group}
    own = np.sum([weights[name] * run.sites[name].averaged for name in colluders], axis=0)
    left = sum(weights.values()) - sum(weights[name] for name in colluders)
    words = "the averaged model, less the colluding sites' own models"
    return ExchangedModel(words, (sum(weights.values()) * mean - own) / left, len(group) - len(colluders))


def _open_mean_model(
    run: RecordedRun, victim: str, colluders: Sequence[str], *, coordinator: bool
) -> Rows | None:
    """Return the averaged model (p + q,) of the victim's sum, None if the adversary only has a mixture."""
    if run.agreement.clusters:
        site = colluders[0] if colluders else victim
        return _open_model(run, site, run.result(site)[1])
    means = find_means(run, victim, colluders, coordinator=coordinator)
    return means[0].model if means else None


def _open_model(run: RecordedRun, site: str, content: bytes) -> Rows:
    """Return the averaged model in a result that the site received, decrypted with its key where it is encrypted."""
    if run.agreement.clusters:
        return open_clusters(run, site, content)[1]
    return open_means(run, site, content).model
