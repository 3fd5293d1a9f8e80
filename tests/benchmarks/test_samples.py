"""The benchmark of the sample agreements: every sample is run, beside what it is compared with."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.samples import CASES, EXACT_OF, LOCAL, SAMPLES, grouped, lines, sample_tables


def names_of(*, exact: bool, weights: tuple[float, ...] = ()) -> list[str]:
    groups = grouped(dict(sample_tables(weights, exact=exact)))
    return [name for group in groups for name in group.methods.values()]


def test_every_sample_is_run_once_beside_local_and_its_exact_counterpart() -> None:
    files = [path.name for path in SAMPLES.glob("agreement*.toml")]
    names = names_of(exact=False, weights=(1.0,))
    assert (
        len(names) == len(set(names)) == len(files) + 3
    )  # local, λ = 1, and the private sample without noise
    assert {*files, LOCAL, *EXACT_OF.values()} < set(names)
    assert set(names_of(exact=True)) == {*files, LOCAL} - set(EXACT_OF)


@pytest.mark.parametrize("case", CASES)
def test_every_sample_runs_on_the_data_of_every_case(case: str, tmp_path: Path) -> None:
    for group in grouped(dict(sample_tables((), exact=False))):
        config = group.config(CASES[case], data_root=str(tmp_path), out=str(tmp_path / "out"))
        assert {method.value for method in config.methods} == set(group.methods)


def test_a_line_has_the_accuracy_and_both_differences_paired_by_seed() -> None:
    exact, private = "agreement.toml", "agreement-dpsgd.toml"
    measured = {LOCAL: {0: 0.5, 1: 0.7}, exact: {0: 0.6, 1: 0.8}, private: {0: 0.4, 1: 0.6}}
    *_, line = lines("digits", measured)
    assert line == f"| digits | `{private}` | 50.0 | -10.0 ± 0.0 | -20.0 ± 0.0 |"
