"""Textual encoding of certificates and keys (PEM, RFC 7468), read as its section 3 asks of parsers.

Line ends may be LF, CRLF or CR; blank lines, spaces, text around the blocks and a byte order mark have no meaning.
Everything else that is not as it should be is named, with its line.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509

from crypto.errors import MalformedError
from crypto.text_decoding import check_encoding

CERTIFICATE = ("CERTIFICATE", "X509 CERTIFICATE")
REQUEST = ("CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST")
KEY_FILE = "PROTOSEAL ENCRYPTED "
"""Beginning of the labels of this program's own key files."""
_BLOCK = re.compile(
    rb"^[ \t]*-----BEGIN ([A-Z0-9 ]+)-----[ \t]*$(.*?)^[ \t]*-----END \1-----[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
_BOUNDARY = re.compile(rb"(BEGIN|END) +([A-Z0-9 ]*(?:CERTIFICATE|KEY|REQUEST))\b")
_OTHER = re.compile(rb"[^A-Za-z0-9+/=\s]")
_NOUNS = {
    **dict.fromkeys(CERTIFICATE, "a certificate"),
    **dict.fromkeys(REQUEST, "a certificate request"),
    f"{KEY_FILE}PRIVATE KEY": "an encrypted private key",
    f"{KEY_FILE}STORAGE KEY": "an encrypted storage key",
    **dict.fromkeys(
        ("PRIVATE KEY", "EC PRIVATE KEY", "RSA PRIVATE KEY", "ENCRYPTED PRIVATE KEY", "OPENSSH PRIVATE KEY"),
        "a private key that another program wrote",
    ),
    "PUBLIC KEY": "a public key",
    "X509 CRL": "a revocation list",
    **dict.fromkeys(("PKCS7", "CMS"), "a PKCS #7 bundle"),
}


@dataclass(frozen=True)
class PemBlock:
    """Block of a PEM file: its label, its text between the boundaries, and its place in the file."""

    label: str
    text: bytes
    start: int
    end: int
    line: int

    def content(self) -> bytes:
        """Return the decoded bytes; raise :class:`MalformedError`, with the line, unless the text is base64."""
        if other := _OTHER.search(self.text):
            letter = self.text[other.start() :].decode("utf-8", "replace")[0]
            line = self.line + self.text.count(b"\n", 0, other.start())
            raise MalformedError(f"is damaged: line {line} has {letter!r}, which is not base64")
        try:
            return base64.b64decode(b"".join(self.text.split()), validate=True)
        except binascii.Error as error:
            raise MalformedError(
                f"is damaged: letters are missing between BEGIN {self.label} and its END"
            ) from error


def normalise(content: bytes) -> bytes:
    """Return a PEM file's content with LF as line ends; raise :class:`MalformedError` for UTF-16 and UTF-32."""
    check_encoding(content)
    return content.replace(b"\r\n", b"\n").replace(b"\r", b"\n").removeprefix(b"\xef\xbb\xbf")


def blocks(content: bytes) -> list[PemBlock]:
    """Return the blocks of a :func:`normalise` file, in order."""
    return [
        PemBlock(match[1].decode(), match[2], *match.span(), content.count(b"\n", 0, match.start(2)) + 1)
        for match in _BLOCK.finditer(content)
    ]


def read_blocks(content: bytes, labels: Sequence[str]) -> list[bytes]:
    """Return the decoded blocks with one of these labels, or a DER file as it is.

    Raises :class:`MalformedError`, whose message follows the file's name, if there are none.
    """
    if content.startswith(b"\x30") and _der_noun(content) == _NOUNS[labels[0]]:
        return [content]
    text = normalise(content)
    chosen = [block.content() for block in blocks(text) if block.label in labels]
    if not chosen:
        raise MalformedError(describe_other_content(content, _NOUNS[labels[0]]))
    return chosen


def describe_other_content(content: bytes, due: str) -> str:
    """Return a phrase that follows a file's name: what the file is in the place of what is ``due``.

    Raises :class:`MalformedError` for UTF-16.
    """
    if not content.strip():
        return "is empty"
    if content.startswith(b"\x30"):
        return f"has {_der_noun(content)} in DER, and not {due}"
    text = normalise(content)
    if present := blocks(text):
        return f"has {' and '.join(dict.fromkeys(_noun(block.label) for block in present))}, and not {due}"
    return _boundary_problem(text)


def _boundary_problem(text: bytes) -> str:
    """Return a phrase that follows a file's name: what is wrong with the lines BEGIN and END, which make no block."""
    boundaries = list(_BOUNDARY.finditer(text))
    if not boundaries:
        return "is no PEM file, since it has no line -----BEGIN ...-----"
    for boundary in boundaries:
        line, name = text.count(b"\n", 0, boundary.start()) + 1, boundary[0].decode()
        before, exact, behind = text.split(b"\n")[line - 1].strip().partition(f"-----{name}-----".encode())
        if not exact or before.endswith(b"-") or behind.startswith(b"-"):
            return f"is damaged: line {line} has not exactly five hyphens on both sides of {name}"
        if before or behind:
            side = "before" if before else "behind"
            return f"is damaged: line {line} has other text {side} -----{name}-----, which needs a line of its own"
    boundary = boundaries[0]
    missing = f"{'END' if boundary[1] == b'BEGIN' else 'BEGIN'} {boundary[2].decode()}"
    return f"is cut short, since -----{missing}----- is missing: take it from a copy, or make and have it signed anew"


def _noun(label: str) -> str:
    return _NOUNS.get(label, f"a block {label}")


def _der_noun(content: bytes) -> str:
    header = 2 + (content[1] & 0x7F if len(content) > 1 and content[1] & 0x80 else 0)
    if content[header : header + 3] == b"\x02\x01\x03":
        return "a key store of PKCS #12 (.p12, .pfx)"
    if content[header : header + 2] == b"\x02\x01":
        return _NOUNS["PRIVATE KEY"]
    for load, label in ((x509.load_der_x509_certificate, CERTIFICATE), (x509.load_der_x509_csr, REQUEST)):
        try:
            load(content)
        except ValueError:
            continue
        return _NOUNS[label[0]]
    return "another object"
