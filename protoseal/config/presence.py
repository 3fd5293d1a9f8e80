"""Who learns which site has which class, and which runs can keep it from the coordinator."""

from __future__ import annotations

from algorithms.pfpl import Weighting
from protoseal.config.capabilities import AnyMethod, AnyProtection, Presence, Protection
from protoseal.config.traits import Family

FEWEST_SAFE_HOLDERS = 3
"""With two holders, each one's answer is the other's prototype; with one, there is nobody to hide behind."""
ALLOWED_BY = "allow_hidden_presence_reveals_peers"
_SHOW_CLASSES = {
    Family.GROUPS: "its clustering shows which site has which class",
    Family.CLUSTERS: "its clustering goes class by class, and shows who has which",
}


def check_presence_served(
    method: AnyMethod,
    weighting: Weighting,
    protection: AnyProtection,
    presence: Presence,
    *,
    min_holders: int,
    allowed: bool,
) -> None:
    """Raise ``ValueError``, by name, unless presence can be what is asked for.

    Hidden, it is the sites' own matter what they take of an answer: ``allowed`` says that this is known.
    """
    if presence is Presence.PUBLIC:
        return
    if protection is not Protection.CKKS:
        raise ValueError(
            f"presence 'hidden' needs protection 'ckks': under {protection.value!r} the coordinator has to know"
            " which site has which class; choose that, or presence = 'public'"
        )
    family = method.traits.family
    if family in _SHOW_CLASSES:
        raise ValueError(
            f"presence 'hidden' is not for method {method.value}: {_SHOW_CLASSES[family]}; choose presence = 'public'"
        )
    if family is Family.PEERS and weighting is Weighting.COMPLEMENT and min_holders < FEWEST_SAFE_HOLDERS:
        raise ValueError(
            f"min_holders = {min_holders} with weighting 'complement' needs to know of classes with two holders"
            " beforehand, which presence 'hidden' does not tell; set it to 3 or more, or choose another weighting"
        )
    if method.traits.prototypes and not allowed:
        raise ValueError(
            "presence 'hidden' cannot withhold classes with too few holders: a curious site reads there what only one"
            " or two others released, which is exact without [privacy] and noisy with it. Choose presence = 'public',"
            f" or say {ALLOWED_BY} = true"
        )
