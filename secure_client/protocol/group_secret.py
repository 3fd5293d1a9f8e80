"""What all sites of a run share and the coordinator must not have: the seed of rotations, and under ``ckks`` a key."""

from __future__ import annotations

import secrets

from agreement import AddedProtection, AnyProtection, Protection
from crypto.ckks.secret_key import CkksSecret
from crypto.errors import MalformedError
from crypto.keys import KEY_BYTES


def make_group_secret(protection: AnyProtection) -> tuple[bytes, bytes]:
    """A fresh secret, and the public keys that go with it, empty where there are none."""
    if isinstance(protection, AddedProtection):
        return secrets.token_bytes(protection.secret_bytes), b""
    seed = secrets.token_bytes(KEY_BYTES)
    if protection is not Protection.CKKS:
        return seed, b""
    key, public = CkksSecret.generate()
    return seed + key.to_bytes(), public.to_bytes()


def check_group_secret(secret: bytes, protection: AnyProtection) -> None:
    """Raise :class:`MalformedError` for what the protection cannot use."""
    if isinstance(protection, AddedProtection):
        if len(secret) != protection.secret_bytes:
            raise MalformedError(
                f"{protection.value}'s secret has {protection.secret_bytes} bytes, not {len(secret)}"
            )
    elif protection is Protection.CKKS:
        ckks_key(secret)
    elif len(secret) != KEY_BYTES:
        raise MalformedError(f"the rotations' seed has {KEY_BYTES} bytes, not {len(secret)}")


def rotation_seed(secret: bytes) -> bytes:
    """The seed of all rotations."""
    return secret[:KEY_BYTES]


def ckks_key(secret: bytes) -> CkksSecret:
    """The secret key; :class:`MalformedError` if it is not there."""
    return CkksSecret.from_bytes(secret[KEY_BYTES:])
