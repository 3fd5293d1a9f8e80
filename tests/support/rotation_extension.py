"""A third party's protection for peers, as a test has one: rotations under a name of their own."""

from __future__ import annotations

from agreement import PeersHalves, Protection
from crypto.keys import KEY_BYTES
from crypto.plain import PlainServer
from crypto.protection import PayloadShape
from crypto.rotation import SCHEME, RotationSite

rotated = Protection(
    name="rotated",
    secret_bytes=KEY_BYTES,
    peers=PeersHalves(
        site=lambda settings, secret, context: RotationSite(secret, context),
        server=lambda settings, weights: PlainServer(weights, SCHEME),
        form=lambda settings, classes, dim: PayloadShape(arrays=((classes, dim),)),
    ),
)
