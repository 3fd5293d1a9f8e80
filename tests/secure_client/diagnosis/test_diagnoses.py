"""Diagnoses at their thresholds: figures just beyond each threshold have the symptom, figures just short of it not."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest

from agreement import (
    CONTROLS,
    METHODS,
    Agreement,
    DpSgdSection,
    Extractor,
    Family,
    FedpcSection,
    Method,
    PrivacySection,
)
from secure_client.diagnosis.diagnoses import Symptom, diagnose
from secure_client.output.site_log import SiteRound
from tests.support.small import short_training, small_agreement

CHANCE = {"accuracy": 0.5, "accuracy_constant": 0.5, "test_samples": 100}
GOOD = CHANCE | {"accuracy": 0.9}


def training(number: int, cross_entropy: float, *, loss: float | None = None, **figures: Any) -> SiteRound:
    """Return a round with these losses, at a site whose labels have an entropy of 2."""
    return SiteRound(
        round=number,
        attempt=1,
        sites=4,
        withheld=(),
        seconds={},
        loss=cross_entropy if loss is None else loss,
        loss_classification=cross_entropy,
        loss_constant=2.0,
        **{"accuracy_classifier": None, "accuracy_prototype": None} | figures,
    )


def course(*cross_entropies: float, loss: float | None = None, **figures: Any) -> list[SiteRound]:
    """Return a site's rounds, those after the first with this ``loss`` as a whole."""
    return [
        training(at + 1, each, loss=loss if at else None, **figures)
        for at, each in enumerate(cross_entropies)
    ]


def agreement_on(method: Method, **fields: Any) -> Agreement:
    """Return an agreement on the method, of which only settings matter here."""
    return small_agreement().model_copy(update={"method": method, **fields})


def remedy(agreement: Agreement, method: Method, rounds: list[SiteRound]) -> str:
    """Return the remedy of a run with one diagnosis."""
    (found,) = diagnose(agreement, method, [rounds])
    return found.remedy


def unknown_settings(agreement: Agreement, texts: Iterable[str]) -> set[str]:
    """Return the names in remedies that are settings of none of the tables that the remedy names."""
    root, unknown = agreement.model_dump(by_alias=True), set()
    for text in texts:
        keys = set(root)
        for path in re.findall(r"\[([\w.]+)\]", text):
            table = root
            for part in path.split("."):
                table = table[part]
            keys |= set(table)
        named = re.findall(r"(\w+) \(now ", text) + re.findall(r"[a-z]+(?:_[a-z0-9]+)+", text)
        unknown |= set(named) - keys
    return unknown


def symptoms(*sites: list[SiteRound], method: Method = Method.FEDPC) -> list[Symptom]:
    found = diagnose(agreement_on(Method.FEDPC), method, sites)
    assert all(each.method == method.value and each.remedy for each in found)
    return [each.symptom for each in found]


def test_diagnose_loss_that_falls_has_no_symptom() -> None:
    assert symptoms(course(1.8, 1.2, 0.4, **GOOD)) == []
    assert symptoms(course(1.8, 1.2, 0.4, loss=30.0, **GOOD)) == []  # alignment, however large


@pytest.mark.parametrize(
    ("last", "loss", "rounds", "expected"),
    [
        (1.61, 4.0, 5, [Symptom.DROWNED]),
        (1.59, 4.0, 5, []),  # 20 % less than in round 1
        (1.61, 3.0, 5, []),  # the loss is less than twice the cross entropy
        (1.91, 4.0, 2, [Symptom.DROWNED]),
        (1.89, 4.0, 2, []),  # 5 % less in one round, which may be a good start
        (0.99, 4.0, 5, []),  # low, beside labels with an entropy of 2
    ],
)
def test_diagnose_alignment_that_outweighs_a_constant_cross_entropy_drowns(
    last: float, loss: float, rounds: int, expected: list[Symptom]
) -> None:
    first = 2.0 if last > 1.0 else 1.0
    assert symptoms(course(first, *[last] * (rounds - 1), loss=loss, **GOOD)) == expected


def test_diagnose_alignment_that_outweighed_once_drowns() -> None:
    """The features then collapse onto their targets, and the loss is small again."""
    rounds = course(2.0, 2.0, 1.9, 1.9, 1.9)
    assert symptoms(rounds) == [Symptom.NOT_FALLING]
    rounds[1] = training(2, 2.0, loss=5.0)
    assert symptoms(rounds) == [Symptom.DROWNED]


@pytest.mark.parametrize(
    ("cross_entropies", "expected"),
    [
        ((2.0, 2.0, 1.91), [Symptom.NOT_FALLING]),
        ((2.0, 1.5, 2.4), [Symptom.NOT_FALLING]),
        ((2.0, 2.0, 1.89), []),
        ((2.0, 2.0), []),  # too early
        ((0.9, 0.9, 0.9), []),  # low from the start
    ],
)
def test_diagnose_loss_that_stays_for_three_rounds_does_not_fall(
    cross_entropies: tuple[float, ...], expected: list[Symptom]
) -> None:
    assert symptoms(course(*cross_entropies, **GOOD)) == expected
    assert symptoms(course(*cross_entropies)) == expected  # without test samples


def test_diagnose_failed_training_comes_first() -> None:
    rounds = course(2.0, 2.0, 2.0, **CHANCE)
    failed = rounds[-1].model_copy(update={"trained": False})
    (found,) = diagnose(agreement_on(Method.FEDPC), Method.FEDPC, [rounds, [*rounds[:-1], failed]])
    assert found.symptom is Symptom.FAILED
    assert "1 of 2 sites" in found.text
    assert "lower lr" in found.remedy
    assert symptoms([failed, *rounds]) == [Symptom.NOT_FALLING]  # it recovered


def test_diagnose_unreadable_records_come_before_failed_training() -> None:
    rounds = course(2.0, 2.0, 2.0, **CHANCE)
    unread = rounds[-1].model_copy(update={"trained": False, "unreadable": True})
    (diagnosis,) = diagnose(agreement_on(Method.FEDPC), Method.FEDPC, [rounds, [*rounds[:-1], unread]])
    assert diagnosis.symptom is Symptom.UNREADABLE
    assert "lr" not in diagnosis.remedy


def test_diagnose_loss_near_zero_has_no_symptom() -> None:
    """Sites of one class have a constant answer without error."""
    rounds = [each.model_copy(update={"loss_constant": 0.0}) for each in course(0.05, 0.05, 0.05, loss=1.0)]
    assert symptoms(rounds) == []


def test_diagnose_losses_are_means_over_the_sites() -> None:
    assert symptoms(course(2.0, 2.0, 2.0), course(2.0, 1.0, 0.2)) == []
    assert symptoms(course(2.0, 2.0, 2.0), course(2.0, 1.9, 1.9)) == [Symptom.NOT_FALLING]


@pytest.mark.parametrize(
    ("accuracy", "samples", "expected"),
    [
        (0.599, 100, [Symptom.CHANCE]),  # two standard errors are 2·√(0.5·0.5/100) = 0.1
        (0.601, 100, []),
        (0.511, 10_000, []),
        (0.509, 10_000, [Symptom.CHANCE]),
        (0.3, 100, [Symptom.CHANCE]),
    ],
)
def test_diagnose_accuracy_within_two_standard_errors_is_at_chance(
    accuracy: float, samples: int, expected: list[Symptom]
) -> None:
    figures = {"accuracy_constant": 0.5, "test_samples": samples, "accuracy": accuracy}
    assert symptoms(course(1.0, 0.9, **figures)) == expected
    assert symptoms(course(1.0, **figures)) == []  # too early


@pytest.mark.parametrize(("constant", "samples"), [(1.0, 50), (0.97, 100), (0.9, 30)])
@pytest.mark.parametrize("accuracy", [1.0, 0.1])
def test_diagnose_accuracy_that_could_not_exceed_the_threshold_has_no_symptom(
    constant: float, samples: int, accuracy: float
) -> None:
    figures = {"accuracy_constant": constant, "test_samples": samples, "accuracy": accuracy}
    assert symptoms(course(1.0, 0.9, **figures)) == []
    assert symptoms(course(1.0, 0.9, **figures | {"accuracy_constant": 0.8})) == (
        [] if accuracy == 1.0 else [Symptom.CHANCE]
    )


def test_diagnose_accuracy_is_over_all_test_samples() -> None:
    large, small = CHANCE | {"test_samples": 900}, GOOD | {"accuracy": 1.0}
    assert (
        symptoms(course(1.0, 0.9, **small), course(1.0, 0.9, **large)) == []
    )  # 55 %, with a margin of 3.2 points
    larger = course(1.0, 0.9, **large | {"test_samples": 3000})  # 51.6 %, with a margin of 1.8 points
    assert symptoms(course(1.0, 0.9, **small), larger) == [Symptom.CHANCE]


def test_diagnose_last_tested_round_counts() -> None:
    rounds = [training(1, 1.9, **CHANCE), training(2, 1.5, **GOOD), training(3, 1.0)]
    assert symptoms(rounds) == []
    assert symptoms([rounds[0], rounds[2]]) == [Symptom.CHANCE]


def test_diagnose_method_is_judged_by_its_own_inference() -> None:
    figures = CHANCE | {"accuracy_classifier": 0.9, "accuracy_prototype": 0.9}
    assert symptoms(course(1.0, 0.9, **figures)) == [Symptom.CHANCE]
    assert symptoms(course(1.0, 0.9, **figures | {"accuracy": 0.9})) == []


@pytest.mark.parametrize(("shares", "expected"), [((0.0, 0.21), [Symptom.NORM_BOUND]), ((0.0, 0.19), [])])
def test_diagnose_norm_bound_is_hit_from_a_tenth_of_the_prototypes(
    shares: tuple[float, ...], expected: list[Symptom]
) -> None:
    sites = [course(1.0, shortened=each) for each in shares]
    assert symptoms(*sites) == expected
    agreement = agreement_on(Method.FEDPC)
    assert (
        unknown_settings(agreement, [each.remedy for each in diagnose(agreement, Method.FEDPC, sites)])
        == set()
    )


def test_diagnose_norms_without_alignment_have_no_symptom() -> None:
    assert symptoms(course(1.0, shortened=1.0), method=Method.AVERAGE) == []


def test_diagnose_losses_under_privacy_have_no_symptom() -> None:
    """Exact losses could be published with a result."""
    private = agreement_on(Method.FEDPC, privacy=PrivacySection(clip=1.0, noise_multiplier=5.0))
    rounds = course(2.0, 2.0, 2.0, loss=9.0, **CHANCE)
    (found,) = diagnose(private, Method.FEDPC, [rounds])
    assert found.symptom is Symptom.CHANCE
    assert "cross entropy" not in found.text


def test_remedy_under_privacy_is_less_noise() -> None:
    """Longer training costs budget, and without losses nobody knows in which direction to change the rate."""
    frozen = PrivacySection(clip=1.0, noise_multiplier=5.0)
    private = PrivacySection(
        clip=1.0,
        noise_multiplier=5.0,
        extractor=Extractor.PRIVATE,
        dp_sgd=DpSgdSection(noise_multiplier=0.5, clip=1.0, sampling_rate=0.1),
    )
    for privacy, settings in ((frozen, ["5"]), (private, ["5", "0.5"])):
        agreement = agreement_on(Method.FEDPC, privacy=privacy)
        found = remedy(agreement, Method.FEDPC, course(2.0, 2.0, **CHANCE))
        assert re.findall(r"noise_multiplier \(now ([\d.]+)\)", found) == settings
        assert unknown_settings(agreement, [found]) == set()
        assert not re.search(r"epsilon|raise lr|train longer", found)


@pytest.mark.parametrize(
    ("method", "extractor", "lowers"),
    [
        (Method.PFPL, Extractor.FROZEN, True),  # by prototype
        (Method.AVERAGE, Extractor.FROZEN, True),
        (Method.SELF, Extractor.FROZEN, False),  # exact prototypes, which never leave
        (Method.LOCAL, Extractor.FROZEN, False),
        (Method.PFPL, Extractor.TRAINED, True),
        (Method.AVERAGE, Extractor.TRAINED, False),  # by a classifier that is aligned with nothing
        (Method.LOCAL, Extractor.TRAINED, False),
    ],
)
def test_remedy_under_privacy_without_noise_in_predictions_is_another(
    method: Method, extractor: Extractor, lowers: bool
) -> None:
    privacy = PrivacySection(clip=1.0, noise_multiplier=5.0, extractor=extractor)
    own = Method.FEDPC if method is Method.AVERAGE else Method.PFPL
    found = remedy(agreement_on(own, privacy=privacy), method, course(2.0, 2.0, **CHANCE))
    assert ("noise_multiplier" in found) == lowers
    assert ("lr" in re.findall(r"\w+", found)) == (extractor is Extractor.TRAINED)


def test_remedy_for_frozen_features_is_other_features() -> None:
    agreement = agreement_on(Method.PFPL, training=short_training("small-cnn", frozen_extractor=True))
    drowned = course(2.0, 2.0, 2.0, loss=9.0)
    assert [each.symptom for each in diagnose(agreement, Method.PFPL, [drowned])] == [Symptom.NOT_FALLING]
    found = remedy(agreement, Method.PFPL, course(2.0, 1.5, 1.0, **CHANCE))
    assert unknown_settings(agreement, [found]) == set()
    assert not re.search(r"lambda|lr|rounds|epochs", found)


def test_diagnose_older_log_has_no_symptom() -> None:
    bare = training(1, 1.0).model_dump(exclude={"loss", "loss_classification", "loss_constant"})
    assert symptoms([SiteRound(**bare | {"accuracy": 0.1})]) == []
    assert symptoms([]) == symptoms() == []


@pytest.mark.parametrize("method", sorted(METHODS.values(), key=str), ids=str)
def test_remedy_names_settings_of_the_agreement(method: Method) -> None:
    agreement = agreement_on(Method.PFPL if method in CONTROLS else method)
    courses = (
        course(2.0, 2.0, 2.0, loss=9.0),
        course(2.0, 2.0, 2.0),
        course(3.0, 2.4, **CHANCE),
        course(1.0, 0.1, **CHANCE),
    )
    found = [remedy(agreement, method, rounds) for rounds in courses]
    assert unknown_settings(agreement, found) == set()
    drowned, flat, untrained, tested = found
    aligned = method.traits.prototypes or method.traits.family is Family.CLUSTERS or method is Method.SELF
    assert ("(now " in drowned) is (aligned and method not in (Method.AVERAGE, Method.FPL))
    assert "(now " in drowned or "the control local" in drowned
    assert "lr (now " in flat
    assert "rounds (now " in untrained
    assert "(now " not in tested


def test_remedy_for_training_that_fits_is_no_more_training() -> None:
    agreement = agreement_on(Method.FEDPC)
    low, high = (remedy(agreement, Method.FEDPC, course(2.0, last, **CHANCE)) for last in (0.99, 1.01))
    assert "training fits" in low
    assert "the control local" in low
    assert "raise rounds" in high
    assert "the control local" not in remedy(agreement, Method.LOCAL, course(2.0, 0.5, **CHANCE))


def test_remedy_names_the_setting_and_its_value() -> None:
    agreement = agreement_on(Method.FEDPC, fedpc=FedpcSection(alignment=0.4, literal=True))
    (found,) = diagnose(agreement, Method.FEDPC, [course(2.0, 2.0, 2.0, loss=9.0)])
    assert "alignment (now 0.4) in [fedpc]" in found.remedy
    assert "literal" in found.remedy
    assert unknown_settings(agreement, [found.remedy]) == set()
    assert found.remedy in found.text


@pytest.mark.parametrize(
    ("cross_entropies", "change"),
    [
        ((2.0, 2.0, 1.99), "raise"),
        ((2.0, 2.0, 2.001), "raise"),
        ((2.0, 2.0, 2.11), "lower"),
        ((9.0, 6.0, 5.0), "lower"),
    ],
)
def test_remedy_for_diverged_training_is_a_lower_rate(
    cross_entropies: tuple[float, ...], change: str
) -> None:
    """Equal probabilities of ten classes have a cross entropy of ln 10 = 2.3."""
    agreement = agreement_on(Method.PFPL, classes=tuple(map(str, range(10))))
    (found,) = diagnose(agreement, Method.PFPL, [course(*cross_entropies, **CHANCE)])
    assert f"{change} lr" in found.remedy


def test_diagnose_feddbp_has_a_cross_entropy_for_each_branch() -> None:
    rounds, agreement = course(1.5, 1.5, 1.5), agreement_on(Method.FEDDBP)
    assert symptoms(rounds) == [Symptom.NOT_FALLING]
    for method in (Method.FEDDBP, Method.SELF):
        assert diagnose(agreement, method, [rounds]) == ()  # low: 0.75 for each branch
    (found,) = diagnose(agreement, Method.LOCAL, [rounds])  # the control has one branch
    assert found.symptom is Symptom.NOT_FALLING
