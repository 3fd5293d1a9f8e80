"""The last round of a run that is over against the papers' equations, from nothing but what its sites saved."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from safetensors import torch as torch_tensors

from protoseal.splits import SiteArrays
from protoseal_wire.messages import RoundStart
from secure_client.checkpoints.learner_factory import build_agreed_model
from secure_client.output.site_files import MODEL
from secure_client.training.averaged_parameters import AveragedPart
from secure_server.round_log import CoordinatorRound
from tests.conformance import equations, peer_equations
from tests.conformance.transcripts import Float, Got, Put, Transcript, taken_from
from tests.e2e.expected_run import base_of, open_site, rounds_of
from tests.support.processes import Federation


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
