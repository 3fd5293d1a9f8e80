"""Keys: secret and public parts are two types, both have a version, and a wrong one is refused."""

import hashlib
import pickle

import numpy as np
import pytest
from tenseal import sealapi

from crypto.ckks import evaluation_keys
from crypto.ckks.evaluation_keys import GALOIS_ELEMENTS, EvaluationKeys
from crypto.ckks.parameters import PROTOTYPE, context
from crypto.ckks.secret_key import CkksSecret
from crypto.ckks.serialization import dump, read_ciphertext
from crypto.errors import MalformedError, UnknownSchemeError
from tests.crypto.ckks_reference import group
from tests.support.seal_keys import EMPTY, FULL, key_set


def test_a_secret_that_travelled_opens_what_the_maker_encrypted() -> None:
    values = np.linspace(-1.0, 1.0, 4096)
    other = CkksSecret.from_bytes(group().secret.to_bytes())
    ciphertext = read_ciphertext(group().secret.encrypt(values, PROTOTYPE), PROTOTYPE)
    np.testing.assert_allclose(other.decrypt(ciphertext), values, atol=1e-7)


def test_two_secrets_differ() -> None:
    assert CkksSecret.generate()[0].to_bytes() != group().secret.to_bytes()


def test_representations_redact_keys() -> None:
    assert repr(group().secret) == "CkksSecret(<redacted>)"
    shown = repr(group().keys)
    assert group().keys.hash.hex()[:16] in shown
    assert len(shown) < 60


def test_a_secret_cannot_be_pickled() -> None:
    with pytest.raises(TypeError):
        pickle.dumps(group().secret)


@pytest.mark.parametrize("content", [b"", b"protoseal-ckks-secret-2:xyz", b"protoseal-ckks-evaluation-1:xyz"])
def test_a_secret_of_another_version_is_refused(content: bytes) -> None:
    with pytest.raises(UnknownSchemeError):
        CkksSecret.from_bytes(content)


def test_a_damaged_secret_is_refused() -> None:
    with pytest.raises(MalformedError):
        CkksSecret.from_bytes(group().secret.to_bytes()[:-1000])


def test_public_keys_travel_whole() -> None:
    content = group().keys.to_bytes()
    again = EvaluationKeys.from_bytes(content)
    assert again == group().keys
    assert again.hash == hashlib.sha256(content).digest()
    again.load()


def test_public_keys_do_not_carry_the_secret() -> None:
    with pytest.raises(UnknownSchemeError):
        CkksSecret.from_bytes(group().keys.to_bytes())
    with pytest.raises(MalformedError):
        EvaluationKeys(dump(group().secret._key), group().keys.rotation).load()


@pytest.mark.parametrize("content", [b"", b"protoseal-ckks-evaluation-2:xyz", b"protoseal-ckks-secret-1:xyz"])
def test_public_keys_of_another_version_are_refused(content: bytes) -> None:
    with pytest.raises(UnknownSchemeError):
        EvaluationKeys.from_bytes(content)


def test_a_hash_changes_with_either_part() -> None:
    keys = group().keys
    moved = EvaluationKeys(keys.relinearisation + keys.rotation[:1], keys.rotation[1:])
    assert len({keys.hash, moved.hash, EvaluationKeys(keys.rotation, keys.relinearisation).hash}) == 3


def rotation_keys(elements: list[int]) -> bytes:
    return dump(sealapi.KeyGenerator(context()).create_galois_keys(elements))


@pytest.mark.parametrize(
    "elements", [GALOIS_ELEMENTS[1:], GALOIS_ELEMENTS[:-1], [*GALOIS_ELEMENTS[1:], 5], [*GALOIS_ELEMENTS, 3]]
)
def test_rotation_keys_for_other_steps_are_refused(elements: list[int]) -> None:
    with pytest.raises(MalformedError, match="other rotations"):
        EvaluationKeys(group().keys.relinearisation, rotation_keys(elements)).load()


RELINEARISATION = {
    "no key": [],
    "an empty key": [EMPTY],
    "two keys": [FULL, FULL],
    "a key for another power only": [EMPTY, FULL],
    "a key of a part too few": [FULL - 1],
    "a key of a part too many": [FULL + 1],
}


@pytest.mark.parametrize("name", RELINEARISATION)
def test_relinearisation_keys_are_exactly_one_whole_key(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SEAL loads all of these, and rotation keys of the same kinds."""
    bad, good = EvaluationKeys(key_set(RELINEARISATION[name]), group().keys.rotation), key_set([FULL])
    with pytest.raises(MalformedError, match="evaluation keys are incomplete"):
        bad.load()
    EvaluationKeys(good, group().keys.rotation).load()
    monkeypatch.setattr(evaluation_keys, "_check_parts", lambda keys, places: None)
    bad.load()


def test_rotation_keys_without_all_their_parts_are_refused() -> None:
    places = [sealapi.GaloisKeys.get_index(element) for element in GALOIS_ELEMENTS]
    whole = [FULL if place in places else EMPTY for place in range(max(places) + 1)]
    EvaluationKeys(key_set([FULL]), key_set(whole)).load()
    short = [*whole[:-1], FULL - 1]
    with pytest.raises(MalformedError, match="evaluation keys are incomplete"):
        EvaluationKeys(key_set([FULL]), key_set(short)).load()


@pytest.mark.parametrize("announced", [2**40, 2**62])
def test_more_keys_announced_than_memory_holds_are_refused(announced: int) -> None:
    with pytest.raises(MalformedError):
        EvaluationKeys(key_set([FULL], announced), group().keys.rotation).load()


def test_swapped_parts_are_refused() -> None:
    with pytest.raises(MalformedError):
        EvaluationKeys(group().keys.rotation, group().keys.relinearisation).load()


def test_damaged_parts_are_refused() -> None:
    with pytest.raises(MalformedError):
        EvaluationKeys.from_bytes(group().keys.to_bytes()[:-1000]).load()
