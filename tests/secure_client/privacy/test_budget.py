"""Budget of a site: limits that its own file sets, whatever is agreed, and payments that a round may repeat."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from agreement import METHODS, Agreement, ConfigError, DpSgdSection, Extractor, Method, PrivacySection
from privacy.errors import BudgetError
from privacy.ledger.budget_account import read_account
from secure_client.config import load_site
from secure_client.errors import Violation
from secure_client.privacy.budget import BudgetSection
from secure_client.privacy.releases import Releases
from tests.secure_client.conftest import OpenSites
from tests.support.small import small_agreement

AGREED = PrivacySection(clip=2.0, noise_multiplier=6.0)
DP_SGD = DpSgdSection(noise_multiplier=1.5, clip=1.0, sampling_rate=0.05)
TRAINED_PRIVATELY = PrivacySection(clip=2.0, noise_multiplier=6.0, extractor=Extractor.PRIVATE, dp_sgd=DP_SGD)
ROUNDS = 10
SAMPLES = Path(__file__).parents[3] / "deploy" / "samples"


def budget(**limits: Any) -> BudgetSection:
    return BudgetSection(dataset="scans", ledger=Path("ledger.jsonl"), epsilon=3.0, **limits)


@pytest.mark.parametrize(
    "limits",
    [{}, {"least_noise_multiplier": 6.0}, {"largest_clip": 2.0}, {"most_rounds": ROUNDS}],
    ids=["none", "noise", "clip", "rounds"],
)
def test_check_agreement_within_the_limits_is_accepted(limits: dict[str, Any]) -> None:
    budget(**limits).check(AGREED, ROUNDS)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (
            {"least_noise_multiplier": 6.1},
            "has noise multiplier 6, but the least that this site allows is 6.1",
        ),
        ({"largest_clip": 1.9}, "has clip 2, but the largest that this site allows is 1.9"),
        ({"most_rounds": ROUNDS - 1}, "has rounds 10, but the most that this site allows is 9"),
    ],
)
def test_check_agreement_beyond_a_limit_is_refused(limits: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        budget(**limits).check(AGREED, ROUNDS)


@pytest.mark.parametrize(
    ("agreed", "reason"),
    [
        (None, "prototypes would be exact"),
        (AGREED.model_copy(update={"extractor": Extractor.TRAINED}), "no record-level guarantee"),
    ],
    ids=["exact", "trained"],
)
def test_check_agreement_without_guarantee_needs_permission(
    agreed: PrivacySection | None, reason: str
) -> None:
    with pytest.raises(ValueError, match=f"{reason}.*allow_no_guarantee"):
        budget().check(agreed, ROUNDS)
    budget(allow_no_guarantee=True).check(agreed, ROUNDS)


@pytest.mark.parametrize(
    ("line", "changed", "reason"),
    [
        ("least_noise_multiplier = 2.0", "least_noise_multiplier = 2.4", "has noise multiplier 2"),
        ("largest_clip = 10.0", "largest_clip = 2.0", "has clip 2.5"),
        ("most_rounds = 50", "most_rounds = 4", "has rounds 5"),
    ],
)
def test_load_site_checks_the_agreement(tmp_path: Path, line: str, changed: str, reason: str) -> None:
    shutil.copytree(SAMPLES, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "site-private.toml"
    text = file.read_text(encoding="utf-8")
    load_site(file)
    file.write_text(text.replace(line, changed), encoding="utf-8")
    with pytest.raises(ConfigError, match=reason):
        load_site(file)


def test_load_site_trained_features_need_permission(tmp_path: Path) -> None:
    shutil.copytree(SAMPLES, tmp_path, dirs_exist_ok=True)
    agreed, file = tmp_path / "agreement-private.toml", tmp_path / "site-private.toml"
    agreed.write_text(
        agreed.read_text("utf-8").replace('extractor = "frozen"', 'extractor = "trained"'), "utf-8"
    )
    with pytest.raises(ConfigError, match="allow_no_guarantee"):
        load_site(file)
    text = file.read_text("utf-8").replace("allow_no_guarantee = false", "allow_no_guarantee = true")
    file.write_text(text, "utf-8")
    assert load_site(file).privacy is not None


@pytest.mark.parametrize("method", [each for each in METHODS.values() if not each.private])
def test_agreement_method_that_sends_more_is_refused(method: Method) -> None:
    agreed = small_agreement().model_copy(update={"privacy": AGREED})
    with pytest.raises(ValueError, match="sends more than noisy prototypes"):
        agreed.check_served(method)


@pytest.mark.parametrize("method", [each for each in METHODS.values() if each.private])
def test_agreement_method_that_sends_noisy_values_is_served(method: Method) -> None:
    """Features are trained in this test; the next tests have frozen ones."""
    trained = AGREED.model_copy(update={"extractor": Extractor.TRAINED})
    small_agreement().model_copy(update={"privacy": trained}).check_served(method)


def test_agreement_hash_covers_the_noise() -> None:
    agreed = small_agreement()
    assert agreed.model_copy(update={"privacy": AGREED}).hash() != agreed.hash()


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (
            {"least_training_noise": 1.6},
            "noise multiplier in training 1.5, but the least that this site allows is 1.6",
        ),
        (
            {"largest_sampling_rate": 0.04},
            "sampling rate 0.05, but the largest that this site allows is 0.04",
        ),
        ({"least_training_noise": 1.5, "largest_sampling_rate": 0.05}, None),
    ],
)
def test_check_limits_dp_sgd_too(limits: dict[str, Any], reason: str | None) -> None:
    own = budget(**limits)
    own.check(AGREED, ROUNDS)
    if reason is None:
        own.check(TRAINED_PRIVATELY, ROUNDS)
        return
    with pytest.raises(ValueError, match=reason):
        own.check(TRAINED_PRIVATELY, ROUNDS)


def test_check_private_features_need_no_permission() -> None:
    budget().check(TRAINED_PRIVATELY, ROUNDS)


@pytest.mark.parametrize("extractor", Extractor)
@pytest.mark.parametrize("given", [True, False], ids=["given", "not given"])
def test_agreement_dp_sgd_belongs_to_private_features(extractor: Extractor, given: bool) -> None:
    settings = {"clip": 1.0, "noise_multiplier": 1.0, "extractor": extractor} | (
        {"dp_sgd": DP_SGD} if given else {}
    )
    if given == (extractor is Extractor.PRIVATE):
        PrivacySection.model_validate(settings)
        return
    with pytest.raises(ValueError, match=r"\[privacy.dp_sgd\]"):
        PrivacySection.model_validate(settings)


@pytest.mark.parametrize(
    "wrong", [{"sampling_rate": 0.0}, {"sampling_rate": 1.1}, {"clip": 0.0}, {"noise_multiplier": 0.0}]
)
def test_agreement_numbers_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        DpSgdSection.model_validate(dict(DP_SGD) | wrong)


@pytest.mark.parametrize(
    ("rate", "epochs", "steps"),
    [(1.0, 1, 1), (0.5, 3, 6), (0.1, 3, 30), (0.3, 1, 4), (0.07, 7, 100), (1e-3, 1, 1000), (2 / 3, 2, 3)],
)
def test_dp_sgd_steps_of_epochs(rate: float, epochs: int, steps: int) -> None:
    assert DP_SGD.model_copy(update={"sampling_rate": rate}).steps(epochs) == steps


def test_agreement_text_round_trip_keeps_privacy() -> None:
    agreed = small_agreement()
    frozen = agreed.model_copy(update={"privacy": AGREED})
    private = agreed.model_copy(update={"privacy": TRAINED_PRIVATELY})
    assert '"dp_sgd":null' in frozen.to_json()
    assert '"dp_sgd":{"clip":1.0,"noise_multiplier":1.5,"sampling_rate":0.05}' in private.to_json()
    for each in (frozen, private):
        assert Agreement.from_json(each.to_json(), source="text").hash() == each.hash()


LOCAL = PrivacySection(clip=2.0, noise_multiplier=4.0)
PAID_DP_SGD = DpSgdSection(noise_multiplier=2.0, clip=1.0, sampling_rate=0.3)
PRIVATE = LOCAL.model_copy(update={"extractor": Extractor.PRIVATE, "dp_sgd": PAID_DP_SGD})
SITE = "clinic-a"


@pytest.mark.parametrize("privacy", [LOCAL, PRIVATE], ids=["local noise", "DP-SGD"])
def test_presence_before_the_roster_pays_nothing(open_sites: OpenSites, privacy: PrivacySection) -> None:
    """The refusal undoes the training; a coordinator could otherwise have it paid for again after every restart."""
    play = open_sites(small_agreement().model_copy(update={"privacy": privacy}))
    for _ in range(2):
        with pytest.raises(Violation):
            play.presence(SITE)
        play.restart(SITE)
    assert not read_account(play.budget(SITE).ledger).entries


def test_training_killed_again_and_again_pays_no_more_than_allowed(
    tmp_path: Path,
) -> None:
    agreed = small_agreement().model_copy(update={"privacy": PRIVATE})
    own = BudgetSection(dataset="scans", ledger=tmp_path / "ledger.jsonl", epsilon=1e6)
    for _ in range(own.most_paid_attempts):
        Releases(agreed, PRIVATE, own).pay_for_training(1)
    with pytest.raises(BudgetError, match="most_paid_attempts"):
        Releases(agreed, PRIVATE, own).pay_for_training(1)
    Releases(agreed, PRIVATE, own).pay_for_training(2)
    assert len(read_account(own.ledger).entries) == own.most_paid_attempts + 1
