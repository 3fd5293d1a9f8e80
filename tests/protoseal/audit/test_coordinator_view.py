"""Coordinator's recording of a whole run: nothing of a site except under `plain`, where the same search finds all.

Every message is searched: statements, roster answers with the evaluation keys, acknowledgements, presence, shares,
values; and for every round's prototypes, and how they moved from round to round. What `masked` does show is held
against its promise in tests/protoseal/audit/test_masked_view.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from agreement import Agreement, FeddbpSection, Method, Protection
from agreement.derived.payload_shapes import limits_of, values_shape
from agreement.registry.round_plan import MASKED_SUM
from algorithms.pfpl import Weighting
from crypto.plain import SCHEME as PLAIN
from crypto.protection import Payload
from protoseal.audit.coordinator_view import describe_view, search_messages
from protoseal.reports.result_files import ViewLine
from protoseal_wire import codec
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.output.site_files import SitePrototypes
from secure_server.store import Received
from tests.conformance.federations import agreement_for, data_for, grouped_agreement, two_kinds
from tests.conformance.transcripts import Put, Record, Transcript, record_run, recording_federation

SITES, ROUNDS = ("site-1", "site-2", "site-3"), 2
OF_EVERY_RUN = {None, Phase.ROSTER, Phase.PRESENCE, Phase.VALUES, Phase.RESULT}
OF_MASKED_SUMS = OF_EVERY_RUN | set(MASKED_SUM)
UPLOADS = len(SITES) * ROUNDS


class Run:
    """A recorded run of three sites with two classes each, and their prototypes after every round."""

    def __init__(self, protection: Protection, folder: Path) -> None:
        self.agreement: Agreement = agreement_for(
            protection, Weighting.COMPLEMENT, classes=2, dim=64, rounds=ROUNDS
        )
        self.record: Record = {}
        data = data_for(self.agreement, np.ones((len(SITES), 2), dtype=np.bool_))
        with recording_federation(self.agreement, data, folder, self.record, keep=True) as federation:
            federation.run()
            self.received = list(federation.store.received())

    def vectors(self) -> NDArray[np.float64]:
        """Return each site's prototypes of every round, and their movements."""
        rows = {site: [self.record[r, site].prototypes.local for r in range(1, ROUNDS + 1)] for site in SITES}
        moved = [second - first for each in rows.values() for first, second in pairwise(each)]
        return np.concatenate([*(row for each in rows.values() for row in each), *moved])

    def last(self) -> dict[str, SitePrototypes]:
        return {site: self.record[ROUNDS, site].prototypes for site in SITES}


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(Protection.CKKS, tmp_path_factory.mktemp("ckks"))


@pytest.fixture(scope="module")
def rotated(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(Protection.MASKED, tmp_path_factory.mktemp("masked"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(Protection.PLAIN, tmp_path_factory.mktemp("plain"))


def kinds(received: Sequence[Received]) -> set[Phase | None]:
    return {None if each.key is None else each.key.phase for each in received}


@pytest.mark.full
def test_search_messages_ckks_finds_no_prototype(encrypted: Run) -> None:
    assert kinds(encrypted.received) == OF_EVERY_RUN | {Phase.SECRET}
    assert (
        sum(len(each.content) for each in encrypted.received) > 5_000_000
    )  # evaluation keys and ciphertexts
    found = search_messages(encrypted.received, encrypted.agreement, encrypted.vectors())
    assert not found.leaks
    assert found.threshold < 0.96  # so a copy with a twelfth of noise would have been found


def test_search_messages_masked_finds_no_prototype(rotated: Run) -> None:
    assert kinds(rotated.received) == OF_EVERY_RUN | {Phase.SECRET}
    found = search_messages(rotated.received, rotated.agreement, rotated.vectors())
    assert not found.leaks
    assert found.threshold < 0.96


def test_search_messages_plain_finds_prototypes(plain: Run) -> None:
    assert kinds(plain.received) == OF_EVERY_RUN
    assert search_messages(plain.received, plain.agreement, plain.vectors()).leaks


@pytest.mark.parametrize("number", range(1, ROUNDS + 1))
def test_search_messages_plain_one_round_finds_prototypes(plain: Run, number: int) -> None:
    one = [each for each in plain.received if each.key is not None and each.key.round == number]
    assert search_messages(one, plain.agreement, plain.vectors()).leaks


def test_search_messages_plain_without_values_finds_none(plain: Run) -> None:
    rest = [each for each in plain.received if each.key is None or each.key.phase is not Phase.VALUES]
    assert not search_messages(rest, plain.agreement, plain.vectors()).leaks


# FedPC: prototypes and extractors

_PIECES = 4


def prototypes_of(put: Put) -> NDArray[np.float64]:
    """Return the prototypes that a site put into a sum, for the classes that it has."""
    return put.rows[put.holds]


def extractor_of(put: Put) -> NDArray[np.float64]:
    """Return the first numbers of a site's extractor, in pieces as long as a prototype."""
    return put.averaged[: _PIECES * put.rows.shape[1]].reshape(_PIECES, -1)


PARTS: dict[str, Callable[[Put], NDArray[np.float64]]] = {
    "prototypes": prototypes_of,
    "extractors": extractor_of,
}
each_part = pytest.mark.parametrize("part", PARTS)


@pytest.fixture(scope="module")
def transcripts(tmp_path_factory: pytest.TempPathFactory) -> dict[Protection, Transcript]:
    """Record FedPC with two groups of four sites, under `masked` and under `plain`."""
    found = {}
    for protection in (Protection.MASKED, Protection.PLAIN):
        agreement = grouped_agreement(protection, classes=3, dim=64, rounds=ROUNDS)
        data = data_for(agreement, two_kinds()[:8, 1:4])
        found[protection] = record_run(agreement, data, tmp_path_factory.mktemp("fedpc"))
    return found


def put_in(transcript: Transcript, part: str) -> NDArray[np.float64]:
    """Return the sums' contributions of every site after every round."""
    return np.concatenate([PARTS[part](put) for (number, _, _), put in transcript.put.items() if number])


def moved(transcript: Transcript, part: str) -> NDArray[np.float64]:
    """Return the movement from the first to the second round."""
    sites = [site for number, _, site in transcript.put if number == 1]
    first, second = ([PARTS[part](transcript.put[number, 1, site]) for site in sites] for number in (1, 2))
    return np.concatenate(second) - np.concatenate(first)


@each_part
def test_search_messages_masked_fedpc_finds_no_site(
    transcripts: dict[Protection, Transcript], part: str
) -> None:
    masked = transcripts[Protection.MASKED]
    assert kinds(masked.received) == OF_MASKED_SUMS | {Phase.SECRET}  # of the clustering's rotation
    for vectors in (put_in(masked, part), moved(masked, part)):
        found = search_messages(masked.received, masked.agreement, vectors)
        assert not found.leaks
        assert found.threshold < 0.97


@each_part
def test_search_messages_plain_fedpc_finds_every_round(
    transcripts: dict[Protection, Transcript], part: str
) -> None:
    plain = transcripts[Protection.PLAIN]
    assert search_messages(plain.received, plain.agreement, moved(plain, part)).leaks
    for number in (1, 2):
        one = [each for each in plain.received if each.key is not None and each.key.round == number]
        assert search_messages(one, plain.agreement, put_in(plain, part)).leaks


def test_search_messages_clustering_leaks_under_plain_alone(
    transcripts: dict[Protection, Transcript],
) -> None:
    for protection, transcript in transcripts.items():
        before = [each for each in transcript.received if each.key is not None and each.key.round == 0]
        rows = np.concatenate(
            [prototypes_of(put) for (number, _, _), put in transcript.put.items() if not number]
        )
        assert search_messages(before, transcript.agreement, rows).leaks == (protection is Protection.PLAIN)


def test_describe_view_fedpc_says_what_was_seen(transcripts: dict[Protection, Transcript]) -> None:
    lines = {
        protection: describe_view(
            transcript.received,
            transcript.agreement,
            {
                site: taken.prototypes
                for (number, site), taken in transcript.taken.items()
                if number == ROUNDS
            },
        )
        for protection, transcript in transcripts.items()
    }
    by_masked = {line.what: line for line in lines[Protection.MASKED]}
    assert all(line.seen for line in lines[Protection.PLAIN])
    assert seen(by_masked) == {
        "messages, their sizes and times",
        "which site has which class",
        "inner products of sites' prototypes",
        "each group's mean of prototypes and extractors",
    }
    products = by_masked["inner products of sites' prototypes"].evidence
    assert products == "8 uploads show them, of the initial model alone"


# FedDBP: prototypes; and scores, which no protection is for, since nobody sends them


def scores_of(put: Put) -> NDArray[np.float64]:
    """Return the scores by which a site chooses channels, for the classes that it has."""
    assert put.scores is not None
    return put.scores[put.holds]


@pytest.fixture(scope="module")
def branched(tmp_path_factory: pytest.TempPathFactory) -> dict[Protection, Transcript]:
    """Record FedDBP with six sites, all one group, under `masked` and under `plain`."""
    found = {}
    for protection in (Protection.MASKED, Protection.PLAIN):
        agreement = grouped_agreement(
            protection, method=Method.FEDDBP, classes=3, dim=64, rounds=ROUNDS, feddbp=FeddbpSection(own=0.5)
        )
        data = data_for(agreement, two_kinds()[:6, [0, 2, 4]])
        found[protection] = record_run(agreement, data, tmp_path_factory.mktemp("feddbp"))
    return found


def test_search_messages_masked_feddbp_finds_no_site(branched: dict[Protection, Transcript]) -> None:
    masked = branched[Protection.MASKED]
    assert kinds(masked.received) == OF_MASKED_SUMS
    for vectors in (put_in(masked, "prototypes"), moved(masked, "prototypes")):
        found = search_messages(masked.received, masked.agreement, vectors)
        assert not found.leaks
        assert found.threshold < 0.97


def test_search_messages_plain_feddbp_finds_sites(branched: dict[Protection, Transcript]) -> None:
    plain = branched[Protection.PLAIN]
    for vectors in (put_in(plain, "prototypes"), moved(plain, "prototypes")):
        assert search_messages(plain.received, plain.agreement, vectors).leaks


@pytest.mark.parametrize("protection", [Protection.MASKED, Protection.PLAIN])
def test_search_messages_fisher_scores_are_never_sent(
    branched: dict[Protection, Transcript], protection: Protection
) -> None:
    """Nor are their orders of magnitude, which a search by direction could miss: the few largest decide."""
    transcript = branched[protection]
    scores = np.concatenate([scores_of(put) for put in transcript.put.values()])
    for vectors in (scores, np.log(scores + 1e-12)):
        found = search_messages(transcript.received, transcript.agreement, vectors)
        assert not found.leaks
        assert found.threshold < 0.97


def test_search_messages_planted_scores_are_found(branched: dict[Protection, Transcript]) -> None:
    """Put in the place of one site's prototypes, as a double sends them that has mistaken one for the other."""
    transcript = branched[Protection.PLAIN]
    scores = np.concatenate([scores_of(put) for put in transcript.put.values()])
    put = transcript.put[2, 1, "site-1"]
    assert put.scores is not None
    content = codec.encode_payload(Payload(PLAIN, arrays=(put.scores.ravel(),)))
    told = [
        replace(each, content=content)
        if (each.site, each.key) == ("site-1", values_key(2, transcript))
        else each
        for each in transcript.received
    ]
    assert told != transcript.received
    assert search_messages(told, transcript.agreement, scores).leaks


def values_key(number: int, transcript: Transcript) -> PhaseKey:
    """Return the key of a round's VALUES."""
    return PhaseKey(transcript.agreement.run, number, 1, Phase.VALUES)


def test_plain_upload_is_prototypes_and_nothing_else(
    branched: dict[Protection, Transcript],
) -> None:
    """A vector that `plain` shows has K·d numbers, zeros for withheld classes, and no room for more."""
    transcript = branched[Protection.PLAIN]
    limits, form = limits_of(transcript.agreement), values_shape(transcript.agreement, 1)
    for (number, attempt, site), put in transcript.put.items():
        (sent,) = [
            each.content
            for each in transcript.received
            if each.site == site
            and each.key == PhaseKey(transcript.agreement.run, number, attempt, Phase.VALUES)
        ]
        (vector,) = codec.decode_payload(sent, limits, form).arrays
        active = put.holds & transcript.got[number, site].has
        np.testing.assert_array_equal(vector, np.where(active[:, None], put.rows, 0.0).ravel())


def test_describe_view_feddbp_says_what_was_seen(branched: dict[Protection, Transcript]) -> None:
    by_masked, by_plain = (
        {
            line.what: line
            for line in describe_view(
                transcript.received,
                transcript.agreement,
                {
                    site: taken.prototypes
                    for (number, site), taken in transcript.taken.items()
                    if number == ROUNDS
                },
            )
        }
        for transcript in (branched[Protection.MASKED], branched[Protection.PLAIN])
    )
    assert all(line.seen for line in by_plain.values())
    assert seen(by_masked) == {
        "messages, their sizes and times",
        "which site has which class",
        "the mean over sites of prototypes",
    }


def test_describe_view_pfpl_says_what_was_seen(plain: Run, rotated: Run, encrypted: Run) -> None:
    by_plain, by_masked, by_ckks = (
        {line.what: line for line in describe_view(each.received, each.agreement, each.last())}
        for each in (plain, rotated, encrypted)
    )
    assert seen(by_ckks) == {"messages, their sizes and times", "which site has which class"}
    assert seen(by_masked) == seen(by_ckks) | {"inner products of sites' prototypes"}
    assert all(line.seen for line in by_plain.values())
    numbers = [each["prototypes as plain numbers"].evidence for each in (by_plain, by_masked, by_ckks)]
    assert numbers[0].startswith("768 plain numbers, 0 rotated ones, 0 masked words and 0 ciphertexts")
    assert numbers[1].startswith("0 plain numbers, 768 rotated ones, 0 masked words and 0 ciphertexts")
    assert numbers[2].startswith("0 plain numbers, 0 rotated ones, 0 masked words and 12 ciphertexts")
    silent = [
        message
        for message in plain.received
        if message.key is None or message.key.phase is not Phase.PRESENCE
    ]
    without = {line.what: line for line in describe_view(silent, plain.agreement, plain.last())}
    assert "which site has which class" not in seen(without)
    told = by_ckks["which site has which class"].evidence
    assert told == f"{UPLOADS} signed presence statements, {UPLOADS} of which name classes"


def seen(lines: Mapping[str, ViewLine]) -> set[str]:
    return {what for what, line in lines.items() if line.seen}
