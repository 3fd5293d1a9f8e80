"""Drowning rests on each site's own word: one that says, encrypted, that it has a class is answered as a holder."""

import numpy as np
import pytest
from numpy.typing import NDArray

from crypto.ckks.hidden import hidden_answer_forms
from crypto.ckks.hidden_site import HiddenSite
from crypto.ckks.packing import Complex, Float, Packing
from crypto.ckks.serialization import read_payload
from crypto.protection import Cohort, Combination, Rows
from tests.crypto.ckks_reference import TAU, Bool, cohort_of, group, random_stack
from tests.crypto.hidden_reference import LEAST, hidden_server, hidden_uploads, seen_by

SITES, CLASSES, DIM = 4, 3, 32
HOLDER, LIAR, LONELY = 0, 1, 0
"""The only site that has a class, one that says that it has it too, and that class."""
STACK = random_stack((SITES, CLASSES, DIM), 0.5, seed=1)
SECRET = STACK[HOLDER, LONELY]


def holdings(*holders: int) -> Bool:
    """All classes, but of ``LONELY`` these sites' alone."""
    holds = np.ones((SITES, CLASSES), dtype=np.bool_)
    holds[:, LONELY] = np.isin(np.arange(SITES), holders)
    return holds


class WrongNorms(HiddenSite):
    """Says that ‖C‖² is 1 more than it is: of a true one ``complement`` makes 0 where two hold a class."""

    def _beside(self, packing: Packing, sent: Rows, site: str, cohort: Cohort) -> list[Complex | Float]:
        absences, *norms = super()._beside(packing, sent, site, cohort)
        more = packing.replicate(np.eye(CLASSES)[LONELY])
        return [absences, *(slots + more for slots in norms)]


def read_by_the_liar(combination: Combination, said: Bool) -> NDArray[np.float64]:
    """What the liar's answer holds of the class (d,), where ``said`` (n, K) is what all sites encrypt."""
    cohort, packing = cohort_of(said, DIM), Packing(CLASSES, DIM)
    payloads, name = hidden_uploads(STACK, cohort, combination), cohort.sites[LIAR]
    rows = STACK[LIAR].copy()
    rows[LONELY] = np.eye(DIM)[0] if combination is Combination.COMPLEMENT else 0.0
    half = WrongNorms(group().secret, combination, TAU, LEAST)
    payloads[name] = half.protect(rows, name, seen_by(LIAR, cohort))
    server, seen = hidden_server(combination), seen_by(None, cohort)
    server.validate(payloads[name], name, seen)
    forms = hidden_answer_forms(combination, packing.parts)
    ciphertexts = read_payload(server.combine(payloads, seen)[name], forms)
    numerators = [group().secret.decrypt(each) for each in ciphertexts[: packing.parts]]
    return np.asarray(packing.unpack(numerators)[LONELY])


def likeness(found: NDArray[np.float64]) -> float:
    """|cos| to the only holder's prototype."""
    return float(abs(found @ SECRET) / np.linalg.norm(found) / np.linalg.norm(SECRET))


@pytest.mark.parametrize("combination", list(Combination))
def test_the_limit_a_site_that_says_it_has_a_class_reads_its_only_holder(combination: Combination) -> None:
    assert likeness(read_by_the_liar(combination, holdings(HOLDER, LIAR))) > 1.0 - 1e-6
    # Noise of 32 dimensions is as near to a given direction once in 10^12.
    assert likeness(read_by_the_liar(combination, holdings(HOLDER))) < 0.9
