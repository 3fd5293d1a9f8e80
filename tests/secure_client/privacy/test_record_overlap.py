"""Records that are charged under two names: a warning with the share of them, and nothing that names a record."""

from __future__ import annotations

import base64
import hashlib
import stat
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from PIL import Image

from agreement import PreprocessingSection
from crypto.errors import KeyStoreError
from crypto.keys import StorageKey
from crypto.pki.key_files import Stretching, write_key
from privacy.ledger.budget_account import read_account
from privacy.ledger.lines import OVERLAPS, RECORDS
from secure_client.data.sources import hash_training_records
from secure_client.privacy.record_overlap import (
    RECORDS_KEY,
    OverlapComparison,
    Sketch,
    compare_records,
    open_records_key,
)
from tests.support.ledgers import LIMIT, open_ledger, spending

KEY = StorageKey(bytes(range(32)))


def records(numbers: Sequence[int] | range) -> list[bytes]:
    return [hashlib.sha256(str(number).encode()).digest() for number in numbers]


def charge(folder: Path, name: str, numbers: range, key: StorageKey = KEY, *, exact: bool = False) -> Path:
    """Charge these records to a data set of that name, in a ledger of that name."""
    path = folder / f"{name}.jsonl"
    ledger = open_ledger(path, name)
    facts = {RECORDS: Sketch.of(records(numbers)).encrypt(key)}
    if exact:
        ledger.record_exposure("run-0", bytes(32), facts)
    else:
        ledger.spend(replace(spending(1), facts=facts))
    return path


def compared(folder: Path, numbers: range, name: str = "scans") -> OverlapComparison:
    return compare_records(Sketch.of(records(numbers)), KEY, folder / f"{name}.jsonl", name)


def test_sketch_depends_on_neither_order_nor_repetition() -> None:
    numbers = list(range(5000))
    np.random.default_rng(0).shuffle(numbers)
    assert Sketch.of(records(numbers)) == Sketch.of(records([*range(5000), *range(100)]))
    assert len(Sketch.of(records(range(5000))).hashes) == 256


@pytest.mark.parametrize(
    ("mine", "other", "share"),
    [
        (range(100), range(100), 1.0),
        (range(100), range(10, 110), 0.9),
        (range(100), range(100, 200), 0.0),
        (range(20_000), range(2_000, 22_000), 0.9),
        (range(2_000), range(20_000), 1.0),
        (range(20_000), range(2_000), 0.1),
        (range(20_000), range(20_000, 40_000), 0.0),
    ],
)
def test_share_in_estimates_parts_and_is_zero_for_others(mine: range, other: range, share: float) -> None:
    estimate = Sketch.of(records(mine)).share_in(Sketch.of(records(other)))
    standard_error = (share * (1 - share) / 256) ** 0.5 if len(mine) > 256 else 0.0
    assert estimate == pytest.approx(share, abs=4 * standard_error + 1e-9)


@pytest.mark.parametrize("exact", [False, True])
def test_compare_records_under_another_name_warns_with_the_share(tmp_path: Path, exact: bool) -> None:
    charge(tmp_path, "x-rays", range(100, 1100), exact=exact)
    (tmp_path / "data.npz").write_bytes(bytes(10_000))
    (tmp_path / "empty").write_bytes(b"")
    found = compared(tmp_path, range(1000))
    (overlap,) = found.overlaps
    assert (overlap.dataset, overlap.ledger.name) == ("x-rays", "x-rays.jsonl")
    assert overlap.share == pytest.approx(0.9, abs=0.08)
    assert overlap.covered == pytest.approx(0.9, abs=0.08)
    assert found.facts[OVERLAPS] == "data set 'x-rays' in x-rays.jsonl"
    assert "adds up" in found.warnings[0]


def test_compare_records_of_others_or_copies_warns_of_nothing(tmp_path: Path) -> None:
    charge(tmp_path, "x-rays", range(1000, 2000))
    path = charge(tmp_path, "scans", range(1000))
    (tmp_path / "scans.jsonl.old").write_bytes(path.read_bytes())
    open_ledger(path, "scans").spend(spending(2))
    found = compared(tmp_path, range(1000))
    assert (found.warnings, found.unknown) == ([], ())
    assert OVERLAPS not in found.facts


def test_compare_records_second_ledger_of_the_name_warns(tmp_path: Path) -> None:
    open_ledger(tmp_path / "other.jsonl", "scans").spend(spending(1))
    found = compared(tmp_path, range(10))
    assert [path.name for path in found.namesakes] == [path.name for path in found.unknown] == ["other.jsonl"]
    assert "another ledger" in found.warnings[0]


def test_compare_records_remembers_earlier_records(tmp_path: Path) -> None:
    path = charge(tmp_path, "x-rays", range(1000))
    later = {RECORDS: Sketch.of(records(range(5000, 6000))).encrypt(KEY)}
    open_ledger(path, "x-rays").spend(replace(spending(2), facts=later))
    assert compared(tmp_path, range(1000)).overlaps[0].share == 1.0


def test_compare_records_without_a_sketch_or_key_is_unknown(tmp_path: Path) -> None:
    path = open_ledger(tmp_path / "scans.jsonl", "scans").path
    charge(tmp_path, "x-rays", range(1000), StorageKey(bytes(32)))
    found = compared(tmp_path, range(1000))
    assert [each.name for each in found.unknown] == ["x-rays.jsonl"]
    assert set(found.facts) == {RECORDS}
    open_ledger(path, "scans").spend(replace(spending(1), facts=found.facts))
    assert compared(tmp_path, range(1000), "other").overlaps[0].dataset == "scans"


def test_facts_have_one_form_whatever_the_records(tmp_path: Path) -> None:
    """Neither their number shows, nor that they are others than in the run before."""
    facts = [compared(tmp_path, range(number)).facts for number in (0, 1, 99, 255, 256, 1000)]
    path = charge(tmp_path, "scans", range(1000))
    facts += [compared(tmp_path, numbers).facts for numbers in (range(1000), range(1, 1001))]
    assert read_account(path).entries
    assert {tuple(fact) for fact in facts} == {(RECORDS,)}
    assert len({len(str(fact[RECORDS])) for fact in facts}) == 1


@pytest.mark.parametrize("number", [0, 1, 255, 256, 1000])
def test_sketch_round_trip_under_encryption(number: int) -> None:
    sketch = Sketch.of(records(range(number)))
    assert Sketch.decrypt(sketch.encrypt(KEY), KEY) == sketch


def test_sketch_without_padding_is_read() -> None:
    """Earlier ledgers have such sketches."""
    hashes = Sketch.of(records(range(3))).hashes
    content = b"".join(number.to_bytes(6, "big") for number in hashes)
    fact = base64.b64encode(KEY.encrypt(content, b"sketch of records")).decode()
    assert Sketch.decrypt(fact, KEY) == Sketch(hashes)


def test_ledger_without_the_key_shows_nothing_of_its_records(tmp_path: Path) -> None:
    """Two sketches of the same records differ in every byte that matters, and hold no hash of a record."""
    first, second = (Sketch.of(records(range(50))).encrypt(KEY) for _ in range(2))
    assert first[-64:] != second[-64:]
    assert Sketch.decrypt(first, KEY) == Sketch.decrypt(second, KEY)
    assert Sketch.decrypt(first, StorageKey(bytes(32))) is None
    path = charge(tmp_path, "x-rays", range(50))
    assert not any(each[:6].hex().encode() in path.read_bytes() for each in records(range(50)))


def test_records_key_is_made_once_and_readable_by_its_owner_alone(tmp_path: Path) -> None:
    like, ledger = tmp_path / "key.pem", tmp_path / "scans.jsonl"
    quick = Stretching.NONE_FOR_RANDOM_SECRET
    write_key(
        like, ec.generate_private_key(ec.SECP256R1()), b"a passphrase", overwrite=False, stretching=quick
    )
    key = open_records_key(ledger, b"a passphrase", like)
    sketch = Sketch.of(records(range(3)))
    assert Sketch.decrypt(sketch.encrypt(key), open_records_key(ledger, b"a passphrase", like)) == sketch
    assert stat.S_IMODE((tmp_path / RECORDS_KEY).stat().st_mode) == 0o600
    with pytest.raises(KeyStoreError):
        open_records_key(ledger, b"another", like)


PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 8), dtype=np.uint8)
LABELS = np.arange(6) % 2


def npz(folder: Path, order: Sequence[int], labels: Callable[[int], int]) -> str:
    path = folder / f"{len(list(folder.iterdir()))}.npz"
    np.savez(path, x_train=PIXELS[list(order)], y_train=np.array([labels(number) for number in order]))
    return f"npz:{path}"


def image_folder(folder: Path, split: Callable[[int], str]) -> str:
    for number, pixels in enumerate(PIXELS):
        path = folder / split(number) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return f"folder:{folder}"


def hashes(spec: str, size: int = 8) -> set[bytes]:
    agreed = PreprocessingSection(image_size=size, channels=1, mean=(0.5,), std=(0.5,))
    return set(hash_training_records(spec, data_root=None, agreed=agreed))


def test_hashes_depend_on_records_alone(tmp_path: Path) -> None:
    first = npz(tmp_path, range(6), lambda number: number % 2)
    again = npz(tmp_path, range(5, -1, -1), lambda number: number % 3)
    assert hashes(first) == hashes(again, size=4)
    assert len(hashes(first)) == 6
    assert len(hashes(f"{first}+{again}")) == 6
    pictures = image_folder(tmp_path / "a", lambda number: f"class-{number % 2}")
    renamed = image_folder(tmp_path / "b", lambda number: f"other-{number % 3}")
    assert hashes(pictures) == hashes(renamed, size=4)
    assert len(hashes(pictures)) == 6


def test_old_ledgers_verify_unchanged_beside_new_facts(tmp_path: Path) -> None:
    path = charge(tmp_path, "x-rays", range(3), exact=True)
    (exposure,) = read_account(path).exposures
    assert RECORDS in exposure.facts
    plain = tmp_path / "plain.jsonl"
    open_ledger(plain).record_exposure("run-1", bytes(32))
    assert not read_account(plain).exposures[0].facts
    assert b"facts" not in plain.read_bytes()
    assert read_account(plain).limit == LIMIT
