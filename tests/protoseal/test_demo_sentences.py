"""The demo's closing sentences: true of a run that gained, of one that did not, and of one whose prototypes show."""

from __future__ import annotations

from typing import Any

import pytest

from agreement import Agreement
from protoseal.audit.coordinator_view import PRESENCE, SEARCHED, UploadedNumbers
from protoseal.demo import closing_sentences, demo_agreement
from protoseal.reports.result_files import RunResult, SiteFigures, ViewLine

AGREEMENT: Agreement = demo_agreement(seed=0, rounds=1)
ENCRYPTED = UploadedNumbers(plain=0, rotated=640, masked=0, ciphertexts=40)


def result(*accuracies: tuple[float, float, float], found: bool = False) -> RunResult:
    """Return the result of sites with these accuracies by method, local and self."""
    sites = tuple(
        SiteFigures(
            name=f"site-{number}",
            train_samples=8,
            bytes_up=number * 1_000_000,
            bytes_down=0,
            accuracy=own,
            compared={"local": local, "self": own_prototypes},
        )
        for number, (own, local, own_prototypes) in enumerate(accuracies, start=1)
    )
    means = [sum(each) / len(accuracies) for each in zip(*accuracies, strict=True)]
    return RunResult(
        method="fedpc",
        protection="ckks",
        dataset="digits",
        seed=0,
        sites=sites,
        rounds=(),
        mean_accuracy=means[0],
        config=AGREEMENT.model_dump(mode="json", by_alias=True),
        compared={"local": means[1], "self": means[2]},
        coordinator_view=(
            ViewLine(what=SEARCHED, seen=found, evidence="searched"),
            ViewLine(what=PRESENCE, seen=not found, evidence="statements"),
        ),
    )


def test_closing_sentences_count_sites_ahead_of_both_controls() -> None:
    gain, _, _ = closing_sentences(result((0.9, 0.7, 0.8), (0.8, 0.6, 0.9)), ENCRYPTED)
    assert "did not gain" in gain  # 85 % as under self
    gain, _, _ = closing_sentences(result((0.9, 0.7, 0.8), (0.9, 0.6, 0.7)), ENCRYPTED)
    assert "did not gain" not in gain
    assert "2 of 2 did better" in gain
    assert [share in gain for share in ("90.0 %", "65.0 %", "75.0 %")] == [True] * 3


def test_closing_sentences_site_behind_one_control_is_not_ahead() -> None:
    gain, _, _ = closing_sentences(result((0.9, 0.7, 0.8), (0.8, 0.6, 0.81)), ENCRYPTED)
    assert "1 of 2 did better" in gain


def test_closing_sentences_describe_uploads_by_kind() -> None:
    run = result((0.9, 0.7, 0.8), (0.9, 0.7, 0.8))
    _, sent, seen = closing_sentences(run, ENCRYPTED)
    assert "1.0 to 2.0 MB" in sent
    assert "40 ciphertexts" in sent
    assert "no prototype or model in clear" in sent
    assert "untrained" in sent
    assert "untrained" in seen
    _, sent, seen = closing_sentences(run, UploadedNumbers(plain=1280, rotated=0, masked=0, ciphertexts=0))
    assert "1,280 numbers" in sent
    assert [word in sent + seen for word in ("untrained", "ciphertext", "masked")] == [False] * 3
    _, sent, _ = closing_sentences(run, UploadedNumbers(plain=0, rotated=0, masked=1280, ciphertexts=0))
    assert "1,280 masked numbers" in sent
    assert "no prototype or model in clear" in sent


def test_closing_sentences_found_prototype_is_said() -> None:
    run = (0.9, 0.7, 0.8)
    seen = closing_sentences(result(run), ENCRYPTED)[2]
    assert ("found no prototype" in seen, "which classes" in seen) == (True, True)
    seen = closing_sentences(result(run, found=True), ENCRYPTED)[2]
    assert ("found no prototype" in seen, "which classes" in seen) == (False, False)


@pytest.mark.parametrize("missing", [{"coordinator_view": ()}, {"mean_accuracy": None}])
def test_closing_sentences_run_without_search_or_test_is_refused(missing: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"accuracy|unpack"):
        closing_sentences(result((0.9, 0.7, 0.8)).model_copy(update=missing), ENCRYPTED)
