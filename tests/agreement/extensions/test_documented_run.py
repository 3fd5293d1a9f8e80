"""The document's protection in whole runs: what the coordinator holds, between processes, and with others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2  # type: ignore[import-untyped]  # it ships no types

from agreement import Agreement
from agreement.derived.payload_shapes import limits_of, values_shape
from crypto.errors import ImplausibleError
from crypto.protection import Cohort
from protoseal.reports.result_files import site_folder
from protoseal.simulation.local_federation import LocalFederation
from protoseal_wire import codec
from protoseal_wire.messages import Phase
from secure_client.errors import RunStopped
from secure_client.exchanges import row_protection
from secure_client.output.site_files import read_prototypes
from tests.e2e.expected_run import rounds_of
from tests.e2e.federations import check_saved, simulated, small_sites
from tests.e2e.federations import small_agreement as processes_agreement
from tests.support.extensions import METHODS, PROTECTIONS, as_installed, install, installed
from tests.support.forked_processes import Nursery
from tests.support.processes import Federation
from tests.support.simulations import run_federation
from tests.support.small import small_agreement, small_data

NOISE = 1e-12
"""Approximate chance that random words are taken for others, at each of some tens of places."""


def agreed(method: str, protection: str, **settings: Any) -> Agreement:
    changed = {"method": method, "protection": protection, **settings}
    return Agreement.model_validate({**dict(small_agreement()), "distributions": {}, **changed})


@dataclass(frozen=True)
class Sent:
    """Words that one site sent in a round, padded or not, and the prototypes that they stand for."""

    words: NDArray[np.uint64]
    rows: NDArray[np.float64]


def recorded(agreement: Agreement) -> Mapping[tuple[int, str], Sent]:
    """Return what each site sent, by round and site."""
    found = {}
    with LocalFederation(agreement, small_data(agreement), record=True) as federation:
        federation.run()
        rows = {site.name: site.learner.values.latest()[0] for site in federation.sites}
        for each in federation.store.received():
            if each.key is not None and each.key.phase is Phase.VALUES:
                form = values_shape(agreement, each.key.round)
                payload = codec.decode_payload(each.content, limits_of(agreement), form)
                found[each.key.round, each.site] = Sent(payload.words[0].astype(np.uint64), rows[each.site])
    return found


def look_random(words: NDArray[np.uint64]) -> bool:
    """Return True if bytes have each of sixteen values as often as chance has it."""
    nibbles = np.concatenate([words.view(np.uint8) >> 4, words.view(np.uint8) & 15])
    counts, mean = np.bincount(nibbles, minlength=16), len(nibbles) / 16
    return bool(((counts - mean) ** 2 / mean).sum() < chi2.isf(NOISE, 15))


def exposed(sent: Mapping[tuple[int, str], Sent]) -> list[str]:
    """Return each recorded vector, sum of a round and difference that does not look random."""
    by_site = {(number, site): each.words for (number, site), each in sent.items()}
    looked = {f"{site} in {number}": words for (number, site), words in by_site.items()}
    rounds = sorted({number for number, _ in by_site})
    sites = sorted({site for _, site in by_site})
    for number in rounds:
        total = np.zeros_like(by_site[number, sites[0]])
        for site in sites:
            total = total + by_site[number, site]
        looked[f"the sum of {number}"] = total
    for site in sites:
        looked[f"{site} between two rounds"] = by_site[rounds[0], site] - by_site[rounds[1], site]
    return [name for name, words in looked.items() if not look_random(words)]


# What the coordinator holds


def test_all_that_the_coordinator_holds_looks_random(example: Path) -> None:
    sent = recorded(agreed("cosine-proto", "pads"))
    assert len(sent) == 2 * len(small_data(small_agreement()))
    assert exposed(sent) == []


def test_the_search_finds_a_sum_without_its_last_pad(example: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("pads")
    original = module.add_streams
    monkeypatch.setattr(
        module,
        "add_streams",
        lambda words, plus, minus: original(words, plus[:1], minus[1:] if not plus else minus),
    )
    monkeypatch.setattr(module.PadsSite, "unprotect", lambda self, answer: _opened(module, self, answer))
    assert exposed(recorded(agreed("cosine-proto", "pads"))) == ["the sum of 1", "the sum of 2"]


def _opened(module: Any, half: Any, answer: Any) -> Any:
    return half._fixed.decode_sum(module.opened(answer)[0], half._fixed.terms)


def test_the_search_finds_reused_pads(example: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search finds pads that are used again in another round with the same nonce."""
    module = import_module("pads")
    original = module.PadsSite.protect
    monkeypatch.setattr(
        module.PadsSite,
        "protect",
        lambda self, values, site, cohort, context: original(self, values, site, cohort, b"same"),
    )
    monkeypatch.setattr(module.secrets, "token_bytes", bytes)
    between = [f"{site} between two rounds" for site in sorted(small_data(small_agreement()))]
    assert exposed(recorded(agreed("cosine-proto", "pads"))) == between


# Being told different things


def test_pads_do_not_cancel_when_sites_were_sent_different_names(example: Path) -> None:
    """A coordinator that names other participants to some could let pads of a few cancel; so names go into them."""
    halves = import_module("pads").pads.sums
    facts = agreed("cosine-proto", "pads").sum_facts
    site, server = halves.site(None, bytes(32), facts), halves.server(None, facts)
    values, holds = np.zeros(facts.length), np.ones((2, 3), dtype=np.bool_)
    told = {"a": Cohort(("a", "c"), holds, 8), "c": Cohort(("a", "c"), holds, 8)}

    def total(contexts: Mapping[str, bytes]) -> Any:
        payloads = [site.protect(values, name, told[name], contexts[name]) for name in told]
        return site.unprotect(server.add(iter(payloads)))

    np.testing.assert_array_equal(total({"a": b"same", "c": b"same"}), values)
    with pytest.raises(ImplausibleError):
        total({"a": b"one", "c": b"other"})


def test_the_context_differs_wherever_sites_may_be_told_differently(example: Path) -> None:
    agreement = agreed("cosine-proto", "pads", rounds=1)
    with LocalFederation(agreement, small_data(agreement)) as federation:
        federation.run()
        setup = federation.sites[0].session._setup
        key = federation.sites[0].session._journal.latest(Phase.VALUES)
    assert key is not None
    holds = np.ones((3, 3), dtype=np.bool_)
    fewer = holds.copy()
    fewer[0, 0] = False
    cohort = Cohort(("a", "b", "c"), holds, 8)
    cases = [
        (key, cohort, b""),
        (replace(key, round=2), cohort, b""),
        (replace(key, attempt=2), cohort, b""),
        (key, replace(cohort, sites=("a", "b", "d")), b""),
        (key, replace(cohort, holds=fewer), b""),
        (key, cohort, b"base"),
    ]
    contexts = {row_protection.attempt_context(agreement, setup, *case) for case in cases}
    assert len(contexts) == len(cases)


# Whole runs


@pytest.mark.full
@pytest.mark.usefixtures("one_thread")
def test_processes_give_the_result_of_the_simulation(
    example_folder: Path, example: Path, nursery: Nursery, tmp_path: Path
) -> None:
    changed = {"method": "cosine-proto", "protection": "pads", "distributions": {}, "norm_bound": 10.0}
    agreement = Agreement.model_validate({**dict(processes_agreement(rounds=2)), **changed})
    sites = small_sites(3)
    wanted = simulated(agreement, sites, tmp_path / "simulation")
    with Federation(tmp_path / "run", agreement, sites, nursery=nursery) as federation:
        federation.start_coordinator()
        running = federation.start_sites()
        for each in running.values():
            assert each.exit_code() == 0
        check_saved(federation, wanted)
        assert [len(each.sites) for each in rounds_of(federation)] == [3, 3]


@pytest.fixture(scope="module")
def nursery(example_folder: Path) -> Iterator[Nursery]:
    """Start the process from which processes are forked that find the document's distribution."""
    made = Nursery(as_installed(example_folder))
    yield made
    made.close()


@pytest.mark.parametrize("method", ["pfpl", "cosine-peers"])
def test_an_added_protection_of_peers_gives_what_plain_gives(
    method: str, example: Path, tmp_path: Path
) -> None:
    install(
        tmp_path / "rotated",
        {PROTECTIONS: {"rotated": "tests.support.extensions:rotated"}},
        name="rotated",
    )
    with installed(tmp_path / "rotated"):
        for protection in ("plain", "rotated"):
            agreement = agreed(method, protection)
            run_federation(agreement, small_data(agreement), tmp_path / protection)
    for site in small_data(small_agreement()):
        plain, protected = (
            read_prototypes(site_folder(tmp_path / each, site)) for each in ("plain", "rotated")
        )
        np.testing.assert_allclose(protected.personal, plain.personal, rtol=0, atol=1e-6)
        assert plain.has_personal.any()


def test_weights_that_are_not_convex_end_a_run_and_change_nothing(example: Path, tmp_path: Path) -> None:
    source = """
from dataclasses import replace
import numpy as np
from cosine import cosine_peers
greedy = replace(cosine_peers, name="greedy", weights=lambda settings: lambda gram, holds: 2.0 * np.ones_like(gram))
"""
    (tmp_path / "greedy.py").write_text(source, encoding="utf-8")
    install(tmp_path, {METHODS: {"greedy": "greedy:greedy"}}, name="greedy")
    with installed(tmp_path):
        agreement = agreed("greedy", "plain")
        with LocalFederation(agreement, small_data(agreement)) as federation:
            with pytest.raises(RunStopped):
                federation.run()
            assert federation.rounds == []
