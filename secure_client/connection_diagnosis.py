"""Diagnosis of a connection to the coordinator that failed: one sentence, and in it only what was tried.

gRPC reports every failure as UNAVAILABLE, with words of its own. The diagnosis repeats the steps one by one: look up
the host, connect (through the proxy, if one applies), check the certificate that is shown there, and show this site's.
The site's certificate and key are used only towards a peer that has shown a valid certificate of the coordinator.

Limit: the diagnosis connects a moment after the call that failed, so a cause that has gone by then is not found.
"""

from __future__ import annotations

import base64
import errno
import os
import re
import secrets
import socket
import ssl
from datetime import UTC, datetime
from ipaddress import ip_address

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding

from crypto.errors import CryptoError, VerificationError
from crypto.pki import Credentials, Role, TrustAnchor
from crypto.pki.identity import host_names, issuer_text, load_certificate, subject_text
from secure_client.proxy import Proxy, find_proxy, list_ignored_proxies, split_target, suggest_exception

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 10.0
_REASONS = {
    errno.ECONNREFUSED: "nothing listens there (connection refused)",
    errno.EHOSTUNREACH: "no route to that host",
    errno.ENETUNREACH: "no route to that network",
    errno.ECONNRESET: "the connection was reset",
}


class _Cause(Exception):
    """Cause of a failed connection, as a sentence without its full stop."""


def diagnose(target: str, credentials: Credentials, trust: TrustAnchor) -> str | None:
    """Return the cause for which ``target`` (host:port) cannot be used; None if every step succeeds now."""
    host, port = split_target(target)
    proxy = find_proxy(host)
    try:
        # Two connections: this site shows its certificate, and signs with its key, only to a peer that the first one
        # has found to be the coordinator.
        with _connect(host, port, proxy) as opened:
            certificate = _fetch_certificate(opened, host, _describe_place(host, port, proxy))
        _check_certificate(certificate, host, _describe_place(host, port, proxy), trust)
        with _connect(host, port, proxy) as opened:
            _show_own_certificate(opened, host, _describe_place(host, port, proxy), credentials, trust)
    except _Cause as cause:
        return f"{cause}{_find_way_around(host, port, proxy) if isinstance(cause, _Unreached) else ''}"
    except CryptoError as error:
        return f"{_describe_place(host, port, proxy)}: {error}"
    except OSError as error:
        return f"{_describe_place(host, port, proxy)}: {_describe_error(error)}"
    return None


class _Unreached(_Cause):
    """Cause that lies before the coordinator's machine: a name, a route, a port or a proxy."""


def _describe_place(host: str, port: int, proxy: Proxy | None) -> str:
    through = "" if proxy is None else f" through the proxy {proxy}"
    return f"{host}:{port}{through}"


def _find_way_around(host: str, port: int, proxy: Proxy | None) -> str:
    """Return a remedy that was tried: no proxy where one applies, or a proxy that gRPC does not read."""
    if proxy is not None:
        try:
            _connect_directly(host, port).close()
        except _Cause:
            return ""
        return f"; {host}:{port} can be reached without the proxy: {suggest_exception(host)}"
    for other in list_ignored_proxies():
        try:
            _connect(host, port, other).close()
        except (_Cause, OSError):
            continue
        return (
            f"; the proxy {other} reaches it, but gRPC does not read that setting: set https_proxy, in small letters, "
            "to a value that begins with http://"
        )
    return ""


def _connect(host: str, port: int, proxy: Proxy | None) -> socket.socket:
    if proxy is None:
        return _connect_directly(host, port)
    try:
        opened = _connect_directly(proxy.host, proxy.port)
    except _Cause as cause:
        raise _Unreached(f"the proxy {proxy} cannot be reached: {cause}") from cause
    try:
        _open_tunnel(opened, host, port, proxy)
    except BaseException:
        opened.close()
        raise
    return opened


def _connect_directly(host: str, port: int) -> socket.socket:
    """Return a connection to the first address of the host that accepts one."""
    try:
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        unknown = isinstance(error, socket.gaierror) and error.errno != socket.EAI_AGAIN
        problem = "is unknown" if unknown else "cannot be looked up"
        raise _Unreached(
            f"the host name {host} {problem} ({getattr(error, 'strerror', None) or error})"
        ) from error
    failures = []
    for family, kind, protocol, _, place in dict.fromkeys(places):
        opened = socket.socket(family, kind, protocol)
        opened.settimeout(_CONNECT_SECONDS)
        try:
            opened.connect(place)
        except OSError as error:
            opened.close()
            failures.append(f"{place[0]}: {_describe_error(error)}")
        else:
            opened.settimeout(_ANSWER_SECONDS)
            return opened
    raise _Unreached(f"no connection to port {port} of {host} ({'; '.join(failures)})")


def _describe_error(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    return _REASONS.get(error.errno or 0, error.strerror or str(error))


def _open_tunnel(opened: socket.socket, host: str, port: int, proxy: Proxy) -> None:
    name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    basic = base64.b64encode(proxy.login.encode()).decode()
    password = f"Proxy-Authorization: Basic {basic}\r\n" if proxy.login else ""
    answer = b""
    try:
        opened.sendall(f"CONNECT {name} HTTP/1.1\r\nHost: {name}\r\n{password}\r\n".encode())
        # Bounded, so that a proxy whose header never ends does not fill the memory.
        while b"\r\n\r\n" not in answer and len(answer) < 1 << 16 and (more := opened.recv(4096)):
            answer += more
    except OSError as error:
        raise _Unreached(f"the proxy {proxy} does not answer: {_describe_error(error)}") from error
    version, _, status = answer.partition(b"\r\n")[0].decode("latin-1").partition(" ")
    status = status[:3]  # its words may repeat the request, and with it the password
    if not version.startswith("HTTP/"):
        raise _Unreached(f"at the address of the proxy {proxy} no HTTP proxy answers ({_quote(answer)})")
    if status.startswith("407"):
        login = (
            "refuses the user and password in that setting" if proxy.login else "needs a user and password"
        )
        problem = _describe_demand(answer) or login
        raise _Unreached(f"the proxy {proxy} {problem} (HTTP {status})")
    if not status.startswith("2"):
        raise _Unreached(f"the proxy {proxy} refuses a tunnel to {name} (HTTP {status})")


def _describe_demand(answer: bytes) -> str:
    """Return what a proxy demands that no user and password can give; empty if it takes Basic or names nothing."""
    fields = re.findall(r"(?im)^proxy-authenticate:([^\r\n]*)", answer.decode("latin-1"))
    words = [part.split()[0] for value in fields for part in value.split(",") if part.strip()]
    schemes = list(dict.fromkeys(word for word in words if re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", word)))
    if not schemes or "basic" in map(str.lower, schemes):
        return ""
    return f"demands {' or '.join(schemes)}, and gRPC can log in by Basic alone: ask for an exception for this host"


def _fetch_certificate(opened: socket.socket, host: str, place: str) -> x509.Certificate:
    """Return the certificate at the other end, unverified. This site shows none and does not finish the handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Unverified on purpose: a wrong certificate is to be described. Nothing of this site crosses this connection.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    incoming, outgoing, first = ssl.MemoryBIO(), ssl.MemoryBIO(), b""
    tls = context.wrap_bio(incoming, outgoing, server_hostname=host)
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            received = _exchange_bytes(opened, outgoing.read(), place)
            first = first or received
            incoming.write(received)
        except ssl.SSLError as error:
            # A TLS record begins with its kind, 0x15 for an alert or 0x16 for a handshake, and with version 3.
            if not first.startswith((b"\x15\x03", b"\x16\x03")):
                raise _Cause(f"{place} answers without TLS, {_guess_protocol(first)}") from error
            raise _Cause(f"{place} refuses this TLS ({error.reason})") from error
    shown = tls.getpeercert(binary_form=True)
    if shown is None:
        raise _Cause(f"{place} shows no certificate")
    return load_certificate(shown)


def _exchange_bytes(opened: socket.socket, sent: bytes, place: str) -> bytes:
    try:
        opened.sendall(sent)
        received = opened.recv(1 << 16)
    except TimeoutError as error:
        raise _Cause(
            f"{place} accepts the connection and sends nothing for {_ANSWER_SECONDS:.0f} s"
        ) from error
    if not received:
        raise _Cause(f"{place} accepts the connection and closes it during the TLS handshake")
    return received


def _guess_protocol(first: bytes) -> str:
    if first.startswith(b"HTTP/"):
        return "in HTTP: this is another service"
    # The fourth byte of an HTTP/2 frame is its type: 4 for SETTINGS, with which a server begins, and 7 for GOAWAY.
    if first[3:5] in (b"\x04\x00", b"\x07\x00"):
        return "in HTTP/2: this is another service, or gRPC without TLS"
    return f"with {_quote(first)}: this is another service"


def _quote(content: bytes) -> str:
    return repr(content[:40].decode("latin-1").splitlines()[0]) if content.strip() else "nothing"


def _check_certificate(certificate: x509.Certificate, host: str, place: str, trust: TrustAnchor) -> None:
    """Raise :class:`_Cause` unless this is the coordinator's valid certificate for this host."""
    authority = load_certificate(trust.certificate_pem)
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError) as error:
        same = (
            "; a CA of that name with another key made it"
            if issuer_text(certificate) == subject_text(authority)
            else ""
        )
        raise _Cause(
            f"{place} shows a certificate of {subject_text(certificate)} that {issuer_text(certificate)} issued, and "
            f"not the CA in {trust.source} ({subject_text(authority)}, fingerprint {trust.fingerprint[:16]}){same}"
        ) from error
    try:
        trust.identify(certificate.public_bytes(Encoding.DER), Role.COORDINATOR, datetime.now(UTC))
    except VerificationError as error:
        raise _Cause(f"{place} shows a certificate that cannot be the coordinator's: {error}") from error
    hosts = host_names(certificate)
    if not _covers_host(hosts, host):
        raise _Cause(
            f"the certificate of the coordinator at {place} is for {' and '.join(hosts)}, not for {host}: name one of "
            f"these as coordinator, or have a certificate made with --host {host}"
        )


def _covers_host(hosts: list[str], host: str) -> bool:
    try:
        return ip_address(host) in {ip_address(name) for name in hosts if _is_address(name)}
    except ValueError:
        return host.lower() in {name.lower() for name in hosts}


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _show_own_certificate(
    opened: socket.socket, host: str, place: str, credentials: Credentials, trust: TrustAnchor
) -> None:
    """Raise :class:`_Cause` if the coordinator ends the connection once it has seen this site's certificate.

    gRPC's server closes such a connection without a word, after a TLS 1.3 handshake that is complete for this end.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=trust.certificate_pem.decode())
    context.set_alpn_protocols(["h2"])
    _load_credentials(context, credentials)
    try:
        with context.wrap_socket(opened, server_hostname=host) as tls:
            if tls.selected_alpn_protocol() != "h2":
                raise _Cause(f"{place} speaks TLS, but not gRPC: this is another service")
            # gRPC's server begins with a SETTINGS frame, so a byte means that it took this site's certificate.
            if tls.recv(1):
                return
    except TimeoutError as error:
        raise _Cause(f"{place} completes TLS and then sends nothing for {_ANSWER_SECONDS:.0f} s") from error
    except ssl.SSLCertVerificationError as error:
        raise _Cause(f"{place} shows a certificate that TLS refuses ({error.verify_message})") from error
    except (ssl.SSLError, ConnectionError):
        pass  # under TLS 1.3 a refused certificate shows at the first read, as an alert or a reset
    shown = load_certificate(credentials.certificate_der)
    raise _Cause(
        f"{place} closes the connection once it has seen this site's certificate ({subject_text(shown)}, serial number "
        f"{shown.serial_number:x}, issued by {issuer_text(shown)}, valid until"
        f" {shown.not_valid_after_utc:%Y-%m-%d %H:%M} UTC): the coordinator's log has the reason"
    )


def _load_credentials(context: ssl.SSLContext, credentials: Credentials) -> None:
    """Give the context this site's certificate and key, through a file in memory; its key is encrypted even there."""
    password = secrets.token_hex(16).encode()
    file = os.memfd_create("certificate")
    try:
        os.write(file, credentials.certificate_pem + credentials.encrypted_key_pem(password))
        context.load_cert_chain(f"/proc/self/fd/{file}", password=password)
    finally:
        os.close(file)
