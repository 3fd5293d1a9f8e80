"""Sites that train as one program, some of which are left over when it is ended in the middle."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch

from protoseal.reports.result_files import read_result
from protoseal.simulation.experiment import simulate
from secure_client.checkpoints.checkpointed_learner import CheckpointedLearner
from secure_client.output.site_files import MODEL
from tests.support.marks import full_but
from tests.support.simulations import DIGITS, Killed, config_in, fail_at


def models(out: Path) -> dict[str, torch.Tensor]:
    return {
        f"{path.parent.name}.{name}": each
        for path in sorted(out.glob(f"sites/*/{MODEL}"))
        for name, each in safetensors.torch.load_file(path).items()
    }


@pytest.mark.parametrize("batched", full_but(["always", "never"], "always"))
def test_simulate_killed_in_round_resumes_to_same_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batched: str
) -> None:
    """Up to rounding as a smaller program, bit for bit one by one; ended with one of the four sites to go."""
    smooth = DIGITS.replace(
        "small-cnn", "tests.support.small:build"
    )  # no ReLU at a tie, which rounding would decide
    reference, out = tmp_path / "reference", tmp_path / "out"
    flags = {"method": "fedavg", "rounds": 2, "batched": batched}
    simulate(config_in(smooth, reference, **flags))
    with monkeypatch.context() as patch:
        fail_at(patch, CheckpointedLearner, "finish", 3, after=True)
        with pytest.raises(Killed):
            simulate(config_in(smooth, out, **flags))
    simulate(config_in(smooth, out, **flags))
    wanted, got = models(reference), models(out)
    assert wanted.keys() == got.keys()
    for name, each in got.items():
        if batched == "never":
            assert torch.equal(each, wanted[name])
        else:
            torch.testing.assert_close(each, wanted[name], rtol=1e-3, atol=1e-4)
    assert [each.round for each in read_result(out).rounds] == [1, 2]
