"""The certificates under gRPC's own TLS: who can stand at which end."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest

from crypto.pki import (
    Credentials,
    Identity,
    Role,
    Stretching,
    TrustAnchor,
    approve,
    create_authority,
    create_request,
)

PASSPHRASE = b"correct horse"
CHEAP = Stretching.NONE_FOR_RANDOM_SECRET


class _Echo(grpc.GenericRpcHandler):
    """Answers every call with the caller's certificate."""

    def service(self, _call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        return grpc.unary_unary_rpc_method_handler(
            lambda _request, context: context.auth_context()["x509_pem_cert"][0]
        )


def _party(directory: Path, identity: Identity, *hosts: str) -> Credentials:
    create_request(directory, identity, PASSPHRASE, hosts, stretching=CHEAP)
    certificate = approve(directory.parent / "ca", PASSPHRASE, (directory / "request.pem").read_bytes())
    (directory / "certificate.pem").write_bytes(certificate)
    return Credentials.load(directory / "certificate.pem", directory / "key.pem", PASSPHRASE)


@pytest.fixture
def parties(tmp_path: Path) -> dict[str, Credentials]:
    create_authority(tmp_path / "ca", "f", PASSPHRASE, stretching=CHEAP)
    return {
        "site": _party(tmp_path / "site", Identity.site("f", "a")),
        "coordinator": _party(tmp_path / "coordinator", Identity.coordinator("f"), "localhost", "127.0.0.1"),
        "elsewhere": _party(tmp_path / "elsewhere", Identity.coordinator("f"), "elsewhere.example.org"),
    }


@pytest.fixture
def anchor(parties: dict[str, Credentials], tmp_path: Path) -> TrustAnchor:
    return TrustAnchor.load(tmp_path / "ca" / "ca.pem")


@contextmanager
def _serving(credentials: Credentials, anchor: TrustAnchor) -> Iterator[str]:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((_Echo(),))
    tls = grpc.ssl_server_credentials(
        [(credentials.private_key_pem(), credentials.certificate_pem)], anchor.certificate_pem, True
    )
    port = server.add_secure_port("127.0.0.1:0", tls)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


def _call(address: str, credentials: Credentials | None, anchor: TrustAnchor) -> bytes:
    key = credentials.private_key_pem() if credentials else None
    certificate = credentials.certificate_pem if credentials else None
    tls = grpc.ssl_channel_credentials(anchor.certificate_pem, key, certificate)
    with grpc.secure_channel(address, tls) as channel:
        who = channel.unary_unary("/test/Who", request_serializer=bytes, response_deserializer=bytes)
        return who(b"", timeout=10)


def test_tls_site_calls_coordinator(parties: dict[str, Credentials], anchor: TrustAnchor) -> None:
    with _serving(parties["coordinator"], anchor) as address:
        certificate = _call(address, parties["site"], anchor)
    assert anchor.identify(certificate, Role.SITE, datetime.now(UTC)) == Identity.site("f", "a")


@pytest.mark.parametrize(
    ("server", "client"),
    [("site", "site"), ("coordinator", "coordinator"), ("elsewhere", "site"), ("coordinator", None)],
    ids=["site serves", "coordinator calls", "another host's certificate", "no certificate"],
)
def test_tls_every_other_party_refused(
    server: str, client: str | None, parties: dict[str, Credentials], anchor: TrustAnchor
) -> None:
    credentials = parties[client] if client else None
    with _serving(parties[server], anchor) as address, pytest.raises(grpc.RpcError) as refusal:
        _call(address, credentials, anchor)
    assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE
