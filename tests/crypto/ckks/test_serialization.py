"""Serialized keys and ciphertexts: versions, and the checks of an upload and of an answer.

Each check has a twin that only this check stops.
"""

import hashlib
import pickle
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tenseal import sealapi

from crypto.ckks.evaluation_keys import GALOIS_ELEMENTS, EvaluationKeys
from crypto.ckks.parameters import (
    CORRECTION,
    POLY_DEGREE,
    PROTOTYPE,
    SCALE,
    Ciphertext,
    CiphertextShape,
    CkksLevel,
    answer_shapes,
    context,
    level_id,
)
from crypto.ckks.secret_key import CkksSecret
from crypto.ckks.serialization import dump, load, read_ciphertext
from crypto.errors import ImplausibleError, MalformedError, UnknownSchemeError
from crypto.plain import PlainServer, PlainSite
from crypto.protection import Combination, Payload
from tests.crypto.ckks_reference import cohort_of, group, random_stack, server_half, site_half, uploads
from tests.support.seal_keys import EMPTY, FULL, key_set
from tests.support.weakened_builds import weaken

COHORT = cohort_of(np.ones((3, 2), dtype=np.bool_), 5)
STACK = random_stack((3, 2, 5), 0.5, seed=7)
NAME = COHORT.sites[0]
COMPLEMENT = Combination.COMPLEMENT


@pytest.fixture(scope="module")
def payloads() -> dict[str, Payload]:
    return uploads(STACK, COHORT, COMPLEMENT)


@pytest.fixture(scope="module")
def answer(payloads: dict[str, Payload]) -> Payload:
    return server_half(COMPLEMENT).combine(payloads, COHORT)[NAME]


def validate(*blobs: bytes) -> None:
    server_half(COMPLEMENT).validate(Payload("ckks/1", blobs=blobs), NAME, COHORT)


def unprotect(*blobs: bytes) -> None:
    site_half(COMPLEMENT).unprotect(Payload("ckks/1", blobs=blobs), STACK[0], NAME, COHORT)


READ = "crypto.ckks.serialization.read_ciphertext: "
TOO_LONG = READ + "len(content) > shape.max_bytes"
LENGTH = READ + "int.from_bytes(content[_LENGTH], 'little') != len(content)"
LEVEL = READ + "list(ciphertext.parms_id()) != level_id(shape.level)"
SIZE = READ + "ciphertext.size() != 2"
SCALE_STATED = READ + "ciphertext.scale != shape.scale"
DOMAIN = READ + "not ciphertext.is_ntt_form()"
TRANSPARENT = READ + "ciphertext.is_transparent()"
PARTS = "crypto.ckks.evaluation_keys._check_keys: present != dict.fromkeys(places, _PARTS)"
TOTALS = (
    "crypto.ckks.site.CkksSite._combination_of_peers: "
    "not ((totals >= -self._tau) & (totals <= largest + self._tau)).all()"
)
ROWS = "crypto.ckks.site.CkksSite.unprotect: not (np.linalg.norm(result[holds], axis=1) <= _LONGEST).all()"


def fresh(form: CiphertextShape) -> bytes:
    return group().secret.encrypt(np.full(4096, 0.1), form)


def rewritten(blob: bytes, change: Callable[[Ciphertext], None]) -> bytes:
    ciphertext = load(sealapi.Ciphertext(), blob)
    change(ciphertext)
    return dump(ciphertext)


def double_scale(ciphertext: Ciphertext) -> None:
    ciphertext.scale *= 2.0


def leave_transform(ciphertext: Ciphertext) -> None:
    evaluator().transform_from_ntt_inplace(ciphertext)


def evaluator() -> sealapi.Evaluator:
    return sealapi.Evaluator(context())


def transparent(form: CiphertextShape, blob: bytes) -> bytes:
    """Return a ciphertext less itself. SEAL objects, and leaves the result where it was asked to."""
    ciphertext, result = load(sealapi.Ciphertext(), blob), sealapi.Ciphertext()
    with pytest.raises(RuntimeError, match="transparent"):
        evaluator().sub(ciphertext, ciphertext, result)
    result.scale = form.scale
    return dump(result)


UPLOAD_TWINS = [
    (SCALE_STATED, lambda: fresh(CiphertextShape(CkksLevel.UPLOAD, 2 * SCALE, 1))),
    (LEVEL, lambda: fresh(CiphertextShape(CkksLevel.PRODUCT, SCALE, 1))),
    (LEVEL, lambda: fresh(CiphertextShape(CkksLevel.ANSWER, SCALE, 1))),
    (LENGTH, lambda: fresh(PROTOTYPE) + b"\0"),
    (TOO_LONG, lambda: dump(load(sealapi.Ciphertext(), fresh(PROTOTYPE)))),
    (TRANSPARENT, lambda: transparent(PROTOTYPE, fresh(PROTOTYPE))),
]


@pytest.mark.parametrize(("check", "twin"), UPLOAD_TWINS)
def test_validate_upload_of_other_form_refused(
    check: str, twin: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = twin()
    with pytest.raises(MalformedError):
        validate(blob, fresh(CORRECTION))
    weaken(check, monkeypatch)
    validate(blob, fresh(CORRECTION))


def test_validate_correction_at_other_scale_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = fresh(CiphertextShape(CkksLevel.PRODUCT, SCALE, 1))
    with pytest.raises(MalformedError, match="scale"):
        validate(fresh(PROTOTYPE), twin)
    weaken(SCALE_STATED, monkeypatch)
    validate(fresh(PROTOTYPE), twin)


ANSWER_TWINS: list[tuple[str, Callable[[Ciphertext], None]]] = [
    (SCALE_STATED, double_scale),
    (SIZE, lambda ciphertext: ciphertext.resize(3)),
    (DOMAIN, leave_transform),
]


@pytest.mark.parametrize(("check", "change"), ANSWER_TWINS)
def test_read_ciphertext_other_form_refused(
    answer: Payload, check: str, change: Callable[[Ciphertext], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    blob, form = rewritten(answer.blobs[0], change), answer_shapes(COMPLEMENT, 1)[0]
    with pytest.raises(MalformedError):
        read_ciphertext(blob, form)
    with pytest.raises(MalformedError):
        unprotect(blob, answer.blobs[1])
    weaken(check, monkeypatch)
    read_ciphertext(blob, form)


def test_unprotect_answer_of_other_scale_refused(answer: Payload, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack behind the check: numerators relabelled with twice their scale halve the target."""
    half = site_half(COMPLEMENT)
    honest = half.unprotect(answer, STACK[0], NAME, COHORT)
    twin = Payload("ckks/1", blobs=(rewritten(answer.blobs[0], double_scale), answer.blobs[1]))
    with pytest.raises(MalformedError):
        half.unprotect(twin, STACK[0], NAME, COHORT)
    weaken(SCALE_STATED, monkeypatch)
    np.testing.assert_allclose(half.unprotect(twin, STACK[0], NAME, COHORT), honest / 2, atol=1e-4)


def test_unprotect_answer_of_other_level_refused(answer: Payload, monkeypatch: pytest.MonkeyPatch) -> None:
    blob = fresh(CiphertextShape(CkksLevel.PRODUCT, answer_shapes(COMPLEMENT, 1)[0].scale, 1))
    with pytest.raises(MalformedError):
        unprotect(blob, answer.blobs[1])
    weaken(LEVEL, monkeypatch)
    read_ciphertext(blob, answer_shapes(COMPLEMENT, 1)[0])


def test_unprotect_other_groups_answer_implausible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forms = answer_shapes(COMPLEMENT, 1)
    foreign = tuple(group(1).secret.encrypt(np.full(4096, 0.1), form) for form in forms)
    with pytest.raises(ImplausibleError):
        unprotect(*foreign)
    weaken(ROWS, monkeypatch)
    weaken(TOTALS, monkeypatch)
    unprotect(*foreign)


@pytest.mark.parametrize("total", [-1.0, 8.1])
def test_unprotect_impossible_total_refused(total: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below 0 it would pass for agreement, and the coordinator would choose whose targets stand still."""
    numerator, denominator = answer_shapes(COMPLEMENT, 1)
    blobs = [
        group().secret.encrypt(np.full(4096, x), form) for x, form in ((0.1, numerator), (total, denominator))
    ]
    whole = [dump(load(sealapi.Ciphertext(), blob)) for blob in blobs]
    with pytest.raises(ImplausibleError):
        unprotect(*whole)
    weaken(TOTALS, monkeypatch)
    unprotect(*whole)


def test_unprotect_absurd_values_refused() -> None:
    numerator, denominator = answer_shapes(COMPLEMENT, 1)
    huge = group().secret.encrypt(np.full(4096, 2.0**15), numerator)
    with pytest.raises(ImplausibleError):
        unprotect(huge, group().secret.encrypt(np.full(4096, 1.0), denominator))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2.1])
def test_unprotect_too_long_rows_refused(
    value: float, answer: Payload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One number is enough. No ciphertext of SEAL's encodes some of these; a divisor of 0 gives them."""
    decrypt = CkksSecret.decrypt
    half, decrypted = site_half(COMPLEMENT), list[NDArray[np.complex128]]()

    def spoilt(secret: CkksSecret, ciphertext: Ciphertext) -> NDArray[np.complex128]:
        slots = decrypt(secret, ciphertext)
        if not decrypted:  # the numerators: the first feature of both classes
            slots[:2] = value
        decrypted.append(slots)
        return slots

    monkeypatch.setattr(CkksSecret, "decrypt", spoilt)
    with pytest.raises(ImplausibleError):
        half.unprotect(answer, STACK[0], NAME, COHORT)


def test_protect_bad_rows_refused() -> None:
    with pytest.raises(MalformedError, match="norm"):
        site_half(COMPLEMENT).protect(2.0 * STACK[0], NAME, COHORT)
    with pytest.raises(MalformedError, match="finite"):
        site_half(COMPLEMENT).protect(np.nan * STACK[0], NAME, COHORT)


@pytest.mark.parametrize("cut", [0, 5, 16, 100, -1])
def test_validate_truncated_upload_refused(payloads: dict[str, Payload], cut: int) -> None:
    with pytest.raises(MalformedError):
        validate(payloads[NAME].blobs[0][:cut], payloads[NAME].blobs[1])


@pytest.mark.parametrize("count", [0, 1, 3])
def test_validate_other_number_of_ciphertexts_refused(payloads: dict[str, Payload], count: int) -> None:
    with pytest.raises(MalformedError, match="ciphertexts"):
        validate(*(payloads[NAME].blobs * 2)[:count])


@pytest.mark.parametrize("moduli", [[60, 40, 60], [60, 40, 40, 58]])
def test_validate_other_parameters_refused(moduli: list[int]) -> None:
    parameters = sealapi.EncryptionParameters(sealapi.SCHEME_TYPE.CKKS)
    parameters.set_poly_modulus_degree(POLY_DEGREE)
    parameters.set_coeff_modulus(sealapi.CoeffModulus.Create(POLY_DEGREE, moduli))
    other = sealapi.SEALContext(parameters, True, sealapi.SEC_LEVEL_TYPE.TC128)
    encryptor = sealapi.Encryptor(other, sealapi.KeyGenerator(other).secret_key())
    plaintext = sealapi.Plaintext()
    sealapi.CKKSEncoder(other).encode([0.1] * 4096, SCALE, plaintext)
    with pytest.raises(MalformedError):
        validate(dump(encryptor.encrypt_symmetric(plaintext)), fresh(CORRECTION))


@given(position=st.integers(0, 119), bit=st.integers(0, 7))
def test_read_ciphertext_flipped_header_bit_refused_or_harmless(
    payloads: dict[str, Payload], position: int, bit: int
) -> None:
    """Only :class:`MalformedError`, or a ciphertext of the very form that was asked for."""
    blob = bytearray(payloads[NAME].blobs[0])
    blob[position] ^= 1 << bit
    try:
        ciphertext = read_ciphertext(bytes(blob), PROTOTYPE)
    except MalformedError:
        return
    assert (ciphertext.size(), ciphertext.scale) == (2, SCALE)
    assert list(ciphertext.parms_id()) == level_id(CkksLevel.UPLOAD)


@given(content=st.binary(max_size=200))
def test_read_ciphertext_any_bytes_refused(content: bytes) -> None:
    with pytest.raises(MalformedError):
        read_ciphertext(content, PROTOTYPE)


def test_validate_other_scheme_refused(payloads: dict[str, Payload]) -> None:
    plain = PlainSite().protect(STACK[0], NAME, COHORT)
    with pytest.raises(UnknownSchemeError, match="plain/1"):
        server_half(COMPLEMENT).validate(plain, NAME, COHORT)
    with pytest.raises(UnknownSchemeError, match="ckks/1"):
        PlainServer(lambda gram, holds: gram).validate(payloads[NAME], NAME, COHORT)
    with pytest.raises(UnknownSchemeError, match="ckks/1"):
        site_half(COMPLEMENT).unprotect(plain, STACK[0], NAME, COHORT)


def test_combine_copied_upload_refused(payloads: dict[str, Payload]) -> None:
    copied = {**payloads, COHORT.sites[1]: payloads[NAME]}
    with pytest.raises(MalformedError, match=r"combined"):
        server_half(COMPLEMENT).combine(copied, COHORT)


def test_upload_half_size_by_seed(payloads: dict[str, Payload]) -> None:
    for blob, form in zip(payloads[NAME].blobs, (PROTOTYPE, CORRECTION), strict=True):
        whole = dump(load(sealapi.Ciphertext(), blob))
        assert len(blob) < 0.55 * len(whole)
        assert len(blob) < form.max_bytes < len(whole)


def test_protect_same_rows_different_bytes() -> None:
    half: CkksSecret = group().secret
    blobs = {half.encrypt(np.zeros(4096), PROTOTYPE) for _ in range(3)}
    assert len(blobs) == 3


def test_secret_round_trip_decrypts() -> None:
    values = np.linspace(-1.0, 1.0, 4096)
    other = CkksSecret.from_bytes(group().secret.to_bytes())
    ciphertext = read_ciphertext(group().secret.encrypt(values, PROTOTYPE), PROTOTYPE)
    np.testing.assert_allclose(other.decrypt(ciphertext), values, atol=1e-7)


def test_generate_secrets_differ() -> None:
    assert CkksSecret.generate()[0].to_bytes() != group().secret.to_bytes()


def test_repr_redacts_keys() -> None:
    assert repr(group().secret) == "CkksSecret(<redacted>)"
    shown = repr(group().keys)
    assert group().keys.hash.hex()[:16] in shown
    assert len(shown) < 60


def test_secret_pickle_refused() -> None:
    with pytest.raises(TypeError):
        pickle.dumps(group().secret)


@pytest.mark.parametrize("content", [b"", b"protoseal-ckks-secret-2:xyz", b"protoseal-ckks-evaluation-1:xyz"])
def test_secret_other_version_refused(content: bytes) -> None:
    with pytest.raises(UnknownSchemeError):
        CkksSecret.from_bytes(content)


def test_secret_damaged_refused() -> None:
    with pytest.raises(MalformedError):
        CkksSecret.from_bytes(group().secret.to_bytes()[:-1000])


def test_evaluation_keys_round_trip() -> None:
    content = group().keys.to_bytes()
    again = EvaluationKeys.from_bytes(content)
    assert again == group().keys
    assert again.hash == hashlib.sha256(content).digest()
    again.load()


def test_evaluation_keys_cannot_decrypt() -> None:
    with pytest.raises(UnknownSchemeError):
        CkksSecret.from_bytes(group().keys.to_bytes())
    with pytest.raises(MalformedError):
        EvaluationKeys(dump(group().secret._key), group().keys.rotation).load()


@pytest.mark.parametrize("content", [b"", b"protoseal-ckks-evaluation-2:xyz", b"protoseal-ckks-secret-1:xyz"])
def test_evaluation_keys_other_version_refused(content: bytes) -> None:
    with pytest.raises(UnknownSchemeError):
        EvaluationKeys.from_bytes(content)


def test_evaluation_keys_hash_covers_both_parts() -> None:
    keys = group().keys
    moved = EvaluationKeys(keys.relinearisation + keys.rotation[:1], keys.rotation[1:])
    assert len({keys.hash, moved.hash, EvaluationKeys(keys.rotation, keys.relinearisation).hash}) == 3


def rotation_keys(elements: list[int]) -> bytes:
    return dump(sealapi.KeyGenerator(context()).create_galois_keys(elements))


@pytest.mark.parametrize(
    "elements", [GALOIS_ELEMENTS[1:], GALOIS_ELEMENTS[:-1], [*GALOIS_ELEMENTS[1:], 5], [*GALOIS_ELEMENTS, 3]]
)
def test_load_rotation_keys_for_other_steps_refused(elements: list[int]) -> None:
    with pytest.raises(MalformedError, match=r"rotations"):
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
def test_load_relinearisation_keys_other_than_one_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SEAL loads all of these, and rotation keys of the same kinds."""
    bad, good = EvaluationKeys(key_set(RELINEARISATION[name]), group().keys.rotation), key_set([FULL])
    with pytest.raises(MalformedError, match=r"incomplete"):
        bad.load()
    EvaluationKeys(good, group().keys.rotation).load()
    weaken(PARTS, monkeypatch)
    bad.load()


def test_load_partial_rotation_keys_refused() -> None:
    places = [sealapi.GaloisKeys.get_index(element) for element in GALOIS_ELEMENTS]
    whole = [FULL if place in places else EMPTY for place in range(max(places) + 1)]
    EvaluationKeys(key_set([FULL]), key_set(whole)).load()
    short = [*whole[:-1], FULL - 1]
    with pytest.raises(MalformedError, match=r"incomplete"):
        EvaluationKeys(key_set([FULL]), key_set(short)).load()


@pytest.mark.parametrize("announced", [2**40, 2**62])
def test_load_keys_beyond_memory_refused(announced: int) -> None:
    with pytest.raises(MalformedError):
        EvaluationKeys(key_set([FULL], announced), group().keys.rotation).load()


def test_load_swapped_parts_refused() -> None:
    with pytest.raises(MalformedError):
        EvaluationKeys(group().keys.rotation, group().keys.relinearisation).load()


def test_load_damaged_parts_refused() -> None:
    with pytest.raises(MalformedError):
        EvaluationKeys.from_bytes(group().keys.to_bytes()[:-1000]).load()
