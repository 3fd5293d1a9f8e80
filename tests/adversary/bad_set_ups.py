"""Answers to ROSTER that no honest site gives, above all group keys: what each is, and how it is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from grpc import StatusCode

from agreement.derived.payload_shapes import limits_of
from crypto.ckks.evaluation_keys import EvaluationKeys
from crypto.ckks.secret_key import CkksSecret
from crypto.errors import MalformedError, UnknownSchemeError, VerificationError
from crypto.sealed_group_secret import SealedSecret, seal_group_secret
from protoseal_wire import codec
from protoseal_wire.messages import GroupKeys, RosterAnswer
from secure_server import errors
from tests.adversary.stopped_run import Scene, Upload
from tests.support.seal_keys import FULL, key_set

A, B = "clinic-a", "clinic-b"
INVALID = StatusCode.INVALID_ARGUMENT

Case = tuple[type[Exception], StatusCode, Callable[[Scene], Upload]]


def _roster_answer(scene: Scene, **changes: object) -> Upload:
    answer = codec.decode_roster_answer(scene.honest, limits_of(scene.federation.agreement))
    return scene.upload(codec.encode_roster_answer(replace(answer, **changes)))  # type: ignore[arg-type]


def _with_keys(scene: Scene) -> Upload:
    """Group keys from a site that is not their maker: what the maker would send."""
    made = scene.other(A).session.answer(scene.key, scene.request)
    return scene.upload(made)


def _keys_changed(change: Callable[[RosterAnswer], RosterAnswer]) -> Callable[[Scene], Upload]:
    def upload(scene: Scene) -> Upload:
        answer = codec.decode_roster_answer(scene.honest, limits_of(scene.federation.agreement))
        return scene.upload(codec.encode_roster_answer(change(answer)))

    return upload


def _keys(answer: RosterAnswer, **changes: object) -> RosterAnswer:
    assert answer.keys is not None
    return replace(answer, keys=replace(answer.keys, **changes))  # type: ignore[arg-type]


def _relinearisation_of(answer: RosterAnswer, entries: list[int]) -> bytes:
    """Return the maker's evaluation keys with another set to relinearise."""
    assert answer.keys is not None
    honest = EvaluationKeys.from_bytes(answer.keys.evaluation_keys)
    return EvaluationKeys(key_set(entries), honest.rotation).to_bytes()


def _swapped_recipients(answer: RosterAnswer) -> RosterAnswer:
    assert answer.keys is not None
    first, second, *others = answer.keys.sealed
    swapped = replace(first, recipient=second.recipient), replace(second, recipient=first.recipient)
    return _keys(answer, sealed=(*swapped, *others))


def _sealed(answer: RosterAnswer, *order: int) -> RosterAnswer:
    assert answer.keys is not None
    return _keys(answer, sealed=tuple(answer.keys.sealed[index] for index in order))


def _first_sealed(change: Callable[[Scene, SealedSecret], SealedSecret]) -> Callable[[Scene], Upload]:
    """Return the group keys with the first sealed secret changed."""

    def upload(scene: Scene) -> Upload:
        def changed(answer: RosterAnswer) -> RosterAnswer:
            assert answer.keys is not None
            first, *others = answer.keys.sealed
            return _keys(answer, sealed=(change(scene, first), *others))

        return _keys_changed(changed)(scene)

    return upload


def _sealed_for(scene: Scene, sealed: SealedSecret, run: str, attempt: int) -> SealedSecret:
    """Return the maker's own sealed secret, but for this run and attempt."""
    party = next(each for each in scene.federation.parties if each.name == A)
    return seal_group_secret(
        party.credentials,
        scene.coordinator.roster(),
        run,
        attempt,
        recipient=sealed.recipient,
        secret=b"secret",
        public_hash=sealed.public_hash,
    )


TINY_SECRET = SealedSecret(B, A, b"h" * 32, b"h" * 32, bytes(64), bytes(70))
UNSIGNED: Case = (
    VerificationError,
    INVALID,
    _first_sealed(lambda _, sealed: replace(sealed, signature=bytes(70))),
)
SEALED: dict[str, Case] = {
    "a secret without signature": UNSIGNED,
    "a secret signed for another": (
        VerificationError,
        INVALID,
        _keys_changed(_swapped_recipients),
    ),
    "a secret of another maker": (
        VerificationError,
        INVALID,
        _first_sealed(lambda _, sealed: replace(sealed, maker=B)),
    ),
    "a secret of another roster": (
        VerificationError,
        INVALID,
        _first_sealed(lambda _, sealed: replace(sealed, roster_hash=b"h" * 32)),
    ),
    "a secret of another run": (
        VerificationError,
        INVALID,
        _first_sealed(lambda scene, sealed: _sealed_for(scene, sealed, "run-2", scene.key.attempt)),
    ),
    "a secret of another attempt": (
        VerificationError,
        INVALID,
        _first_sealed(lambda scene, sealed: _sealed_for(scene, sealed, scene.key.run, scene.key.attempt + 1)),
    ),
}
OTHER_HASH: Case = (errors.BadPayload, INVALID, lambda s: _roster_answer(s, roster_hash=b"h" * 32))
MAKERS: dict[str, Case] = {
    "another roster's hash": OTHER_HASH,
    "no keys": (errors.BadPayload, INVALID, lambda s: _roster_answer(s, keys=None)),
    "a recipient too few": (errors.BadPayload, INVALID, _keys_changed(lambda a: _sealed(a, 0, 1))),
    "a recipient twice": (errors.BadPayload, INVALID, _keys_changed(lambda a: _sealed(a, 0, 1, 1))),
    "no evaluation keys": (
        MalformedError,
        INVALID,
        _keys_changed(lambda a: _keys(a, evaluation_keys=b"protoseal-ckks-evaluation-1:" + bytes(64))),
    ),
    "evaluation keys with a key of a part too few": (
        MalformedError,
        INVALID,
        _keys_changed(lambda a: _keys(a, evaluation_keys=_relinearisation_of(a, [FULL - 1]))),
    ),
    "evaluation keys of another hash than sealed": (
        errors.BadPayload,
        INVALID,
        _keys_changed(lambda a: _keys(a, evaluation_keys=CkksSecret.generate()[1].to_bytes())),
    ),
    "evaluation keys without marker": (
        UnknownSchemeError,
        INVALID,
        _keys_changed(lambda a: _keys(a, evaluation_keys=b"keys")),
    ),
}
NOT_MAKERS: dict[str, Case] = {
    "keys of a site that is not their maker": (
        errors.UploadTooLarge,
        StatusCode.RESOURCE_EXHAUSTED,
        _with_keys,
    ),
    "keys, however few, of a site that is not their maker": (
        errors.BadPayload,
        INVALID,
        lambda s: _roster_answer(s, keys=GroupKeys(b"keys", (TINY_SECRET,))),
    ),
}
