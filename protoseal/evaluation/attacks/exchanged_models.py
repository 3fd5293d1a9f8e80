"""Models that an adversary reads in a recorded run, of the methods that average models or extractors.

Limits: the sites' numbers of samples are taken as known. Under FedPC colluding sites do not subtract their own part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from agreement import Agreement, Family
from agreement.aggregation.encrypted_sums import EncryptedClusterSum, EncryptedGroups, EncryptedSum
from agreement.payload_forms import limits_of, result_form
from agreement.round_plan import Form
from crypto.ckks.group_mixing import MixingSite
from crypto.ckks.sums import SummingSite
from crypto.protection import Payload
from crypto.prototype_row_checks import whole_numbers
from protoseal.evaluation.attacks.adversaries import Adversary, ckks_key_of, payload_of
from protoseal.evaluation.attacks.recorded_run import RecordedRun, Rows
from protoseal_wire import codec
from protoseal_wire.messages import Phase
from secure_client.models.prototype_model import PrototypeModel
from secure_client.site_model.learner_factory import build_agreed_model
from secure_client.training.averaged_parameters import Averaged


@dataclass(frozen=True)
class Exchanged:
    """Averaged part of a model, ``vector`` (p + q,), over the uploads of ``sites`` sites, the victim's among them."""

    reading: str
    vector: Rows = field(repr=False)
    sites: int = 1


def exchanged(run: RecordedRun, adversary: Adversary, victim: str) -> Iterator[Exchanged]:
    """Yield the models that the adversary reads in the last round; none for a method that exchanges no models."""
    agreement, others = run.agreement, sorted(set(run.sites) - {victim})
    if not agreement.method.averages:
        return
    encrypted = agreement.protection.ckks_key
    if adversary is Adversary.COORDINATOR or (adversary is Adversary.COLLUSION and not encrypted):
        yield _uploaded(run, victim)
    if adversary is Adversary.COLLUSION and encrypted:
        yield Exchanged("its model, decrypted by a site's key", _decrypted(run, victim, others[0]))
    elif adversary is not Adversary.COORDINATOR or not encrypted:
        known = {Adversary.PEERS: others, Adversary.COLLUSION: others[:1]}.get(adversary, [])
        yield _mean(run, victim if adversary is Adversary.COORDINATOR else others[0], known)


def base_of(run: RecordedRun, site: str) -> Rows:
    """Return the averaged part (p + q,) that the site's last round began with: a result's, or the initial model's."""
    earlier = [content for number, content in _results(run, site) if number < run.agreement.rounds]
    if earlier:
        return _model_in(run, site, earlier[-1])
    agreement = run.agreement
    initial = build_agreed_model(agreement, agreement.training.model, run.config.pretrained)
    return Averaged(initial, agreement.method.traits.averaged).vector()


def model_with(run: RecordedRun, vector: Rows) -> PrototypeModel:
    """Return the initial model with ``vector`` (p + q,), within the agreed bounds, as its averaged part."""
    agreement = run.agreement
    most = np.full(len(vector), agreement.averaging.buffer_bound)
    most[: agreement.averaging.parameters] = agreement.averaging.parameter_bound
    model = build_agreed_model(agreement, agreement.training.model, run.config.pretrained)
    Averaged(model, agreement.method.traits.averaged).load(np.clip(np.nan_to_num(vector), -most, most))
    return model.eval()


def _uploaded(run: RecordedRun, victim: str) -> Exchanged:
    """Read the victim's upload as if it were not protected."""
    agreement = run.agreement
    payload = payload_of(run.upload(victim), agreement)
    length = agreement.layout.length
    match agreement.plan.values:
        case Form.VECTOR | Form.LOCAL_CLUSTERS:
            return Exchanged("its model", _split(agreement, payload.arrays[-1]))
        case Form.WORDS:
            words = payload.words[0][-length:]
            signed = words.view(np.int64 if words.dtype == np.uint64 else np.int32).astype(np.float64)
            numbers = signed * agreement.fixed_point().resolution
            return Exchanged("its masked words, read as numbers", _split(agreement, numbers))
        case _:
            content = b"".join(payload.blobs)[-8 * length :].ljust(8 * length, b"\0")
            numbers = np.frombuffer(content, dtype="<i8") / 2.0**63
            return Exchanged("its ciphertexts, read as numbers", _split(agreement, numbers))


def _split(agreement: Agreement, contribution: Rows) -> Rows:
    """Return the model (p + q,) of a contribution (L,), divided by its weight."""
    _, model = agreement.layout.split(contribution)
    weight = float(contribution[-1]) if agreement.layout.weighted else 1.0
    return np.asarray(model / (weight or 1.0))


def _decrypted(run: RecordedRun, victim: str, accomplice: str) -> Rows:
    agreement, length = run.agreement, run.agreement.layout.length
    payload = payload_of(run.upload(victim), agreement)
    if not agreement.clusters:
        values = _opened(run, accomplice, payload, EncryptedSum(agreement))
        return _split(agreement, values[:length])
    labels = _payload(run, _results(run, victim)[-1][1]).arrays[0]
    values = _opened(run, accomplice, payload, EncryptedClusterSum(agreement, len(labels)))
    return _split(agreement, values[-length - 1 : -1])


def _mean(run: RecordedRun, site: str, known: Sequence[str]) -> Exchanged:
    """Return the averaged model that ``site`` received, less the ``known`` sites' own, where all sites are averaged."""
    mean = _model_in(run, site, _results(run, site)[-1][1])
    if not known or run.agreement.method.traits.family is Family.GROUPS:
        return Exchanged("the averaged model", mean, len(run.sites))
    most = run.agreement.averaging.most_samples if run.agreement.layout.weighted else 1
    weights = {name: min(len(each.train), most) for name, each in run.sites.items()}
    own = np.sum([weights[name] * run.sites[name].averaged for name in known], axis=0)
    left = sum(weights.values()) - sum(weights[name] for name in known)
    words = "the averaged model, less the colluding sites' own models"
    return Exchanged(words, (sum(weights.values()) * mean - own) / left, len(run.sites) - len(known))


def _results(run: RecordedRun, site: str) -> list[tuple[int, bytes]]:
    given = [
        (key, content) for key, content in run.downloads[site] if key.phase is Phase.RESULT and key.round
    ]
    return [(key.round, content) for key, content in given]


def _payload(run: RecordedRun, content: bytes) -> Payload:
    return codec.decode_payload(content, limits_of(run.agreement), result_form(run.agreement))


def _model_in(run: RecordedRun, site: str, content: bytes) -> Rows:
    """Return the averaged model in a result that the site received, decrypted with its key where it is encrypted."""
    agreement, payload = run.agreement, _payload(run, content)
    match agreement.plan.result:
        case Form.MEANS:
            return agreement.layout.split(payload.arrays[0])[1]
        case Form.CLUSTERS:
            return agreement.layout.split(payload.arrays[-1])[1]
        case Form.LABELLED_CIPHERTEXTS:
            labels = whole_numbers(payload.arrays[0], len(agreement.classes))
            clusters = EncryptedClusterSum(agreement, len(labels))
            return clusters.means(_opened(run, site, payload, clusters), labels)[1]
        case _ if agreement.method.is_grouped:
            groups = EncryptedGroups(agreement)
            return groups.mixed(MixingSite(ckks_key_of(run, site), groups.form).unprotect(payload)).model
        case _:
            sums = EncryptedSum(agreement)
            return sums.means(sums.opened(_opened(run, site, payload, sums))).model


def _opened(run: RecordedRun, site: str, payload: Payload, sums: EncryptedSum | EncryptedClusterSum) -> Rows:
    ciphertexts = Payload(payload.scheme, blobs=payload.blobs)
    return SummingSite(ckks_key_of(run, site), sums.form).unprotect(ciphertexts, run.agreement.max_sites)
