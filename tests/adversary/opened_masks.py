"""Steps of a hostile coordinator beyond a masked sum: secrets that it rebuilds, masks and uploads that it opens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agreement.derived.cohorts import cohort_of
from crypto.ckks.packing import Packing
from crypto.ckks.parameters import upload_shapes
from crypto.ckks.secret_key import CkksSecret
from crypto.ckks.serialization import read_payload
from crypto.pairwise.attempt import SharePair
from crypto.pairwise.masks import add_streams, pair_keys, self_key
from crypto.pairwise.shares import ReleasedShare, ShareKind
from crypto.protection import Combination, Payload
from crypto.shamir import combine
from protoseal_wire.messages import ActiveList, Phase, PhaseKey
from tests.support.scripted_coordinator import Rows, ScriptedCoordinator
from tests.support.scripted_sums import SumAttempt, Vector


def rebuild_secret(
    attempt: SumAttempt, owner: str, kind: ShareKind, released: Mapping[str, Iterable[ReleasedShare]]
) -> bytes:
    """Return a site's secret, out of enough shares of one kind by who released them."""
    shares = {
        attempt.binding.position(site): share.share
        for site, answer in released.items()
        for share in answer
        if (share.owner, share.kind) == (owner, kind)
    }
    return combine(shares, attempt.graph.threshold)


def shares_of_colluder(attempt: SumAttempt, name: str) -> dict[str, SharePair]:
    """Return all that a colluding site holds of the others' secrets, once it was asked for values."""
    exchange = attempt.play.site(name).session._exchange
    key = PhaseKey(attempt.play.agreement.run, attempt.round, attempt.number, Phase.UNMASK)
    received = exchange._masks._request(key, Phase.VALUES)  # type: ignore[attr-defined]
    return exchange._masks._open_shares(key, received, attempt.binding)  # type: ignore[attr-defined, no-any-return]


def open_alone(attempt: SumAttempt, site: str, seed: bytes, keys: Mapping[str, bytes]) -> Vector:
    """Return one site's vector, from its self-mask's seed and the key of each pairwise mask, by peer."""
    binding = attempt.binding
    minus = [self_key(seed, binding, site)] + [key for peer, key in keys.items() if site < peer]
    plus = [key for peer, key in keys.items() if peer < site]
    words = add_streams(attempt.masked[site], plus, minus)
    return attempt.fixed_point.decode_sum(words, 1)


def mask_keys_from(attempt: SumAttempt, site: str, private: bytes) -> dict[str, bytes]:
    """Return the keys of all pairwise masks of a site, from its own mask key."""
    return pair_keys(private, attempt.public, attempt.binding, site, attempt.made, attempt.graph)


def decrypt_upload(
    play: ScriptedCoordinator, secret: CkksSecret, payload: Payload, active: ActiveList
) -> Rows:
    """Read an upload with a group secret, (K, d)."""
    cohort = cohort_of(active, play.agreement)
    packing = Packing(cohort.classes, cohort.dim)
    forms = upload_shapes(Combination(play.agreement.pfpl.weighting.value), packing.parts)
    vectors = [secret.decrypt(text) for text in read_payload(payload, forms)]
    return packing.unpack(vectors[: packing.parts])
