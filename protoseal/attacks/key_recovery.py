"""Recovery of the CKKS key from a decryption that comes back (Li and Micciancio, eprint 2020/1533).

A ciphertext is (b, a) with b + a·s = m, and a CKKS decryption *is* m, noise and all: s = (m − b)/a. The attack has a
result that the coordinator sent, what came back, and public parameters. It needs one result, and takes the polynomial
m or its decoded slots.

Limit: only an exact decryption of the very ciphertext that was sent gives the key, not rounded values. Slots flooded
with noise are too large for a double to hold exactly, so that there only the polynomial gives the key.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from tenseal import sealapi

from agreement.derived.encrypted_sums import EncryptedGroups, EncryptedSum
from agreement.derived.payload_shapes import limits_of, result_shape
from crypto.ckks.packing import Packing
from crypto.ckks.parameters import (
    POLY_DEGREE,
    Ciphertext,
    CiphertextShape,
    CkksLevel,
    answer_shapes,
    context,
    level_id,
)
from crypto.ckks.secret_key import CkksSecret
from crypto.ckks.serialization import dump, load, read_payload
from crypto.keys import KEY_BYTES
from crypto.protection import Combination
from protoseal.attacks.cases import Case, Measurement, measure_share
from protoseal.attacks.protected_values import EXACT
from protoseal.attacks.readings import Adversary, readings
from protoseal.attacks.recorded_run import RecordedRun
from protoseal_wire import codec
from protoseal_wire.messages import Acknowledgement, Phase
from secure_server.store import Received

Slots = NDArray[np.complex128]

ACKNOWLEDGED = codec.encode_acknowledgement(Acknowledgement())
_ROOTS = np.array([pow(3, slot, 2 * POLY_DEGREE) for slot in range(POLY_DEGREE // 2)])
"""Slot j holds a polynomial's value at exp(iπr/N) for the j-th of these r."""
_TERNARY = 1e-6
"""Distance from a whole number beyond which a value is no coefficient: rounding leaves 1e-14, other keys spread
evenly.
"""


class NoKey(Exception):
    """Failure of the coordinator to find a secret key in what it was told."""


def recover_key(sent: Ciphertext, form: CiphertextShape, came_back: bytes) -> CkksSecret:
    """Return the group's secret key, or raise :class:`NoKey`.

    ``sent`` is the first ciphertext of a result, of that ``form``, and ``came_back`` its acknowledgement.
    """
    told = came_back.removeprefix(ACKNOWLEDGED)
    if not told:
        raise NoKey("an acknowledgement says nothing")
    # The polynomial first: it is exact under flooding noise too, where decoded slots are not.
    try:
        return _solve_key(sent, np.frombuffer(told, dtype=np.uint64)[:POLY_DEGREE].tolist())
    except NoKey:
        return _solve_key(
            sent, encode_slots(np.frombuffer(told, dtype=np.complex128)[: POLY_DEGREE // 2], form)
        )


def decrypt_polynomial(secret: CkksSecret, sent: Ciphertext) -> bytes:
    """Return the decryption of a ciphertext before it is decoded: a polynomial's transform, modulo the last prime."""
    _, _, key = secret.to_bytes().partition(b":")
    plaintext = sealapi.Plaintext()
    sealapi.Decryptor(context(), load(sealapi.SecretKey(), key)).decrypt(sent, plaintext)
    return np.array([plaintext[i] for i in range(POLY_DEGREE)], dtype=np.uint64).tobytes()


def _solve_key(sent: Ciphertext, message: Sequence[int]) -> CkksSecret:
    """Return the key under which ``sent`` decrypts to ``message``, or raise :class:`NoKey`."""
    # b + a·s = m holds coefficient by coefficient in the transform's domain: s = (m − b) / a modulo the last prime.
    prime = int(context().key_context_data().parms().coeff_modulus()[0].value())
    key = [(message[i] - sent[i]) * pow(sent[POLY_DEGREE + i], -1, prime) % prime for i in range(POLY_DEGREE)]
    return make_key(ternary_coefficients(key))


def encode_slots(slots: Slots, form: CiphertextShape) -> Sequence[int]:
    """Return a decryption as the polynomial that it was, modulo the last prime: exactly, since a double has 53 bits."""
    plaintext = sealapi.Plaintext()
    sealapi.CKKSEncoder(context()).encode(slots.tolist(), level_id(CkksLevel.ANSWER), form.scale, plaintext)
    return [plaintext[i] for i in range(POLY_DEGREE)]


def ternary_coefficients(transformed: Sequence[int]) -> NDArray[np.int64]:
    """Return the coefficients (N,) of a polynomial from its number-theoretic transform.

    Raises :class:`NoKey` unless they are in {-1, 0, 1}.
    """
    values = np.array(sealapi.CKKSEncoder(context()).decode_complex(make_plaintext(transformed)))
    at_roots = np.zeros(2 * POLY_DEGREE, dtype=np.complex128)
    at_roots[_ROOTS], at_roots[-_ROOTS] = values, values.conj()
    coefficients = np.fft.fft(at_roots)[:POLY_DEGREE].real / POLY_DEGREE
    key = np.rint(coefficients)
    if np.abs(coefficients - key).max() > _TERNARY or np.abs(key).max() > 1:
        raise NoKey("what was told does not go with the ciphertext")
    return key.astype(np.int64)


def make_plaintext(transformed: Sequence[int]) -> sealapi.Plaintext:
    """Return SEAL's plaintext of these numbers at scale 1, by way of its serialization: nothing else sets them."""
    version = dump(sealapi.Plaintext())[3:5]
    body = struct.pack("<4QQd", *level_id(CkksLevel.ANSWER), POLY_DEGREE, 1.0)
    numbers = struct.pack(f"<Q{POLY_DEGREE}Q", POLY_DEGREE, *transformed)
    return load(sealapi.Plaintext(), _with_header(body + _with_header(numbers, version), version))


def _with_header(body: bytes, version: bytes) -> bytes:
    """Return the body with a header that says that it is not compressed."""
    return struct.pack("<HB2sBHQ", 0xA15E, 16, version, 0, 0, 16 + len(body)) + body


def make_key(coefficients: NDArray[np.int64]) -> CkksSecret:
    """Return SEAL's secret key of a ternary polynomial, modulo all primes."""
    at_roots = np.fft.ifft(np.concatenate([coefficients, -coefficients])) * POLY_DEGREE
    plaintext, key = sealapi.Plaintext(), sealapi.SecretKey()
    encoder, primes = sealapi.CKKSEncoder(context()), list(context().key_parms_id())
    encoder.encode(at_roots[_ROOTS].tolist(), primes, 1.0, plaintext)
    with tempfile.NamedTemporaryFile() as file:
        plaintext.save(file.name)
        key.load(context(), file.name)
    return CkksSecret(key)


class KeyRecovery(Case):
    """Case of key recovery under ``ckks``: the share of acknowledgements that give away the key, so every upload."""

    attack = "key recovery from acknowledgements"
    metric = "share of acknowledged results that give a site's prototypes exactly"
    chance, margin = 0.0, 0.5
    question = "Does anything that sites send back after decrypting a result give the key away?"
    ability = "recover the decryption key from what sites send back"
    not_covered = "Decryptions that leave a site by another way, and rounded ones."
    adversaries = (Adversary.COORDINATOR,)

    def measure(self, run: RecordedRun, adversary: Adversary) -> Sequence[Measurement]:  # noqa: ARG002 (the interface's)
        """Attack every acknowledgement; no result without a CKKS key, or for methods without one prototype a class."""
        if not run.agreement.protection.ckks_key or run.agreement.clusters:
            return []
        opened = np.array(list(_attack_acknowledgements(run)))
        reading = "the results sent, and the sites' acknowledgements, of all rounds"
        return [measure_share(opened, reading)] if len(opened) else []

    def reference(self, run: RecordedRun) -> Measurement | None:
        """Return the attack on the same run, as if acknowledgements held the decryption."""
        return next(iter(self.measure(add_decryptions(run), Adversary.COORDINATOR)), None)


def _list_acknowledgements(run: RecordedRun) -> list[tuple[bytes, Received]]:
    """Return each result that a site was sent, with the site's answer."""
    sent = {(site, key): content for site, downloads in run.downloads.items() for key, content in downloads}
    return [
        (sent[received.site, received.key], received)
        for received in run.received
        if received.key is not None and received.key.phase is Phase.RESULT
    ]


def _attack_acknowledgements(run: RecordedRun) -> Iterator[bool]:
    """Yield for each acknowledgement whether it gives the key, and the key the site's prototypes."""
    for result, answer in _list_acknowledgements(run) if run.agreement.method.traits.prototypes else []:
        try:
            secret = recover_key(*_first_ciphertext(run, result), answer.content)
        except NoKey:
            yield False
            continue
        read = readings(_with_key(run, secret), Adversary.COLLUSION, answer.site)[-1]
        truth = run.sites[answer.site].rows[np.isin(run.sites[answer.site].labels, read.labels)]
        # A withheld class is sent as zeros.
        sent = np.linalg.norm(read.rows, axis=1) > EXACT * run.agreement.norm_bound * len(read.rows[0])
        yield bool(sent.any()) and bool(
            (np.abs(read.rows[sent] - truth[sent]) <= EXACT * run.agreement.norm_bound).all()
        )


def add_decryptions(run: RecordedRun) -> RecordedRun:
    """Return the run as if each acknowledgement held the decryption of the result's first ciphertext."""
    if not run.agreement.protection.ckks_key or run.agreement.clusters:
        return run
    results = {id(answer): result for result, answer in _list_acknowledgements(run)}

    def weakened(received: Received) -> Received:
        if id(received) not in results:
            return received
        secret = CkksSecret.from_bytes(run.setups[received.site].group[KEY_BYTES:])
        ciphertext, _ = _first_ciphertext(run, results[id(received)])
        return replace(received, content=received.content + decrypt_polynomial(secret, ciphertext))

    return replace(run, received=[weakened(received) for received in run.received])


def _with_key(run: RecordedRun, secret: CkksSecret) -> RecordedRun:
    """Return the run as a coordinator sees it that has the recovered key, as a colluding site would give it."""
    setups = {
        site: replace(secrets, group=bytes(KEY_BYTES) + secret.to_bytes())
        for site, secrets in run.setups.items()
    }
    return replace(run, setups=setups)


def _first_ciphertext(run: RecordedRun, result: bytes) -> tuple[Ciphertext, CiphertextShape]:
    agreement = run.agreement
    payload = codec.decode_payload(result, limits_of(agreement), result_shape(agreement))
    if agreement.method.is_grouped:
        forms = EncryptedGroups(agreement).form.answers
    elif agreement.sums:
        forms = EncryptedSum(agreement).form.answers
    else:
        parts = Packing(len(agreement.classes), agreement.dim).parts
        forms = answer_shapes(Combination(agreement.pfpl.weighting.value), parts)
    return read_payload(payload, forms)[0], forms[0]
