"""Public-key infrastructure: a federation's CA, its parties' certificates, and signatures with their keys.

All keys are ECDSA P-256 (gRPC's TLS rejects Ed25519 client certificates). A certificate names its party by the URI
``spiffe://<federation>/site/<name>`` or ``spiffe://<federation>/coordinator``.
"""

from crypto.pki.credentials import Credentials, verify
from crypto.pki.identity import Identity, Role
from crypto.pki.issuing import Request, approve, create_authority, create_request, read_request
from crypto.pki.key_files import Stretching
from crypto.pki.trust import TrustAnchor

__all__ = [
    "Credentials",
    "Identity",
    "Request",
    "Role",
    "Stretching",
    "TrustAnchor",
    "approve",
    "create_authority",
    "create_request",
    "read_request",
    "verify",
]
