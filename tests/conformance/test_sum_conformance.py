"""Methods that add up: a protected round is the papers' equations on what the sites put in, as a round of `plain` is.

One table of methods, each played once under each protection that is named, from the same data and initial models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from agreement import (
    Agreement,
    AveragingSection,
    FeddbpSection,
    FedplccSection,
    MaskingSection,
    Method,
    Protection,
)
from agreement.derived.payload_shapes import limits_of, values_shape
from protoseal.audit.coordinator_view import search_messages
from protoseal_wire import codec
from protoseal_wire.messages import Phase
from tests.conformance import equations
from tests.conformance.federations import Bool, data_for, grouped_agreement, three_kinds, two_kinds
from tests.conformance.transcripts import (
    ClusterTranscript,
    Float,
    Got,
    Transcript,
    compare_predictions,
    contributors,
    record_run,
)

PLAIN, MASKED, CKKS = Protection.PLAIN, Protection.MASKED, Protection.CKKS
ROUNDS, DIM = 2, 12
FEW = np.array([[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 1, 1]], dtype=np.bool_)
"""Three sites; the second class and the last are withheld."""
SIX = np.ones((6, 4), dtype=np.bool_)
SIX[:3, 1] = False  # three sites are left, just enough
SIX[1:5, 3] = False  # two are left: withheld
FUSED = FeddbpSection(own=0.75, top_channels=5)
"""Settings with less than all of a site's own in fewer than all channels, so that either would be seen."""
BOUNDS = {"parameter_bound": 8.0, "most_samples": 36}
"""A ring of 32 bits has no room for the usual ones."""
NARROW = {"masking": MaskingSection(ring_bits=32), "averaging": BOUNDS}
WIDE = {"masking": MaskingSection(ring_bits=64)}
"""A ring so fine that a mistake of a method is far beyond its rounding."""
SPARSE = MaskingSection(complete_up_to=3)
"""One colluder and two drop-outs: five others of nine hold a site's shares."""
SPARSE_GROUPS = MaskingSection(complete_up_to=3, max_colluding=0.0, max_dropped=0.0)
"""Neither: two others hold a site's shares, so that groups of four are sparse."""


@dataclass(frozen=True)
class Case:
    """A method over sites with these classes (n, K), under each of ``protections`` beside `plain`."""

    method: Method
    holds: Bool
    settings: Mapping[str, Any] = field(default_factory=dict)
    protections: tuple[Protection, ...] = (MASKED, CKKS)
    norm_bound: float = 40.0

    def agreement(self, protection: Protection) -> Agreement:
        """Return the agreement under a protection."""
        return grouped_agreement(
            protection,
            method=self.method,
            classes=self.holds.shape[1],
            dim=16 if self.is_clustered else DIM,
            rounds=ROUNDS,
            norm_bound=self.norm_bound,
            **self.settings,
        )

    @property
    def is_clustered(self) -> bool:
        """Whether the sites' prototypes are clustered."""
        return self.method in (Method.FEDPLCC, Method.FPL, Method.FEDPLVM)


CASES: dict[str, Case] = {
    "fedpc": Case(Method.FEDPC, two_kinds(), WIDE),
    "fedpc three-groups": Case(Method.FEDPC, three_kinds(), {"fedpc": {"groups": 3}, **WIDE}),
    "fedpc one-group": Case(Method.FEDPC, FEW, {"fedpc": {"groups": 1}}, (CKKS,)),
    "fedpc literal": Case(Method.FEDPC, two_kinds(), {"fedpc": {"literal": True}}, (CKKS,)),
    "fedpc narrow": Case(Method.FEDPC, two_kinds(), NARROW, (MASKED,), DIM**0.5),
    "fedpc sparse": Case(Method.FEDPC, two_kinds(), {"masking": SPARSE_GROUPS}, (MASKED,)),
    "feddbp": Case(Method.FEDDBP, two_kinds(), {"feddbp": FUSED, **WIDE}),
    "feddbp few": Case(Method.FEDDBP, FEW, {"feddbp": FUSED}),
    "feddbp narrow": Case(Method.FEDDBP, two_kinds(), {"feddbp": FUSED, **NARROW}, (MASKED,), DIM**0.5),
    "feddbp sparse": Case(Method.FEDDBP, two_kinds(), {"feddbp": FUSED, "masking": SPARSE}, (MASKED,)),
    "fedproto": Case(Method.FEDPROTO, two_kinds()),
    "fedproto few": Case(Method.FEDPROTO, FEW, {}, (MASKED,)),
    "fedproto sparse": Case(Method.FEDPROTO, two_kinds(), {"masking": SPARSE}, (MASKED,)),
    "fedavg": Case(Method.FEDAVG, two_kinds(), {"averaging": BOUNDS}, (MASKED,)),
    "fedavg few": Case(Method.FEDAVG, FEW),
    "fedavg sparse": Case(Method.FEDAVG, two_kinds(), {"masking": SPARSE}, (MASKED,)),
    "fedproto-averaged": Case(Method.FEDPROTO_AVERAGED, two_kinds()),
    "fedproto-averaged few": Case(Method.FEDPROTO_AVERAGED, FEW, {}, (MASKED,)),
    "fedplcc": Case(Method.FEDPLCC, SIX),
    "fedplcc unweighted": Case(Method.FEDPLCC, SIX, {"fedplcc": FedplccSection(weighted=False)}, (MASKED,)),
    "fedplcc sparse": Case(Method.FEDPLCC, SIX, {"masking": SPARSE_GROUPS}, (MASKED,)),
    "fpl": Case(Method.FPL, SIX),
    "fedplvm": Case(Method.FEDPLVM, SIX, {}, (MASKED,)),
}
IN_MAKE_TEST = {
    *(("fedpc", protection) for protection in (PLAIN, MASKED, CKKS)),
    *(("fedpc three-groups", protection) for protection in (PLAIN, MASKED)),
    *(("fedpc narrow", protection) for protection in (PLAIN, MASKED)),
    *(("feddbp few", protection) for protection in (PLAIN, MASKED, CKKS)),
    *(("feddbp sparse", protection) for protection in (PLAIN, MASKED)),
    *(("fedproto", protection) for protection in (PLAIN, MASKED, CKKS)),
    *(("fedavg few", protection) for protection in (PLAIN, MASKED, CKKS)),
    *(("fedproto-averaged", protection) for protection in (PLAIN, CKKS)),
    *(("fedproto-averaged few", protection) for protection in (PLAIN, MASKED)),
    *(("fedplcc", protection) for protection in (PLAIN, MASKED, CKKS)),
    *(("fedplcc unweighted", protection) for protection in (PLAIN, MASKED)),
    *(("fpl", protection) for protection in (PLAIN, MASKED, CKKS)),
    *(("fedplvm", protection) for protection in (PLAIN, MASKED)),
}
"""Runs of ``make test``; the others are left to ``make test-all``."""


def runs(
    choose: Callable[[str, Case, Protection], bool] = lambda name, case, protection: True,
) -> list[Any]:
    """Return the chosen (case, protection) as parameters of a test."""
    return [
        pytest.param(
            name,
            protection,
            marks=() if (name, protection) in IN_MAKE_TEST else pytest.mark.full,
            id=f"{name}-{protection.name}".replace(" ", "-"),
        )
        for name, case in CASES.items()
        for protection in (PLAIN, *case.protections)
        if choose(name, case, protection)
    ]


def is_protected(name: str, case: Case, protection: Protection) -> bool:
    """Whether the run is not the reference."""
    return protection is not PLAIN


every_run = pytest.mark.parametrize(("name", "protection"), runs())
each_protected = pytest.mark.parametrize(("name", "protection"), runs(is_protected))
Transcripts = Callable[[str, Protection], Transcript]


@pytest.fixture(scope="module", autouse=True)
def small_buffers() -> Iterator[None]:
    """Give buffers a bound with room in a ring of 32 bits, which the real one has not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AveragingSection, "buffer_bound", 30.0)
        yield


@pytest.fixture(scope="module")
def transcripts(tmp_path_factory: pytest.TempPathFactory) -> Transcripts:
    """Every run is played once."""

    @cache
    def transcript(name: str, protection: Protection) -> Transcript:
        agreement = CASES[name].agreement(protection)
        return record_run(agreement, data_for(agreement, CASES[name].holds), tmp_path_factory.mktemp("run"))

    return transcript


def names_of(case: Case) -> tuple[str, ...]:
    """Return the sites' names, sorted."""
    return tuple(sorted(f"site-{i + 1}" for i in range(len(case.holds))))


def first_round(transcript: Transcript) -> dict[tuple[int, str], Got]:
    """Return the results of the first round."""
    return {key: got for key, got in transcript.got.items() if key[0] == 1}


@every_run
def test_round_equals_the_equations_on_what_the_sites_put_in(
    transcripts: Transcripts, name: str, protection: Protection
) -> None:
    transcript = transcripts(name, protection)
    assert transcript.summary()[-ROUNDS:] == [(number, 1, False) for number in range(1, ROUNDS + 1)]
    for number in range(1, ROUNDS + 1):
        assert contributors(transcript, number) == names_of(CASES[name])
        assert equations.excess(transcript, number) <= 1.0


@pytest.mark.parametrize(
    ("name", "protection"),
    runs(lambda name, case, protection: protection is MASKED and not case.is_clustered),
)
def test_masks_change_only_the_last_bits_of_each_contribution(
    transcripts: Transcripts, name: str, protection: Protection
) -> None:
    """A masked result of contributions that are rounded beforehand is the paper's, as exact as float64."""
    for number in range(1, ROUNDS + 1):
        assert equations.sum_excess(transcripts(name, protection), number, rounded=True) <= 1.0


@each_protected
def test_first_round_equals_plain_within_the_bound_and_is_not_passed_on(
    transcripts: Transcripts, name: str, protection: Protection
) -> None:
    """Both trained alike until then, so that they had the same numbers to work on."""
    transcript, plain = transcripts(name, protection), transcripts(name, PLAIN)
    for key, put in plain.put.items():
        if key[0] <= 1:
            np.testing.assert_array_equal(transcript.put[key].rows, put.rows)
            np.testing.assert_array_equal(transcript.put[key].averaged, put.averaged)
    if isinstance(transcript, ClusterTranscript) and isinstance(plain, ClusterTranscript):
        results = {key: result for key, result in plain.results.items() if key[0] == 1}
        assert equations.cluster_excess(replace(transcript, results=results), 1) <= 1.0
    else:
        assert equations.sum_excess(replace(transcript, got=first_round(plain)), 1) <= 1.0
    rows, averaged = (
        max(
            np.abs(getattr(got, part) - getattr(plain.got[key], part)).max(initial=0.0)
            for key, got in first_round(transcript).items()
        )
        for part in ("rows", "averaged")
    )
    exact = (
        name == "fedavg"
    )  # float32 numbers times counts, which fixed point within these bounds has as they are
    assert max(rows, averaged) > 0.0 or exact, "nothing was rounded, so nothing was masked"


@pytest.mark.parametrize(("name", "protection"), runs(lambda name, case, protection: protection is CKKS))
def test_bounds_under_ckks_are_small_and_hold(
    transcripts: Transcripts, name: str, protection: Protection
) -> None:
    """For prototypes (a few samples times up to 100,000 apart), parameters and, in proportion, buffers."""
    transcript, plain = transcripts(name, protection), transcripts(name, PLAIN)
    averaging = transcript.agreement.averaging
    off = [
        (np.abs(got.rows - plain.got[key].rows), np.abs(got.averaged - plain.got[key].averaged))
        for key, got in first_round(transcript).items()
    ]
    for rows, averaged in (*bounds(transcript), *off):
        assert rows.max(initial=0.0) < 1e-6
        assert averaged[: averaging.parameters].max(initial=0.0) < 1e-6
        assert averaged[averaging.parameters :].max(initial=0.0) < max(1e-6, 1e-10 * averaging.buffer_bound)


def bounds(transcript: Transcript) -> list[tuple[Float, Float]]:
    """Return the bounds of each site's result of the first round: prototypes or centres, and the averaged part."""
    if isinstance(transcript, ClusterTranscript):
        clusters = equations.expected_clusters(transcript, 1)
        return [(clusters.rows_bound, clusters.averaged_bound)]
    return [(mixed.rows_bound, mixed.averaged_bound) for mixed in equations.expected(transcript, 1).values()]


@each_protected
def test_saved_models_predict_what_plain_ones_do(
    transcripts: Transcripts, name: str, protection: Protection
) -> None:
    for number in range(1, ROUNDS + 1):
        compare_predictions(transcripts(name, protection), transcripts(name, PLAIN), number)


@each_protected
def test_groups_are_those_of_plain(transcripts: Transcripts, name: str, protection: Protection) -> None:
    case, transcript = CASES[name], transcripts(name, protection)
    assert transcript.groups == transcripts(name, PLAIN).groups
    if case.method is not Method.FEDPC:
        assert transcript.groups in ((), (names_of(case),))
        return
    count = {"fedpc three-groups": 3, "fedpc one-group": 1}.get(name, 2)
    assert len(transcript.groups) == count
    kinds = [{int(site.removeprefix("site-")) % count for site in group} for group in transcript.groups]
    assert all(len(kind) == 1 for kind in kinds)


# Classes that too few hold, and what sites train towards


@pytest.mark.parametrize(
    ("name", "protection"), runs(lambda name, case, protection: case.holds is FEW and protection is not CKKS)
)
def test_class_of_too_few_holders_is_withheld(
    transcripts: Transcripts, name: str, protection: Protection
) -> None:
    transcript = transcripts(name, protection)
    for got in transcript.got.values():
        prototypes = transcript.agreement.layout.classes > 0
        assert got.has.tolist() == [prototypes, False, prototypes, False]
        assert not got.rows[~got.has[: len(got.rows)]].any()


def test_fedpc_class_is_withheld_where_too_few_of_a_group_hold_it(transcripts: Transcripts) -> None:
    """Class 5 is at four sites, two in each group; class 0 at two of the second group, and at all of the first."""
    masked = transcripts("fedpc", MASKED)
    expected = equations.expected(masked, 1)
    for (_, site), got in first_round(masked).items():
        np.testing.assert_array_equal(got.has, [True, True, True, True, True, False])
        assert not got.rows[5].any()
        assert (np.abs(got.rows - expected[site].rows) <= np.minimum(1e-9, expected[site].rows_bound)).all()


@pytest.mark.parametrize(
    ("name", "protection"),
    runs(lambda name, case, protection: case.method is Method.FEDDBP and protection is not CKKS),
)
def test_feddbp_site_trains_towards_its_own_fusion(
    transcripts: Transcripts, name: str, protection: Protection
) -> None:
    for site in names_of(CASES[name]):
        assert equations.fusion_excess(transcripts(name, protection), 1, site) <= 1.0


@pytest.mark.parametrize("protection", [PLAIN, MASKED])
def test_fedproto_site_trains_towards_the_mean(transcripts: Transcripts, protection: Protection) -> None:
    transcript = transcripts("fedproto", protection)
    for site in names_of(CASES["fedproto"]):
        np.testing.assert_array_equal(transcript.guides[2, 1, site], transcript.got[1, site].rows)


@pytest.mark.full
def test_fedavg_site_weighs_its_samples_up_to_the_most(transcripts: Transcripts) -> None:
    """Six of each class: three classes, or up to six at a site of the nine, 36 being the most."""
    samples = {put.samples for put in transcripts("fedavg", PLAIN).put.values()}
    assert samples == {6 * int(count) for count in two_kinds().sum(axis=1)}
    assert len(samples) > 1
    assert max(samples) <= 36


@pytest.mark.parametrize(
    ("name", "protection"), runs(lambda name, case, protection: case.is_clustered and protection is PLAIN)
)
def test_local_prototypes_are_finch_over_a_classs_features(
    transcripts: Transcripts, name: str, protection: Protection
) -> None:
    transcript, largest = transcripts(name, protection), 0
    assert isinstance(transcript, ClusterTranscript)
    for at, local in transcript.local.items():
        want = equations.expected_local(transcript, at)
        assert [(int(k), int(n)) for k, n in zip(local.labels, local.counts, strict=True)] == [
            (k, n) for k, _, n in want
        ]
        np.testing.assert_allclose(local.rows, [row for _, row, _ in want], rtol=0.0, atol=1e-12)
        largest = max(largest, int(np.bincount(local.labels).max()))
    assert (largest == 1) == (name == "fpl")


@pytest.mark.parametrize(("name", "protection"), runs(lambda name, case, protection: case.is_clustered))
def test_clusters_are_of_the_classes_that_enough_hold(
    transcripts: Transcripts, name: str, protection: Protection
) -> None:
    transcript = transcripts(name, protection)
    assert isinstance(transcript, ClusterTranscript)
    for number in range(1, ROUNDS + 1):
        labels = equations.expected_clusters(transcript, number).labels
        assert set(labels) == {0, 1, 2}  # class 3 is withheld
        assert len(labels) > 3 or name == "fpl"


@pytest.mark.parametrize("literal", [False, True])
def test_cluster_may_be_of_one_site_where_that_is_agreed(tmp_path: Any, literal: bool) -> None:
    """The papers have one site for each domain; vectors clustered unscaled are tried too."""
    section = FedplccSection(literal=literal)
    case = Case(Method.FEDPLCC, SIX, {"fedplcc": section, "min_holders": 1})
    transcript = record_run(case.agreement(PLAIN), data_for(case.agreement(PLAIN), SIX), tmp_path)
    assert isinstance(transcript, ClusterTranscript)
    for number in range(1, ROUNDS + 1):
        assert equations.excess(transcript, number) <= 1.0
        assert set(equations.expected_clusters(transcript, number).labels) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("name", "protection"),
    runs(lambda name, case, protection: name.endswith("sparse") and protection is MASKED),
)
def test_sparse_graph_has_a_signature_with_each_contribution(
    transcripts: Transcripts, name: str, protection: Protection
) -> None:
    transcript, case = transcripts(name, protection), CASES[name]
    limits = limits_of(transcript.agreement)
    for group in transcript.groups:
        assert transcript.agreement.masking.graph(len(case.holds), len(group)).sparse
    if case.is_clustered:
        return
    contents = [
        received.content
        for received in transcript.received
        if received.key is not None and received.key.phase is Phase.VALUES and received.key.round
    ]
    assert len(contents) == len(case.holds) * ROUNDS
    for content in contents:
        assert codec.decode_masked_values(content, limits, values_shape(transcript.agreement, 1)).signature


# The power of the checks


@every_run
def test_one_contribution_less_is_beyond_the_bound(
    transcripts: Transcripts, name: str, protection: Protection
) -> None:
    transcript, case = transcripts(name, protection), CASES[name]
    if protection is CKKS and case.holds is FEW:  # of three nobody can be left out
        return
    for site in contributors(transcript, 2)[:3] if case.method is not Method.FEDPC else names_of(case):
        assert equations.excess(transcript, 2, without=(site,)) > 100.0


@pytest.mark.parametrize("name", ["fedpc", pytest.param("feddbp", marks=pytest.mark.full)])
def test_bound_is_that_of_the_ring(transcripts: Transcripts, name: str) -> None:
    """A ring of 32 bits is beyond the bound for 64, and that beyond what float64 alone may be off."""
    large, plain = transcripts(name, MASKED), transcripts(name, PLAIN)
    narrow = transcripts(f"{name} narrow", MASKED)
    wide = narrow.agreement.model_copy(update={"masking": MaskingSection(ring_bits=64)})
    assert equations.excess(replace(narrow, agreement=wide), 1) > 1000.0
    assert equations.excess(replace(large, agreement=plain.agreement), 1) > 2.0


def test_bound_of_masked_clusters_is_beyond_that_of_plain(transcripts: Transcripts) -> None:
    masked, plain = transcripts("fedplcc", MASKED), transcripts("fedplcc", PLAIN)
    assert equations.excess(replace(masked, agreement=plain.agreement), 1) > 2.0


@pytest.mark.parametrize("name", ["fedpc", "fedpc three-groups"])
def test_groups_that_do_not_listen_to_each_other_are_beyond_the_bound(
    transcripts: Transcripts, name: str
) -> None:
    """Equations 7 and 8 left out: the means of one's own group."""
    masked = transcripts(name, MASKED)
    alone = equations.expected(masked, 1, without=[site for group in masked.groups[1:] for site in group])
    got = {
        key: replace(result, rows=alone[key[1]].rows, averaged=alone[key[1]].averaged)
        for key, result in first_round(masked).items()
        if key[1] in masked.groups[0]
    }
    assert equations.excess(replace(masked, got=got), 1) > 1e6


@pytest.mark.full
@pytest.mark.parametrize("protection", [PLAIN, MASKED])
def test_models_that_are_not_weighed_are_beyond_the_bound(
    transcripts: Transcripts, protection: Protection
) -> None:
    transcript = transcripts("fedavg", protection)
    alike = {key: replace(put, samples=1) for key, put in transcript.put.items()}
    assert equations.excess(replace(transcript, put=alike), 1) > 100.0


@pytest.mark.full
@pytest.mark.parametrize("protection", [PLAIN, MASKED])
@pytest.mark.parametrize(
    "changes", [{"own": 1.0}, {"top_channels": 4}, {"top_channels": 12}, {"personal": False}]
)
def test_another_fusion_is_beyond_the_bound(
    transcripts: Transcripts, protection: Protection, changes: dict[str, Any]
) -> None:
    transcript = transcripts("feddbp", protection)
    sites = names_of(CASES["feddbp"])
    assert max(equations.fusion_excess(transcript, 1, site, **changes) for site in sites) > 100.0


@pytest.mark.full
def test_fusion_by_another_sites_scores_is_beyond_the_bound(transcripts: Transcripts) -> None:
    transcript = transcripts("feddbp", MASKED)
    swapped = dict(transcript.put)
    scores = transcript.put[1, 1, "site-3"].scores
    swapped[1, 1, "site-1"] = replace(transcript.put[1, 1, "site-1"], scores=scores)
    assert equations.fusion_excess(replace(transcript, put=swapped), 1, "site-1") > 100.0


@pytest.mark.parametrize(("protection", "leaks"), [(PLAIN, True), (MASKED, False)])
def test_prototypes_are_in_messages_of_plain_alone(
    transcripts: Transcripts, protection: Protection, leaks: bool
) -> None:
    transcript = transcripts("fedproto", protection)
    rows = np.concatenate([put.rows[put.holds] for put in transcript.put.values()])
    assert search_messages(transcript.received, transcript.agreement, rows).leaks == leaks
