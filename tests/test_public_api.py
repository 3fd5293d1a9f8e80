"""Public Python API: every listed name is exported and documented, nothing else is, and types are shipped."""

from __future__ import annotations

import importlib
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from scripts.documentation.reference import PUBLIC, exported, meaning, python_api

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
PACKAGES = {
    name: ROOT / "proto" / name if name == "protoseal_wire" else ROOT / name
    for name in SETTINGS["importlinter"]["root_packages"]
    if name != "benchmarks"  # of the checkout alone
}
NAMES = {
    "agreement": """
        CONTROLS DEPLOYABLE METHODS PROTECTIONS SIMULATED Agreement AveragingSection
        BaselinesSection Clustering ConfigError DpSgdSection Extractor Family FeddbpSection
        FedpcSection FedplccSection Inference InputSection Layout LogLevel MaskingSection Method ModelPart NoSettings
        Noise Norm Optimiser PeersHalves PfplSection Predicts PreprocessingSection PrivacySection Protection
        Section SumHalves TableColumn TableSection TimingSection TrainingSection Traits load_agreement method_named""",
    "agreement.registry.conformance": "NotConforming check_protection check_weights",
    "agreement.registry.recipe": "BatchLoss ClusteredPrototypes Recipe Stage Trains",
    "algorithms.gram_matrix": "Bool Float",
    "algorithms.losses": "Outputs Terms",
    "algorithms.prototypes": "Clusters Targets",
    "crypto.errors": """
        BoundError CryptoError DecryptionError GraphError ImplausibleError KeyStoreError MalformedError
        PrecisionError UnknownSchemeError VerificationError""",
    "crypto.fixed_point": "FixedPoint Float Segment",
    "crypto.keys": "KEY_BYTES derive",
    "crypto.pairwise.masks": "add_streams",
    "crypto.protection": "Axis Cohort Payload PayloadShape Rows ServerHalf SiteHalf UpTo Words",
    "crypto.sum_protection": "SumFacts SumServerHalf SumSiteHalf Values",
}
"""The public names. To change this table is to change what third parties' code can rely on: say so in CHANGELOG.md."""


def test_the_public_modules_are_those_of_the_reference() -> None:
    assert set(PUBLIC) == set(NAMES)
    assert {package for package in PACKAGES if exported(package)} <= set(NAMES)


@pytest.mark.parametrize("module", NAMES)
def test_the_exported_names_are_the_public_ones(module: str) -> None:
    assert set(exported(module)) == set(NAMES[module].split())
    loaded = importlib.import_module(module)
    assert [name for name in exported(module) if not hasattr(loaded, name)] == []


def test_every_public_name_is_documented() -> None:
    page = python_api()
    for module in NAMES:
        for name in exported(module):
            assert f"| `{name}` | " in page
            assert len(meaning(module, name)) > 5


def test_a_public_name_without_a_docstring_is_an_error() -> None:
    with pytest.raises(LookupError, match="annotations"):
        meaning("agreement.schema.agreement", "annotations")


def test_every_package_ships_its_types() -> None:
    shipped = SETTINGS["setuptools"]["package-data"]["*"]
    assert "py.typed" in shipped
    for name, folder in PACKAGES.items():
        assert (folder / "py.typed").is_file(), name
        assert any(
            fnmatch(name, pattern) for pattern in SETTINGS["setuptools"]["packages"]["find"]["include"]
        )
