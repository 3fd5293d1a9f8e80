"""How far an audit is from going the other way by chance."""

from __future__ import annotations

import math

from protoseal.evaluation.audit import Audit, Guesses, p_value
from protoseal.evaluation.audit_power import Separation

FALSE_ALARM = math.log(1e9)


def margin(done: Audit, separation: Separation) -> float:
    """−log of the probability that an audit with such scores is on the other side of the claim.

    Given the scores coins are independent, so that right guesses stray from their mean as Hoeffding 1963, theorem 1,
    says. That mean itself moves with the scores' order statistics; a tenth of the distance is left for it, many of
    its deviations.
    """
    canaries, made = done.guesses.canaries, done.guesses.made
    mean, low, high = separation.right(canaries, made), made // 2, made
    while low < high:
        middle = (low + high) // 2
        above = p_value(Guesses(canaries, made, middle), done.claimed + 1e-3, done.delta) < done.level
        low, high = (low, middle) if above else (middle + 1, high)
    usual, far = mean / made, (mean + 0.9 * (low - mean)) / made
    return made * (far * math.log(far / usual) + (1 - far) * math.log((1 - far) / (1 - usual)))
