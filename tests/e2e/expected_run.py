"""Expected results when processes die: the same run in one process, and the papers' equations for its last round.

The equations take nothing but what the sites saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.numpy
from safetensors import torch as torch_tensors

from agreement import Agreement
from agreement.registry.round_plan import PayloadKind
from protoseal.reports.result_files import site_folder
from protoseal.simulation.local_federation import LocalFederation
from protoseal.splits import SiteArrays
from protoseal_wire.messages import Phase, RoundStart
from secure_client.app import JOURNAL
from secure_client.checkpoints.learner_factory import build_agreed_model
from secure_client.checkpoints.received_results import Base
from secure_client.output.site_files import MODEL, PROTOTYPES
from secure_client.output.site_log import SiteRound, read_site_log
from secure_client.protocol.journal import Journal
from secure_client.protocol.setup import open_journal
from secure_client.training.averaged_parameters import AveragedPart
from secure_server.app import ROUNDS_LOG, read_rounds
from secure_server.round_log import CoordinatorRound
from tests.conformance import equations, peer_equations
from tests.conformance.drop_outs import Clock, Loss, play, set_deadlines
from tests.conformance.transcripts import Float, Got, Put, Transcript, taken_from
from tests.support.processes import Federation


@dataclass(frozen=True)
class Expected:
    """A run in one process: its files in ``folder``, the coordinator's ``rounds``, and whose answer was taken when.

    ``bases`` are the sites' at the end, by name: what they would train from next.
    """

    folder: Path
    rounds: list[CoordinatorRound]
    taken: frozenset[tuple[str, int, int, Phase]]
    bases: dict[str, bytes]

    def site(self, name: str) -> Path:
        """Return the folder of a site's files."""
        return site_folder(self.folder, name)

    def answered(self, round_number: int, phase: Phase) -> list[str]:
        """Return the sites whose answer to a phase was taken in the first attempt of a round."""
        return sorted(site for site, *at in self.taken if at == [round_number, 1, phase])

    def results_of(self, site: str, *, up_to: int) -> int:
        """Return how many of the rounds up to a number gave the site a result."""
        return sum(each.round <= up_to and site in each.sites and not each.abandoned for each in self.rounds)


def expected(
    agreement: Agreement, sites: Sequence[SiteArrays], out: Path, losses: Sequence[Loss] = ()
) -> Expected:
    """Run it to the end. Every draw of keys, masks and rotations is another one than that of any other run."""
    data, clock = {site.name: site.to_data(agreement.preprocessing) for site in sites}, Clock()
    with LocalFederation(agreement, data, record=True) as federation:
        set_deadlines(federation, out / "keys.bin", clock)
        play(federation, clock, losses)
        federation.save(out)
        taken = frozenset(
            (each.site, each.key.round, each.key.attempt, each.key.phase)
            for each in federation.store.received()
            if each.key is not None
        )
        bases = {site.name: site.learner.received.base_hash for site in federation.sites}
        return Expected(out, federation.rounds, taken, bases)


def check_run(federation: Federation, wanted: Expected) -> None:
    """Check that the coordinator's rounds and every site's files in the end are the expected ones, bit for bit."""
    check_rounds(federation, wanted)
    for site in federation.names:
        check_site(federation, site, wanted)


def check_rounds(federation: Federation, wanted: Expected) -> None:
    """Check who took part in each attempt and group of a round, the withheld classes, and the abandoned rounds."""
    assert [_content(each) for each in rounds_of(federation)] == [_content(each) for each in wanted.rounds]


def check_site(federation: Federation, site: str, wanted: Expected) -> None:
    """Check a site's prototypes, its model, the base of a round to come and its log's rounds."""
    folder, simulated = federation.folder(site), wanted.site(site)
    for file in (PROTOTYPES, MODEL):
        check_equal_tensors(folder / file, simulated / file, site)
    if federation.agreement.plan.result is not PayloadKind.PEER_SUMS:  # whose signatures no two runs share
        assert base_of(federation, site).hash == wanted.bases[site]
    logged = [_figures(each) for each in read_site_log(folder).rounds]
    assert logged == [_figures(each) for each in read_site_log(simulated).rounds], site


def check_equal_tensors(saved: Path, wanted: Path, site: str) -> None:
    """Check that two safetensors files have the same names, and the same bits under them."""
    found, other = safetensors.numpy.load_file(saved), safetensors.numpy.load_file(wanted)
    assert sorted(found) == sorted(other)
    for name, array in other.items():
        np.testing.assert_array_equal(found[name], array, err_msg=f"{site}: {name}")


def rounds_of(federation: Federation) -> list[CoordinatorRound]:
    """Read the rounds that the coordinator reported."""
    return read_rounds(federation.root / "coordinator" / "state" / ROUNDS_LOG)


def open_site(federation: Federation, site: str) -> Journal:
    """Return the journal of a site whose process has ended. Close it."""
    path = federation.folder(site) / "state" / JOURNAL
    return open_journal(path, federation.agreement, federation.party(site))


def base_of(federation: Federation, site: str) -> Base:
    """Return the base from which an ended site would train next."""
    with open_site(federation, site) as journal:
        stored = journal.get("base")
    assert stored is not None
    return Base.from_bytes(stored[1])


def _content(reported: CoordinatorRound) -> tuple[object, ...]:
    """Return the fields of a round that are the same in every run."""
    return (
        reported.round,
        reported.attempt,
        reported.sites,
        reported.withheld,
        reported.groups,
        reported.abandoned,
    )


def _figures(logged: SiteRound) -> dict[str, object]:
    """Return a site's figures of a round, without times and without those that only a simulation reports."""
    return logged.model_dump(exclude={"seconds", "loss", "loss_classification", "loss_constant"})


def fedpc_excess(federation: Federation, *, without: Sequence[str] = ()) -> float:
    """Return how far each group's result is from equations 5 to 8 over its members' inputs, in units of the bound.

    ``without`` leaves out the inputs of these sites.
    """
    transcript, last = _last_round(federation)
    for site in last.sites:
        saved = federation.prototypes(site)
        averaged = _averaged(federation, site)
        transcript.put[last.round, last.attempt, site] = Put(saved.local, saved.counts > 0, averaged)
        transcript.starts[last.round, last.attempt, site] = RoundStart(last.groups)
        base = base_of(federation, site)
        transcript.got[last.round, site] = Got(
            last.attempt, base.rows, base.present, base.averaged, base.hash
        )
    return equations.sum_excess(transcript, last.round, without=tuple(without))


def feddbp_excess(federation: Federation, site: str, *, without: Sequence[str] = ()) -> float:
    """Return how far a site's next training targets are from equations 9 and 10 over all inputs, in bounds."""
    transcript, last = _last_round(federation)
    for name in last.sites:
        saved = federation.prototypes(name)
        scores = _scores(federation, name)
        put = Put(saved.local, saved.counts > 0, np.empty(0), int(saved.counts.sum()), scores)
        transcript.starts[last.round, last.attempt, name] = RoundStart(last.groups)
        if name not in without:
            transcript.put[last.round, last.attempt, name] = put
    transcript.guides[last.round + 1, 1, site] = base_of(federation, site).rows
    return equations.fusion_excess(transcript, last.round, site)


def _last_round(federation: Federation) -> tuple[Transcript, CoordinatorRound]:
    """Return the last round and a transcript of it alone, without the sites' inputs and results."""
    transcript = Transcript(federation.agreement)
    transcript.rounds = [each for each in rounds_of(federation) if each.round == federation.agreement.rounds]
    (last,) = transcript.rounds
    return transcript, last


def _scores(federation: Federation, site: str) -> Float:
    """Read the scores of the model that the site trained last, from the site's own disk."""
    with open_site(federation, site) as journal:
        stored = journal.get("model")
    assert stored is not None
    scores: Float = torch_tensors.load(stored[1])["protoseal.scores"].numpy()
    return scores


def pfpl_excess(federation: Federation, sites: Sequence[SiteArrays]) -> float:
    """Return how far the personalised prototypes are from equations 4 and 5 over all inputs, in units of the bound."""
    agreement = federation.agreement
    record = {}
    for site in sites:
        with open_site(federation, site.name) as journal:
            taken = taken_from(
                federation.folder(site.name), agreement, site.to_data(agreement.preprocessing), journal
            )
        record[agreement.rounds, site.name] = taken
    return peer_equations.excess(agreement, record, agreement.rounds)


def _averaged(federation: Federation, site: str) -> Float:
    """Return the averaged part of the model that the site trained last, as the site sent it."""
    model = build_agreed_model(federation.agreement, federation.agreement.training.model)
    model.load_state_dict(torch_tensors.load_file(federation.folder(site) / MODEL))
    return AveragedPart(model).vector()
