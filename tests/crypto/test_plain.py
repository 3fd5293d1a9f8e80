"""``plain``: the server computes W·C, both sides refuse what is not rows, and nothing else travels."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from crypto.errors import MalformedError, UnknownSchemeError
from crypto.plain import GramServer, PlainServer, PlainSite
from crypto.protection import Cohort, Payload, Rows
from tests.crypto.bad_rows import BAD_ROWS, check_payload_refused, check_rows_refused, other_payloads
from tests.support.weakened_builds import weaken

SITES = ("a", "b", "c")
HOLDS = np.array([[True, True], [True, False], [True, True]])
COHORT = Cohort(SITES, HOLDS, dim=3)


def mean_of_peers(gram: NDArray[np.float64], holds: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Weights that look at the Gram matrix only to check that it is one."""
    assert gram.shape == (2, 3, 3)
    assert (gram == gram.transpose(0, 2, 1)).all()
    both = holds.T[:, :, None] & holds.T[:, None, :] & ~np.eye(3, dtype=np.bool_)
    return np.asarray(both / np.maximum(both.sum(axis=-1, keepdims=True), 1))


@pytest.fixture
def rows() -> dict[str, Rows]:
    values = np.random.default_rng(5).normal(size=(3, 2, 3))
    values /= np.linalg.norm(values, axis=-1, keepdims=True)
    return dict(zip(SITES, values, strict=True))


def exchange(rows: dict[str, Rows]) -> dict[str, Rows]:
    site, server = PlainSite(), PlainServer(mean_of_peers)
    payloads = {name: site.protect(rows[name], name, COHORT) for name in SITES}
    for name, payload in payloads.items():
        server.validate(payload, name, COHORT)
    answers = server.combine(payloads, COHORT)
    return {name: site.unprotect(answers[name], rows[name], name, COHORT) for name in SITES}


def test_combine_gives_weighted_sum_to_each_site(rows: dict[str, Rows]) -> None:
    received = exchange(rows)
    np.testing.assert_allclose(received["a"][0], (rows["b"][0] + rows["c"][0]) / 2, atol=1e-15)
    np.testing.assert_allclose(received["a"][1], rows["c"][1], atol=1e-15)
    np.testing.assert_allclose(received["c"][1], rows["a"][1], atol=1e-15)


def test_unprotect_absent_class_keeps_row(rows: dict[str, Rows]) -> None:
    assert (exchange(rows)["b"][1] == rows["b"][1]).all()


def test_combine_gives_gram_matrix_to_weights(rows: dict[str, Rows]) -> None:
    def weights(gram: NDArray[np.float64], holds: NDArray[np.bool_]) -> NDArray[np.float64]:
        assert gram[0, 0, 2] == pytest.approx(rows["a"][0] @ rows["c"][0], abs=1e-15)
        assert gram[1, 0, 1] == 0.0
        return np.zeros((2, 3, 3))

    payloads = {name: PlainSite().protect(rows[name], name, COHORT) for name in SITES}
    answers = PlainServer(weights).combine(payloads, COHORT)
    assert not answers["a"].arrays[0].any()


def test_rows_of_other_classes_do_not_travel(rows: dict[str, Rows]) -> None:
    rows["b"][1] = np.nan
    payload = PlainSite().protect(rows["b"], "b", COHORT)
    assert not payload.arrays[0][1].any()


@pytest.mark.parametrize(("spoil", "reason"), BAD_ROWS)
def test_bad_rows_refused_in_both_directions(
    rows: dict[str, Rows], spoil: Callable[[Rows], Rows], reason: str
) -> None:
    check_rows_refused(PlainSite(), PlainServer(mean_of_peers), spoil(rows["a"]), rows["a"], COHORT, reason)


def test_validate_row_of_absent_class_refused(rows: dict[str, Rows], monkeypatch: pytest.MonkeyPatch) -> None:
    payload, server = Payload("plain/1", arrays=(rows["b"],)), PlainServer(mean_of_peers)
    with pytest.raises(MalformedError):
        server.validate(payload, "b", COHORT)
    weaken("crypto.plain._check_payload: rows[~cohort.held_by(site)].any()", monkeypatch)
    server.validate(payload, "b", COHORT)


@pytest.mark.parametrize(("payload", "error"), other_payloads("plain/1", COHORT))
def test_other_schemes_and_forms_refused(
    payload: Payload, error: type[Exception], rows: dict[str, Rows]
) -> None:
    check_payload_refused(PlainSite(), PlainServer(mean_of_peers), payload, rows["a"], COHORT, error)


def test_server_keeps_its_scheme(rows: dict[str, Rows]) -> None:
    server = PlainServer(mean_of_peers, "rotation/1")
    payloads = {
        name: Payload("rotation/1", arrays=(rows[name] * HOLDS[i][:, None],)) for i, name in enumerate(SITES)
    }
    for name, payload in payloads.items():
        server.validate(payload, name, COHORT)
    answers = server.combine(payloads, COHORT)
    assert {answer.scheme for answer in answers.values()} == {"rotation/1"}
    with pytest.raises(UnknownSchemeError):
        server.validate(PlainSite().protect(rows["a"], "a", COHORT), "a", COHORT)
    with pytest.raises(UnknownSchemeError):
        PlainServer(mean_of_peers).combine(payloads, COHORT)


# Inner products alone

WHOLE = Cohort(SITES, np.ones((3, 1), dtype=np.bool_), dim=6)


@pytest.fixture
def whole(rows: dict[str, Rows]) -> dict[str, Payload]:
    """Both rows of each site as one, in the units of its bound."""
    joined = {name: each.reshape(1, 6) / np.sqrt(2.0) for name, each in rows.items()}
    return {name: PlainSite().protect(joined[name], name, WHOLE) for name in SITES}


def test_gram_in_order_of_sites(whole: dict[str, Payload]) -> None:
    server = GramServer()
    for name, payload in whole.items():
        server.validate(payload, name, WHOLE)
    gram = server.gram(dict(reversed(whole.items())), WHOLE)
    assert gram.shape == (3, 3)
    assert (gram == gram.T).all()
    for i, j in np.ndindex(3, 3):
        product = whole[SITES[i]].arrays[0][0] @ whole[SITES[j]].arrays[0][0]
        assert gram[i, j] == pytest.approx(product, abs=1e-15)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (Payload("rotation/1", arrays=(np.zeros((1, 6)),)), "expected a payload of scheme"),
        (Payload("plain/1"), "one array"),
        (Payload("plain/1", arrays=(np.zeros((1, 6)),), words=(np.zeros(1, np.uint32),)), "one array"),
        (Payload("plain/1", arrays=(np.zeros((6, 1)),)), "shape"),
        (Payload("plain/1", arrays=(np.full((1, 6), np.nan),)), "not finite"),
        (Payload("plain/1", arrays=(np.ones((1, 6)),)), "norm"),
    ],
)
def test_gram_validate_other_than_one_row_refused(payload: Payload, reason: str) -> None:
    with pytest.raises(MalformedError, match=reason):
        GramServer().validate(payload, "a", WHOLE)


def test_gram_validate_row_of_site_without_class_refused(whole: dict[str, Payload]) -> None:
    absent = Cohort(SITES, np.array([[False], [True], [True]]), dim=6)
    with pytest.raises(MalformedError, match=r"hold"):
        GramServer().validate(whole["a"], "a", absent)


def test_gram_other_scheme_refused(whole: dict[str, Payload]) -> None:
    with pytest.raises(UnknownSchemeError):
        GramServer("rotation/1").gram(whole, WHOLE)


def test_gram_several_classes_refused(rows: dict[str, Rows]) -> None:
    payloads = {name: PlainSite().protect(rows[name], name, COHORT) for name in SITES}
    with pytest.raises(ValueError, match="class"):
        GramServer().gram(payloads, COHORT)
    with pytest.raises(ValueError, match="class"):
        GramServer().validate(payloads["a"], "a", COHORT)
