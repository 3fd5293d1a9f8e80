"""Checks of an upload by the coordinator and of an answer by a site, each with a twin that it alone stops."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tenseal import sealapi

from crypto.ckks import serialization, site
from crypto.ckks.parameters import (
    CORRECTION,
    POLY_DEGREE,
    PROTOTYPE,
    SCALE,
    Ciphertext,
    CkksLevel,
    Form,
    answer_forms,
    context,
    level_id,
)
from crypto.ckks.secret_key import CkksSecret
from crypto.ckks.serialization import dump, load, read_ciphertext
from crypto.errors import ImplausibleError, MalformedError, UnknownSchemeError
from crypto.plain import PlainServer, PlainSite
from crypto.protection import Combination, Payload
from tests.crypto.ckks_reference import cohort_of, group, random_stack, server_half, site_half, uploads

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


def weaken(monkeypatch: pytest.MonkeyPatch, check: str) -> None:
    """Make one check of :mod:`crypto.ckks.serialization` do nothing, as the double does."""
    monkeypatch.setattr(serialization, check, lambda *arguments: None)


def fresh(form: Form) -> bytes:
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


def transparent(form: Form, blob: bytes) -> bytes:
    """Return a ciphertext less itself. SEAL objects, and leaves the result where it was asked to."""
    ciphertext, result = load(sealapi.Ciphertext(), blob), sealapi.Ciphertext()
    with pytest.raises(RuntimeError, match="transparent"):
        evaluator().sub(ciphertext, ciphertext, result)
    result.scale = form.scale
    return dump(result)


UPLOAD_TWINS = [
    ("check_scale", lambda: fresh(Form(CkksLevel.UPLOAD, 2 * SCALE, 1))),
    ("check_level", lambda: fresh(Form(CkksLevel.PRODUCT, SCALE, 1))),
    ("check_level", lambda: fresh(Form(CkksLevel.ANSWER, SCALE, 1))),
    ("check_length", lambda: fresh(PROTOTYPE) + b"\0"),
    ("check_length", lambda: dump(load(sealapi.Ciphertext(), fresh(PROTOTYPE)))),
    ("check_not_transparent", lambda: transparent(PROTOTYPE, fresh(PROTOTYPE))),
]


@pytest.mark.parametrize(("check", "twin"), UPLOAD_TWINS)
def test_an_upload_in_another_form_is_refused(
    check: str, twin: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = twin()
    with pytest.raises(MalformedError):
        validate(blob, fresh(CORRECTION))
    weaken(monkeypatch, check)
    validate(blob, fresh(CORRECTION))


def test_a_correction_at_the_prototypes_scale_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = fresh(Form(CkksLevel.PRODUCT, SCALE, 1))
    with pytest.raises(MalformedError, match="scale"):
        validate(fresh(PROTOTYPE), twin)
    weaken(monkeypatch, "check_scale")
    validate(fresh(PROTOTYPE), twin)


ANSWER_TWINS: list[tuple[str, Callable[[Ciphertext], None]]] = [
    ("check_scale", double_scale),
    ("check_size", lambda ciphertext: ciphertext.resize(3)),
    ("check_domain", leave_transform),
]


@pytest.mark.parametrize(("check", "change"), ANSWER_TWINS)
def test_a_ciphertext_in_another_form_is_refused(
    answer: Payload, check: str, change: Callable[[Ciphertext], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    blob, form = rewritten(answer.blobs[0], change), answer_forms(COMPLEMENT, 1)[0]
    with pytest.raises(MalformedError):
        read_ciphertext(blob, form)
    with pytest.raises(MalformedError):
        unprotect(blob, answer.blobs[1])
    weaken(monkeypatch, check)
    read_ciphertext(blob, form)


def test_an_answer_of_another_scale_would_change_what_a_site_reads(
    answer: Payload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack behind the check: numerators relabelled with twice their scale halve the target."""
    half = site_half(COMPLEMENT)
    honest = half.unprotect(answer, STACK[0], NAME, COHORT)
    twin = Payload("ckks/1", blobs=(rewritten(answer.blobs[0], double_scale), answer.blobs[1]))
    with pytest.raises(MalformedError):
        half.unprotect(twin, STACK[0], NAME, COHORT)
    weaken(monkeypatch, "check_scale")
    np.testing.assert_allclose(half.unprotect(twin, STACK[0], NAME, COHORT), honest / 2, atol=1e-4)


def test_an_answer_of_another_level_is_refused(answer: Payload, monkeypatch: pytest.MonkeyPatch) -> None:
    blob = fresh(Form(CkksLevel.PRODUCT, answer_forms(COMPLEMENT, 1)[0].scale, 1))
    with pytest.raises(MalformedError):
        unprotect(blob, answer.blobs[1])
    weaken(monkeypatch, "check_level")
    read_ciphertext(blob, answer_forms(COMPLEMENT, 1)[0])


def test_another_groups_ciphertext_decrypts_to_nothing_a_site_would_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forms = answer_forms(COMPLEMENT, 1)
    foreign = tuple(group(1).secret.encrypt(np.full(4096, 0.1), form) for form in forms)
    with pytest.raises(ImplausibleError):
        unprotect(*foreign)
    monkeypatch.setattr(site, "check_plausible", lambda rows: None)
    monkeypatch.setattr(site, "check_totals", lambda totals, tau, sites: None)
    unprotect(*foreign)


@pytest.mark.parametrize("total", [-1.0, 8.1])
def test_a_total_that_no_distances_add_up_to_is_refused(
    total: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below 0 it would pass for agreement, and the coordinator would choose whose targets stand still."""
    numerator, denominator = answer_forms(COMPLEMENT, 1)
    blobs = [
        group().secret.encrypt(np.full(4096, x), form) for x, form in ((0.1, numerator), (total, denominator))
    ]
    whole = [dump(load(sealapi.Ciphertext(), blob)) for blob in blobs]
    with pytest.raises(ImplausibleError):
        unprotect(*whole)
    monkeypatch.setattr(site, "check_totals", lambda totals, tau, sites: None)
    unprotect(*whole)


def test_absurd_values_are_refused() -> None:
    numerator, denominator = answer_forms(COMPLEMENT, 1)
    huge = group().secret.encrypt(np.full(4096, 2.0**15), numerator)
    with pytest.raises(ImplausibleError):
        unprotect(huge, group().secret.encrypt(np.full(4096, 1.0), denominator))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2.1])
def test_rows_that_no_peers_combine_to_are_refused(value: float) -> None:
    site.check_plausible(np.eye(2))
    with pytest.raises(ImplausibleError, match="not a number, or far longer"):
        site.check_plausible(np.array([[0.0, 0.0], [0.0, value]]))


def test_own_rows_are_checked_before_they_leave() -> None:
    with pytest.raises(MalformedError, match="norm"):
        site_half(COMPLEMENT).protect(2.0 * STACK[0], NAME, COHORT)
    with pytest.raises(MalformedError, match="finite"):
        site_half(COMPLEMENT).protect(np.nan * STACK[0], NAME, COHORT)


@pytest.mark.parametrize("cut", [0, 5, 16, 100, -1])
def test_a_truncated_upload_is_refused(payloads: dict[str, Payload], cut: int) -> None:
    with pytest.raises(MalformedError):
        validate(payloads[NAME].blobs[0][:cut], payloads[NAME].blobs[1])


@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_of_ciphertexts_is_refused(payloads: dict[str, Payload], count: int) -> None:
    with pytest.raises(MalformedError, match="ciphertexts"):
        validate(*(payloads[NAME].blobs * 2)[:count])


@pytest.mark.parametrize("moduli", [[60, 40, 60], [60, 40, 40, 58]])
def test_ciphertexts_of_other_parameters_are_refused(moduli: list[int]) -> None:
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
def test_a_flipped_bit_at_the_front_is_refused_or_changes_nothing_that_counts(
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
def test_any_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(MalformedError):
        read_ciphertext(content, PROTOTYPE)


def test_schemes_do_not_mix(payloads: dict[str, Payload]) -> None:
    plain = PlainSite().protect(STACK[0], NAME, COHORT)
    with pytest.raises(UnknownSchemeError, match="plain/1"):
        server_half(COMPLEMENT).validate(plain, NAME, COHORT)
    with pytest.raises(UnknownSchemeError, match="ckks/1"):
        PlainServer(lambda gram, holds: gram).validate(payloads[NAME], NAME, COHORT)
    with pytest.raises(UnknownSchemeError, match="ckks/1"):
        site_half(COMPLEMENT).unprotect(plain, STACK[0], NAME, COHORT)


def test_a_site_that_repeats_another_sites_bytes_stops_the_aggregation(payloads: dict[str, Payload]) -> None:
    copied = {**payloads, COHORT.sites[1]: payloads[NAME]}
    with pytest.raises(MalformedError, match="cannot be combined"):
        server_half(COMPLEMENT).combine(copied, COHORT)


def test_uploads_carry_a_seed_for_half_of_each_ciphertext(payloads: dict[str, Payload]) -> None:
    for blob, form in zip(payloads[NAME].blobs, (PROTOTYPE, CORRECTION), strict=True):
        whole = dump(load(sealapi.Ciphertext(), blob))
        assert len(blob) < 0.55 * len(whole)
        assert len(blob) < form.max_bytes < len(whole)


def test_the_same_rows_never_encrypt_to_the_same_bytes() -> None:
    half: CkksSecret = group().secret
    blobs = {half.encrypt(np.zeros(4096), PROTOTYPE) for _ in range(3)}
    assert len(blobs) == 3
