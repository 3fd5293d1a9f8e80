"""Sites for ``protoseal bench pairwise``: a CA in a folder, keys and certificates as real sites have them, a roster."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from crypto.keys import ChannelKey
from crypto.pki import (
    Credentials,
    Identity,
    Stretching,
    TrustAnchor,
    approve,
    create_authority,
    create_request,
)
from crypto.roster import Roster, assemble_roster, sign_statement

FEDERATION = "bench.example"
RUN = "bench"
AGREEMENT_HASH = hashlib.sha256(b"bench").digest()


class Federation:
    """A CA and ``count`` sites that it approved, in a folder that may go afterwards: keys are kept in memory."""

    def __init__(self, folder: Path, count: int) -> None:
        passphrase = secrets.token_hex(16).encode()
        self._trust = create_authority(
            folder / "ca", FEDERATION, passphrase, stretching=Stretching.NONE_FOR_RANDOM_SECRET
        )
        self._sites = tuple(
            _approved(folder / "ca", folder / name, name, passphrase)
            for name in (f"site-{number:03d}" for number in range(1, count + 1))
        )

    def group(self, count: int) -> tuple[dict[str, Credentials], Roster]:
        """Return the first ``count`` sites by name, and the roster that their statements make."""
        chosen = self._sites[:count]
        return {each.identity.name: each for each in chosen}, _roster(self._trust, chosen)


def _approved(authority: Path, folder: Path, name: str, passphrase: bytes) -> Credentials:
    create_request(
        folder, Identity.site(FEDERATION, name), passphrase, stretching=Stretching.NONE_FOR_RANDOM_SECRET
    )
    certificate = folder / "certificate.pem"
    certificate.write_bytes(approve(authority, passphrase, (folder / "request.pem").read_bytes()))
    return Credentials.load(certificate, folder / "key.pem", passphrase)


def _roster(trust: TrustAnchor, sites: Sequence[Credentials]) -> Roster:
    statements = [
        sign_statement(each, RUN, AGREEMENT_HASH, ChannelKey.generate().public_bytes) for each in sites
    ]
    return assemble_roster(
        statements, trust=trust, run=RUN, agreement_hash=AGREEMENT_HASH, at=datetime.now(UTC)
    )
