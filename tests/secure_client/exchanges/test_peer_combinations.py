"""PFPL at a site under each protection that shows the coordinator rows: the same targets from turned ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from agreement import Protection
from algorithms.pfpl import Weighting
from tests.support.grouped import EVERYONE
from tests.support.scripted_coordinator import Cast, ScriptedCoordinator
from tests.support.small import small_agreement


def targets(play: ScriptedCoordinator, name: str) -> NDArray[np.float64]:
    stored = play.site(name).journal.get("targets")
    assert stored is not None
    return np.asarray(safetensors.numpy.load(stored[1])["rows"])


@pytest.mark.parametrize("weighting", [each for each in Weighting if each is not Weighting.UNIFORM])
def test_rotation_gives_the_targets_of_plain(tmp_path: Path, cast: Cast, weighting: Weighting) -> None:
    found, sent = {}, {}
    for protection in (Protection.PLAIN, Protection.MASKED):
        with ScriptedCoordinator(
            tmp_path / protection.name, small_agreement(protection, weighting), cast
        ) as play:
            play.set_up(*EVERYONE)
            active = play.begin(*EVERYONE)
            values = play.all_values(active)
            for name, payload in play.combine(values, active).items():
                play.give_result(name, payload)
            sent[protection] = np.stack([values[name].arrays[0] for name in EVERYONE])
            found[protection] = np.stack([targets(play, name) for name in EVERYONE])
    np.testing.assert_allclose(found[Protection.MASKED], found[Protection.PLAIN], atol=1e-12)
    norms = [np.linalg.norm(each, axis=2) for each in sent.values()]
    np.testing.assert_allclose(norms[1], norms[0], atol=1e-14)
    assert np.abs(sent[Protection.MASKED] - sent[Protection.PLAIN]).max() > 0.1


def test_a_restarted_site_turns_back_what_it_turned(tmp_path: Path, cast: Cast) -> None:
    with ScriptedCoordinator(tmp_path, small_agreement(Protection.MASKED, Weighting.DISTANCE), cast) as play:
        play.set_up(*EVERYONE)
        active = play.begin(*EVERYONE)
        values = play.all_values(active)
        play.restart("clinic-b")
        assert play.values("clinic-b", active).arrays[0].tolist() == values["clinic-b"].arrays[0].tolist()
        results = play.combine(values, active)
        for name in ("clinic-a", "clinic-b"):
            play.give_result(name, results[name])
        rows = np.stack([play.rows(name) for name in EVERYONE])
        weights = np.square(rows - rows[1]).sum(axis=2)[:, :2, None]
        wanted = (weights * rows[:, :2]).sum(axis=0) / weights.sum(axis=0)
        np.testing.assert_allclose(play.peers_received("clinic-b")[:2], wanted, atol=1e-12)
