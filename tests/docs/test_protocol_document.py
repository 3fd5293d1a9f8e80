"""Page docs/reference/protocol.md against the code: labels, phases, version, refusals, forms of ciphertexts."""

from __future__ import annotations

import re
from pathlib import Path

from crypto.ckks import parameters
from crypto.ckks.group_mixing import MixLayout
from crypto.ckks.parameters import CiphertextShape
from crypto.fixed_point import Segment
from crypto.pairwise.attempt import threshold
from crypto.shamir import PRIME
from protoseal_wire.codec.calls import CHUNK_BYTES
from protoseal_wire.messages import PROTOCOL_VERSION, Phase
from secure_client.errors import PhaseOver, Refused
from secure_client.transport import FINAL
from secure_server.service.servicer import STATUS

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs/reference/protocol.md").read_text(encoding="utf-8")
AT_HOME = {"journal-secret", "simulated-storage-key", "stored-secret", "wrapped-key"}
"""Labels of what never travels."""
_CALLS = (
    r'(?:_LABEL|_SHARERS|_SURVIVORS) = "([a-z-]+)"',
    r'(?<![.\w])encode\(\s*"([a-z-]+)"',
    r'\bderive\(\w+, "([a-z-]+)"',
)


def labels_in_code() -> set[str]:
    found: set[str] = set()
    for folder in ("agreement", "crypto", "proto", "secure_client", "secure_server", "protoseal"):
        for path in (ROOT / folder).rglob("*.py"):
            for pattern in _CALLS:
                found |= set(re.findall(pattern, path.read_text(encoding="utf-8")))
    return found


def test_every_label_is_in_the_table_and_no_other() -> None:
    table = DOCUMENT[DOCUMENT.index("| label |") :].split("\n\n")[0]
    assert set(re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE)) == labels_in_code() - AT_HOME


def test_document_names_the_codes_version_and_phases() -> None:
    assert f"# The protocol, version {PROTOCOL_VERSION}" in DOCUMENT
    assert all(re.search(rf"\b{phase.name}\b", DOCUMENT) for phase in Phase)
    assert f"chunks of {CHUNK_BYTES // 1024} KiB" in DOCUMENT
    assert "2²⁵⁶ + 297" in DOCUMENT
    assert PRIME == 2**256 + 297
    assert [threshold(n) for n in (3, 4, 9, 100)] == [2 * n // 3 + 1 for n in (3, 4, 9, 100)]


def test_refusals_have_the_statuses_of_the_table_and_what_a_site_does() -> None:
    rows = DOCUMENT[DOCUMENT.index("| refused because |") :].split("\n\n")[0]
    table = dict(re.findall(r"^\| .+ \| `([A-Z_]+)` \| (.+) \|$", rows, re.MULTILINE))
    assert set(table) == {code.name for code in STATUS.values()}
    does = {PhaseOver: "asks for the next task", Refused: "stops"}
    assert {code.name: does[error] for code, error in FINAL.items()} == {
        name: what for name, what in table.items() if what != "sends again"
    }


def moduli() -> list[int]:
    """Return the document's moduli: q₀, q₁, q₂, and the one for key switching."""
    (sentence,) = re.findall(r"are q₀ = .*? and (?:\d+),", DOCUMENT, re.DOTALL)
    return [int(number) for number in re.findall(r"\d{8,}", sentence)]


def test_moduli_are_those_of_the_code() -> None:
    assert moduli() == [int(each.value()) for each in parameters._MODULI]


def test_ciphertexts_have_the_forms_of_the_table() -> None:
    """Written out as the document says them, in float64 from left to right."""
    q0, q1, q2, _ = map(float, moduli())
    assert q0 > q1 > q2
    corr = 2.0**40 * 2.0**40 / q2 * 2.0**5
    expected = {
        parameters.PROTOTYPE: (3, 2.0**40, 1),
        parameters.CORRECTION: (2, corr, 1),
        parameters.NUMERATOR: (1, corr * 2.0**40 / q1, 2),
        parameters.DENOMINATOR: (1, corr * 2.0**39 / q1, 2),
        parameters.SUM: (1, 2.0**40, 2),
    }
    mixing = MixLayout(3, [Segment(2, 1.0)], groups=10)
    direction, numbers = mixing.uploads
    expected[direction], expected[numbers] = (3, 2.0**45, 1), (2, numbers.scale, 1)
    expected[mixing.answers[0]] = (1, 2.0**45 * 2.0**45 / q2 * numbers.scale / q1, 2)
    for form, (primes, scale, polynomials) in expected.items():
        assert form == CiphertextShape(parameters.CkksLevel(primes), scale, polynomials)
