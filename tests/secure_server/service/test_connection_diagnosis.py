"""Connections that fail: each cause is named, with the host, port, proxy, CA or certificate that it is about."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from crypto.pki import Credentials, Identity, TrustAnchor
from protoseal_wire import codec
from secure_client.connection_diagnosis import diagnose
from secure_client.errors import Unreachable
from secure_client.proxy import find_proxy
from secure_client.transport import GrpcTransport
from tests.secure_server.service.conftest import SecurityLog
from tests.secure_server.service.harness import RUN, FakeHandler, dialling, join_request, serving
from tests.secure_server.service.parties import CLIENT, NAME, SERVER, Federation
from tests.support import processes
from tests.support.connect_proxy import connect_proxy

COORDINATOR, SITE = Identity.coordinator(NAME), Identity.site(NAME, "clinic-a")
VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy")
SECRET = "s3cret"  # noqa: S105 (of a proxy that lives as long as a test)


@pytest.fixture(autouse=True)
def _short_waits_and_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr("secure_client.connection_diagnosis._ANSWER_SECONDS", 0.3)
    monkeypatch.setattr("secure_client.connection_diagnosis._CONNECT_SECONDS", 0.3)


def refusal(target: str, site: Credentials, trust: TrustAnchor) -> str:
    """Return the one line of ``client check`` for a coordinator that cannot be reached."""
    with (
        GrpcTransport(target, site, trust, RUN, retry_seconds=0.0) as transport,
        pytest.raises(Unreachable) as refused,
    ):
        transport.check()
    text = str(refused.value)
    assert "\n" not in text
    assert "ipv4:" not in text  # gRPC's own words
    return text


@contextmanager
def answering(answer: Callable[[socket.socket], None], family: int = socket.AF_INET) -> Iterator[int]:
    """Accept connections and answer each in a thread of its own while the block runs."""
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    with socket.create_server((host, 0), family=family) as listener:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    opened, _ = listener.accept()
                    threading.Thread(target=run, args=(opened,), daemon=True).start()

        def run(opened: socket.socket) -> None:
            with opened, suppress(OSError):
                answer(opened)

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def says(greeting: bytes) -> Callable[[socket.socket], None]:
    def answer(opened: socket.socket) -> None:
        opened.recv(4096)
        opened.sendall(greeting)
        opened.recv(4096)

    return answer


def says_nothing(opened: socket.socket) -> None:
    while opened.recv(4096):
        pass


def closes(opened: socket.socket) -> None:
    opened.recv(4096)


@contextmanager
def grpc_without_tls() -> Iterator[int]:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port
    server.stop(0).wait()


OTHER_SERVICES: dict[str, tuple[Callable[[], AbstractContextManager[int]], str]] = {
    "SSH": (lambda: answering(says(b"SSH-2.0-OpenSSH_9.7\r\n")), "SSH-2.0"),
    "mail": (lambda: answering(says(b"220 mail.example.org ESMTP\r\n")), "220 mail.example.org"),
    "HTTP": (lambda: answering(says(b"HTTP/1.1 400 Bad Request\r\n\r\n")), "HTTP"),
    "gRPC without TLS": (grpc_without_tls, "without TLS"),
    "silence": (lambda: answering(says_nothing), "sends nothing"),
    "a closed door": (lambda: answering(closes), "closes it"),
}


@pytest.mark.parametrize("name", OTHER_SERVICES)
def test_another_service_at_the_port_is_named(name: str, site: Credentials, federation: Federation) -> None:
    service, named = OTHER_SERVICES[name]
    with service() as port:
        cause = diagnose(f"127.0.0.1:{port}", site, federation.trust)
    assert cause is not None
    assert f"127.0.0.1:{port}" in cause
    assert named in cause


def test_no_service_and_no_host_are_named(site: Credentials, federation: Federation) -> None:
    port = processes.free_port()
    assert f"port {port} of 127.0.0.1" in refusal(f"127.0.0.1:{port}", site, federation.trust)
    assert "nowhere.invalid" in refusal("nowhere.invalid:8443", site, federation.trust)


def test_each_address_of_a_host_is_named(
    site: Credentials, federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that listens at one of a host's addresses is found; otherwise every address is named."""
    port = processes.free_port()
    places = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)),
    ]
    monkeypatch.setattr("secure_client.connection_diagnosis.socket.getaddrinfo", lambda *_, **__: places)
    cause = diagnose(f"coordinator.example.org:{port}", site, federation.trust)
    assert cause is not None
    assert "::1: " in cause
    assert "127.0.0.1: " in cause
    server = federation.coordinator("coordinator.example.org")
    with serving(FakeHandler(), server, federation.trust, port=port):
        assert diagnose(f"coordinator.example.org:{port}", site, federation.trust) is None


CERTIFICATES: dict[str, tuple[Identity, list[object], tuple[str, ...], tuple[int, int], tuple[str, ...]]] = {
    "for another host": (
        COORDINATOR,
        [SERVER],
        ("c.example.org", "10.0.0.9"),
        (-1, 1),
        ("c.example.org", "10.0.0.9", "127.0.0.1"),
    ),
    "expired": (COORDINATOR, [SERVER], ("127.0.0.1",), (-2, -1), ("UTC",)),
    "not yet valid": (COORDINATOR, [SERVER], ("127.0.0.1",), (1, 2), ("UTC",)),
    "a site's": (SITE, [CLIENT], ("127.0.0.1",), (-1, 1), ("coordinator",)),
}


@pytest.mark.parametrize("name", CERTIFICATES)
def test_a_certificate_that_is_not_the_coordinators_is_named(
    name: str, site: Credentials, federation: Federation
) -> None:
    identity, usages, hosts, days, named = CERTIFICATES[name]
    server = federation.odd(identity, usages, hosts, days)  # type: ignore[arg-type]
    with serving(FakeHandler(), server, federation.trust) as port:
        text = refusal(f"127.0.0.1:{port}", site, federation.trust)
    assert all(part in text for part in (*named, f"127.0.0.1:{port}"))


def test_a_foreign_ca_is_named_and_the_file_of_the_own(
    site: Credentials, federation: Federation, stranger: Federation, tmp_path: Path
) -> None:
    (tmp_path / "ca.pem").write_bytes(federation.trust.certificate_pem)
    trust = TrustAnchor.load(tmp_path / "ca.pem")
    with serving(FakeHandler(), stranger.coordinator(), stranger.trust) as port:
        text = refusal(f"127.0.0.1:{port}", site, trust)
    for part in (str(tmp_path / "ca.pem"), trust.fingerprint[:16], f"O={NAME}", "of that name"):
        assert part in text


def test_a_site_that_the_coordinator_refuses_is_sent_to_its_log(
    federation: Federation, stranger: Federation, coordinator: Credentials
) -> None:
    """The certificate is another CA's, expired or not yet valid for the coordinator alone."""
    for own in (stranger.site(), federation.odd(SITE, [CLIENT], (), (-2, -1))):
        with serving(FakeHandler(), coordinator, federation.trust) as port:
            text = refusal(f"127.0.0.1:{port}", own, federation.trust)
        assert "log" in text
        assert "valid until" in text


def test_another_tls_service_of_the_federation_is_named(
    site: Credentials, federation: Federation, tmp_path: Path
) -> None:
    coordinator, context = federation.coordinator(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (tmp_path / "both.pem").write_bytes(coordinator.certificate_pem + coordinator.encrypted_key_pem(b"word"))
    context.load_cert_chain(tmp_path / "both.pem", password=b"word")

    def answer(opened: socket.socket) -> None:
        with context.wrap_socket(opened, server_side=True) as tls:
            tls.recv(4096)

    with answering(answer) as port:
        cause = diagnose(f"127.0.0.1:{port}", site, federation.trust)
    assert cause is not None
    assert "not gRPC" in cause


class TestProxies:
    @pytest.fixture
    def named(
        self, site: Credentials, federation: Federation
    ) -> Iterator[tuple[str, Credentials, TrustAnchor]]:
        """A coordinator whose name the proxy alone can look up."""
        server = federation.coordinator("coordinator.invalid")
        with serving(FakeHandler(), server, federation.trust) as port:
            yield f"coordinator.invalid:{port}", site, federation.trust

    @pytest.mark.parametrize("login", ["", f"north:{SECRET}"])
    @pytest.mark.parametrize("variable", ["https_proxy", "http_proxy", "grpc_proxy"])
    def test_a_tunnel_is_opened_with_a_password_too(
        self,
        variable: str,
        login: str,
        named: tuple[str, Credentials, TrustAnchor],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        target, site, trust = named
        with connect_proxy(login) as proxy:
            monkeypatch.setenv(variable, f"http://{login + '@' if login else ''}127.0.0.1:{proxy.port}")
            with GrpcTransport(target, site, trust, RUN, retry_seconds=0.0) as transport:
                transport.check()
            assert diagnose(target, site, trust) is None
            assert set(proxy.asked) == {target}
        assert SECRET not in str(find_proxy("coordinator.invalid"))
        assert SECRET not in repr(find_proxy("coordinator.invalid"))

    @pytest.mark.parametrize(
        ("status", "login", "given", "part"),
        [
            ("403 Forbidden", "", "", "403"),
            ("502 Bad Gateway", "", "", "502"),
            ("407 No\r\nProxy-Authenticate: NTLM", "", f"north:{SECRET}@", "NTLM"),
            (
                "407 No\r\nProxy-Authenticate: Negotiate\r\nProxy-Authenticate: NTLM",
                "",
                "",
                "Negotiate or NTLM",
            ),
            ("407 No\r\nProxy-Authenticate: Digest a=b, Basic realm=c", "", "", "needs a user"),
            ("", "north:word", "", "needs a user"),
            ("", "north:word", f"north:{SECRET}@", "refuses the user"),
        ],
    )
    def test_a_proxy_that_refuses_is_named(
        self,
        status: str,
        login: str,
        given: str,
        part: str,
        named: tuple[str, Credentials, TrustAnchor],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        with connect_proxy(login, status) as proxy:
            monkeypatch.setenv("https_proxy", f"http://{given}127.0.0.1:{proxy.port}")
            text = refusal(*named)
        assert SECRET not in text
        for named_part in (f"127.0.0.1:{proxy.port}", "https_proxy", part):
            assert named_part in text

    def test_a_proxy_that_does_not_answer_is_named(
        self, named: tuple[str, Credentials, TrustAnchor], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{processes.free_port()}")
        assert "https_proxy" in refusal(*named)
        monkeypatch.setenv("https_proxy", "http://proxy.invalid:3128")
        assert "proxy.invalid" in refusal(*named)
        for service in (answering(says(b"SSH-2.0-OpenSSH\r\n")), answering(says_nothing), answering(closes)):
            with service as port:
                monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
                cause = diagnose(*named)
            assert cause is not None
            assert f"127.0.0.1:{port} (from https_proxy)" in cause

    def test_a_proxy_that_inspects_tls_is_named_by_its_issuer(
        self, site: Credentials, federation: Federation, stranger: Federation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        inspecting = stranger.coordinator("coordinator.invalid")
        with serving(FakeHandler(), inspecting, stranger.trust) as port, connect_proxy() as proxy:
            monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
            text = refusal(f"coordinator.invalid:{port}", site, federation.trust)
        for part in (f"CN=federation CA,O={NAME}", "https_proxy"):
            assert part in text

    def test_a_host_that_needs_no_proxy_is_told_so(
        self, port: int, site: Credentials, federation: Federation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{processes.free_port()}")
        assert "no_proxy" in refusal(f"127.0.0.1:{port}", site, federation.trust)
        for variable, value in (
            ("NO_PROXY", "127.0.0.1"),
            ("no_proxy", "*"),
            ("no_proxy", f"a, 127.0.0.1:{port}"),
        ):
            monkeypatch.setenv(variable, value)
            told = refusal(f"127.0.0.1:{port}", site, federation.trust)
            assert "no_proxy" in told
            assert (variable if variable.isupper() else repr(value.rpartition(" ")[2])) in told
        monkeypatch.setenv("no_proxy", "127.0.0.0/8")
        assert diagnose(f"127.0.0.1:{port}", site, federation.trust) is None

    @pytest.mark.parametrize(
        ("variable", "scheme"), [("HTTPS_PROXY", "http://"), ("https_proxy", "https://"), ("https_proxy", "")]
    )
    def test_a_proxy_that_grpc_does_not_read_is_named_if_it_would_help(
        self,
        variable: str,
        scheme: str,
        named: tuple[str, Credentials, TrustAnchor],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        with connect_proxy() as proxy:
            monkeypatch.setenv(variable, f"{scheme}127.0.0.1:{proxy.port}")
            text = refusal(*named)
        assert f"(from {variable})" in text
        assert "set https_proxy" in text


NO_PROXY = {
    "example.org": True,
    ".example.org": True,
    "coordinator.example.org": True,
    "org": True,
    "EXAMPLE.ORG": True,
    " other.net , example.org ": True,
    "ple.org": False,
    "*.example.org": False,
    "*": False,
    "coordinator.example.org:8443": False,
    "": False,
}
"""Values of ``no_proxy``, and whether grpcio 1.85 then connects to coordinator.example.org directly."""


@pytest.mark.parametrize("value", NO_PROXY)
def test_hosts_without_a_proxy_are_those_of_grpc(
    value: str, site: Credentials, federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect_proxy(status="403 Forbidden") as proxy:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("no_proxy", value)
        with (
            suppress(Unreachable),
            GrpcTransport(
                "coordinator.example.org:8443", site, federation.trust, RUN, retry_seconds=0.0
            ) as transport,
        ):
            transport.leave()
        assert (not proxy.asked) is NO_PROXY[value]
        assert (find_proxy("coordinator.example.org") is None) is NO_PROXY[value]


def test_variables_are_read_in_the_order_of_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in enumerate(("http_proxy", "https_proxy", "grpc_proxy"), start=1):
        monkeypatch.setenv(name, f"http://127.0.0.{number}:3128")
        chosen = find_proxy("coordinator.example.org")
        assert chosen is not None
        assert (chosen.variable, chosen.host) == (name, f"127.0.0.{number}")
    monkeypatch.setenv("grpc_proxy", "")
    assert find_proxy("coordinator.example.org") is None
    monkeypatch.setenv("grpc_proxy", "http://a%40b:c%3Ad@proxy.example.org")
    chosen = find_proxy("coordinator.example.org")
    assert chosen is not None
    assert (chosen.login, chosen.port) == ("a@b:c:d", 443)


PROXIES = {
    "HTTP://127.0.0.1:9": "127.0.0.1:9",
    "http://a:b@c@127.0.0.1:9": "127.0.0.1:9",
    "http://a:b[c@127.0.0.1:9/": "127.0.0.1:9",
    "http://127.0.0.1": "127.0.0.1:443",
    "http://[::1]:9": "[::1]:9",
    "socks5://127.0.0.1:9": None,
    "http:///127.0.0.1:9": None,
    "http://": None,
    "127.0.0.1:9": None,
}
"""Values of ``https_proxy``, and the proxy that grpcio 1.85 makes of them."""


@pytest.mark.parametrize("value", PROXIES)
def test_value_of_a_proxy_variable_is_read_as_by_grpc(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", value)
    chosen, expected = find_proxy("coordinator.example.org"), PROXIES[value]
    assert (chosen is None) is (expected is None)
    assert expected is None or f"{expected} (from https_proxy)" in str(chosen)


@pytest.mark.parametrize(
    "place",
    [f"north:{SECRET}{letter}1@proxy:9" for letter in "#/?"]
    + ["north:12#1@proxy:9", "proxy:port", "proxy:99999", "proxy:0", "proxy:-9", "::1:9"],
)
def test_value_that_grpc_reads_otherwise_names_its_variable_and_no_password(
    place: str, site: Credentials, federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", f"http://{place}")
    with pytest.raises(Unreachable, match="https_proxy") as refused:
        GrpcTransport("coordinator.example.org:8443", site, federation.trust, RUN, retry_seconds=0.0)
    assert place.split("@", maxsplit=1)[0] not in str(refused.value)
    assert SECRET not in str(refused.value)
    monkeypatch.setenv("no_proxy", "example.org")
    assert find_proxy("coordinator.example.org") is None


REFUSED: dict[str, tuple[Callable[[Federation, Federation], Credentials | None], str]] = {
    "no certificate": (lambda own, stranger: None, "no certificate"),
    "of another CA": (lambda own, stranger: stranger.site(), "certificate"),
    "expired": (lambda own, stranger: own.odd(SITE, [CLIENT], (), (-2, -1)), "certificate"),
    "not yet valid": (lambda own, stranger: own.odd(SITE, [CLIENT], (), (1, 2)), "certificate"),
    "the coordinator's": (lambda own, stranger: own.coordinator(), "certificate"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_coordinators_log_names_the_address_of_a_peer_that_tls_refuses(
    name: str, port: int, federation: Federation, stranger: Federation, security: SecurityLog
) -> None:
    make, reason = REFUSED[name]
    credentials = make(federation, stranger)
    with dialling(port, federation.trust, credentials) as stub, pytest.raises(grpc.RpcError):
        stub.Join(codec.encode_join(join_request()), timeout=20)
    event = _refusal(security)
    assert (event["event"], event["site"]) == ("TlsRefused", None)
    assert event["peer"].startswith("ipv4:127.0.0.1:")
    assert reason in event["reason"]
    assert ("no certificate" in event["reason"]) is (credentials is None)


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x00" * 300]
)
def test_the_coordinators_log_names_the_address_of_a_peer_without_tls(
    sent: bytes, port: int, security: SecurityLog
) -> None:
    for _ in range(3):  # one line a minute
        with socket.create_connection(("127.0.0.1", port)) as opened, suppress(ConnectionError):
            opened.sendall(sent)
            while opened.recv(4096):
                pass
    assert "no TLS" in _refusal(security)["reason"]
    assert len(security.events) == 1


def test_a_refusal_does_not_hide_another_reason_from_the_same_network(
    port: int, federation: Federation, security: SecurityLog
) -> None:
    with socket.create_connection(("127.0.0.1", port)) as opened, suppress(ConnectionError):
        opened.sendall(b"GET / HTTP/1.1\r\n\r\n")
        while opened.recv(4096):
            pass
    with dialling(port, federation.trust, None) as stub, pytest.raises(grpc.RpcError):
        stub.Join(codec.encode_join(join_request()), timeout=20)
    wait_until(lambda: len(security.events) == 2)
    assert "no certificate" in security.events[1]["reason"]


def test_a_site_that_ends_the_handshake_itself_is_no_refusal(
    port: int,
    site: Credentials,
    stranger: Federation,
    security: SecurityLog,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    assert diagnose(f"127.0.0.1:{port}", site, stranger.trust) is not None
    wait_until(lambda: "before a first call" in caplog.text)
    assert security.events == []


def _refusal(security: SecurityLog) -> dict[str, Any]:
    wait_until(lambda: len(security.events) > 0)
    return security.events[0]


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.01)
