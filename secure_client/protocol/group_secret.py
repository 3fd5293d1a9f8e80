"""Secrets that all sites of a run share and the coordinator lacks: the seed of rotations and, under ``ckks``, a key."""

from __future__ import annotations

import secrets

from agreement import Protection
from crypto.ckks.secret_key import CkksSecret
from crypto.errors import MalformedError
from crypto.keys import KEY_BYTES


def make_group_secret(protection: Protection) -> tuple[bytes, bytes]:
    """Return a fresh secret and its public keys, which are empty for a protection without public keys."""
    seed = secrets.token_bytes(protection.secret_bytes)
    if not protection.ckks_key:
        return seed, b""
    key, public = CkksSecret.generate()
    return seed + key.to_bytes(), public.to_bytes()


def check_group_secret(secret: bytes, protection: Protection) -> None:
    """Raise :class:`MalformedError` for a secret that the protection cannot use."""
    if protection.ckks_key:
        ckks_key(secret)
    elif len(secret) != protection.secret_bytes:
        raise MalformedError(
            f"{protection.value}'s secret has {protection.secret_bytes} bytes, not {len(secret)}"
        )


def rotation_seed(secret: bytes) -> bytes:
    """Return the seed of all rotations."""
    return secret[:KEY_BYTES]


def ckks_key(secret: bytes) -> CkksSecret:
    """Return the secret key; raise :class:`MalformedError` if there is none."""
    return CkksSecret.from_bytes(secret[KEY_BYTES:])
