"""Configuration of ``protoseal simulate``: options override a file, which overrides the defaults."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from agreement.registry.extensions import (
    ExtensionTables,
    KnownMethod,
    KnownProtection,
    extension_settings,
    used_so_far,
)
from agreement.registry.methods import CONTROLS, Method
from agreement.registry.protections import Protection
from agreement.schema.agreement import USUAL_SITES, Agreement
from agreement.schema.run_settings import InputSection, RunSettings
from agreement.sections.training import ModelSpec, Optimiser, PreprocessingSection
from agreement.toml_loading import (
    SITES_FORM,
    ConfigError,
    Count,
    LocalPath,
    Section,
    check_kind,
    data_spec,
    directory_of,
    parse_toml,
    source_of,
    validate,
)
from secure_client.config import Device

SPLITTING = ("split", "sites", "tests")
"""Settings that divide a data set whose files do not."""
Seed = Annotated[int, Field(ge=0, lt=2**32)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]


class ScheduleSection(Section):
    """Participation and training schedules, on the tensor engine only.

    In each round a share of the sites, drawn at random, takes part: these sites train, send, and count for
    `min_holders`. A result that all sites of a group have in common, such as an averaged model, reaches the other sites
    too, as in PFLlib. Where each site has a result of its own, as with PFPL, the others keep their last one. Every
    site is tested.
    """

    participation: PositiveShare = 1.0
    """Share of the sites that takes part in a round, rounded up, and at least `min_sites`; under FedPC with several
    groups the share of each group, and at least `min_holders`."""
    lr_decay: PositiveShare = 1.0
    """Factor by which each round multiplies the learning rate."""
    crop: Annotated[int, Field(ge=0, le=1024)] = 0
    """Pixels of black around a training image, of which a random window of the image's size is cut out."""
    flip: bool = False
    """Mirror each training image with probability 1/2."""
    optimiser_state: Literal["reset", "kept"] = "reset"
    """Momentum and Adam's means at the start of a round: zero, or those of the site's last round."""


class SimulationConfig(RunSettings):
    """One simulated run for each of ``seeds``.

    A seed makes the split, the initial model and the order of batches. ``compare`` names further methods and controls
    that run on the same data with the same budget. ``classes`` and ``preprocessing`` default to the data set's;
    ``min_sites`` defaults to ``min_holders``, at least 2. The sizes in ``[averaging]`` follow from the model.
    ``tests`` is the most samples of each class and domain that are used of the data's own test part. ``pretrained`` is
    the file whose SHA-256 is in ``[training]``.
    """

    method: KnownMethod = Method.PFPL
    """Method, built in or an extension's."""
    protection: KnownProtection = Protection.PLAIN
    """Protection, built in or an extension's."""
    dataset: Annotated[str, Field(min_length=1)] = "digits"
    """Data: a name, several joined by `+`, `npz:PATH`, `folder:PATH`, `table:PATH`, `sites:DIR` or
    `module:function`."""
    split: Annotated[str, Field(min_length=1)] = "mixed:n=6.5,max=25"
    """Split of the data among sites."""
    sites: Annotated[int, Field(ge=2, le=1000)] = 5
    """Number of sites."""
    rounds: Annotated[int, Field(ge=1, le=100_000)] = 5
    """Number of rounds."""
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] = (0,)
    """Seeds, one run for each: split, initial model, order of batches."""
    tests: Count | None = None
    """Most test samples of each class and domain."""
    compare: tuple[KnownMethod, ...] = ()
    """Further methods and controls on the same data."""
    accept_dark_or_constant_inputs: bool = False
    """Use data of which every image is constant or below a tenth of the scale, or every record equal."""
    device: Device = "auto"
    """Device of training: `auto`, `cpu`, `cuda:N` or `mps`."""
    models: tuple[ModelSpec, ...] = ()
    """Models of the sites, in turn, for methods that average none."""
    engine: Literal["auto", "tensors", "sessions"] = "auto"
    """`tensors` computes all sites together in the clear, `sessions` runs the code of a deployment; `auto`: tensors
    under `plain` without `[privacy]`."""
    batched: Literal["auto", "always", "never"] = "auto"
    """Train sites of one architecture in one program: `auto` where it pays, `always` where it can, or `never`."""
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    """Precision of convolutions and products: `tf32` rounds operands to 10 bits on NVIDIA GPUs, also in tests; `bf16`
    to 7 bits, in training alone."""
    evaluate_every: Count = 1
    """Test after every so many rounds, and after the last."""
    per_class: bool = False
    """Report accuracies of each class."""
    early_stopping: Count | None = None
    """Rounds without better validation after which a run stops."""
    tensorboard: bool = False
    """Write scalars for TensorBoard."""
    keep_releases: bool = False
    """Keep each noisy release and its model, for `protoseal budget audit run`."""
    data_root: LocalPath | None = None
    """Folder with torchvision's files."""
    pretrained: LocalPath | None = None
    """File with the pretrained weights."""
    out: LocalPath = Path("runs/simulation")
    """Folder for results."""
    workers: Annotated[int, Field(ge=0, le=1024)] = 0
    """Processes for ciphertexts; 0 uses every core, with `--ray` a run's CPUs."""
    classes: tuple[str, ...] | None = None
    """Names of the classes; the data set's unless given."""
    class_names: dict[str, str] = Field(default_factory=dict)
    """Classes, by the data's own class names, or by labels that have no names."""
    dim: Annotated[int, Field(ge=1, le=1 << 20)] = 64
    """Feature dimension d."""
    min_sites: Annotated[int, Field(ge=2)] | None = None
    """Fewest sites of a round; `min_holders`, and at least 2, unless given."""
    schedule: ScheduleSection = ScheduleSection()
    """Participation and training schedules, which a simulation alone has."""
    extension: ExtensionTables = Field(default_factory=dict, validate_default=True)
    """Settings of extensions."""

    @field_validator("extension", mode="before")
    @classmethod
    def _parse_extension_settings(cls, tables: Any, info: ValidationInfo) -> Any:
        used = [*used_so_far(info), *info.data.get("compare", ())]
        return extension_settings(tables, used, source_of(info)) if isinstance(tables, dict) else tables

    @field_validator("dataset", mode="after")
    @classmethod
    def _resolve_dataset(cls, spec: str, info: ValidationInfo) -> str:
        return data_spec(spec, directory_of(info))

    @field_validator("seeds", mode="after")
    @classmethod
    def _check_seeds_are_distinct(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) < len(seeds):
            raise ValueError("seeds has a duplicate; name each seed once")
        return seeds

    @model_validator(mode="after")
    def _check_enough_sites(self) -> Self:
        if not self.has_site_files and self.sites < self.fewest_sites:
            raise ValueError(
                f"sites = {self.sites} is below {self.fewest_sites}, the fewest that min_holders and"
                " min_sites allow; use more sites, or lower min_holders"
            )
        return self

    @model_validator(mode="after")
    def _check_split_is_used(self) -> Self:
        idle = [name for name in SPLITTING if name in self.model_fields_set]
        if self.has_site_files and idle:
            raise ValueError(
                f"{' and '.join(idle)} has no effect with {SITES_FORM}DIR, which has each site's training and "
                "test samples in a file: leave it out"
            )
        return self

    @model_validator(mode="after")
    def _check_protection_serves_methods(self) -> Self:
        for method in self.methods:
            self.check_served(method)
        return self

    @model_validator(mode="after")
    def _check_precision_is_of_batches(self) -> Self:
        if self.precision == "bf16" and self.batched == "never":
            raise ValueError(
                'precision = "bf16" is for sites in one program: leave batched out, or precision'
            )
        return self

    @model_validator(mode="after")
    def _check_early_stopping_is_not_private(self) -> Self:
        if self.privacy is not None and self.early_stopping is not None:
            raise ValueError(
                "early_stopping depends on accuracies on private samples, which [privacy] does not account "
                "for: leave one of the two out"
            )
        return self

    @model_validator(mode="after")
    def _check_kept_releases_have_noise(self) -> Self:
        if self.keep_releases and self.privacy is None:
            raise ValueError(
                "keep_releases keeps noisy releases, and without [privacy] there are none: add [privacy], or leave "
                "keep_releases out"
            )
        return self

    @model_validator(mode="after")
    def _check_tensors_serve(self) -> Self:
        if self.engine == "tensors" and self._needs_sessions:
            raise ValueError(
                f"engine = 'tensors' computes in the clear and keeps no ledger, so that it cannot simulate"
                f" {self._needs_sessions}: choose engine = 'sessions'"
            )
        return self

    @model_validator(mode="after")
    def _check_schedule_serves(self) -> Self:
        if self.schedule == ScheduleSection():
            return self
        # A coordinator that chose the participants could choose two cohorts that differ in one site, and subtract.
        if not self.uses_tensors:
            raise ValueError(
                "[schedule] is for the tensor engine, and does not go with "
                f"{self._needs_sessions or 'engine = sessions'}: leave one of the two out"
            )
        if self.schedule.participation < 1 and self.training.frozen_extractor:
            raise ValueError(
                "schedule.participation is below 1, but with training.frozen_extractor prototypes are sent once, in "
                "round 1, by the sites that take part in it: leave one of the two out"
            )
        has_state = self.training.optimiser is Optimiser.ADAM or self.training.momentum
        if self.schedule.optimiser_state == "kept" and not has_state:
            raise ValueError(
                "schedule.optimiser_state = 'kept' has no effect with SGD without training.momentum, which has no "
                "state: leave one of the two out"
            )
        return self

    @model_validator(mode="after")
    def _check_protection_serves_sites(self) -> Self:
        if not self.has_site_files:
            for method in self.methods:
                self.check_sites(method, self.sites)
        return self

    @model_validator(mode="after")
    def _check_averaged_models_are_equal(self) -> Self:
        averaging = [method.value for method in self.methods if method.averages]
        if len(set(self.models)) > 1 and averaging:
            raise ValueError(
                f"{' and '.join(averaging)} would average models of different architectures: with `models`, "
                "choose methods without averaging, such as pfpl, feddbp or fedproto, or name one model"
            )
        return self

    @model_validator(mode="after")
    def _check_self_has_targets(self) -> Self:
        guide = self.self_aligns_as
        if Method.SELF in self.methods and not guide.traits.prototypes:
            raise ValueError(
                "the control 'self' aligns each site with its own prototypes, one a class, as the run's method "
                f"does, but {guide.value} has several or none: leave 'self' out, or choose pfpl, fedpc, feddbp "
                "or fedproto as the method"
            )
        return self

    @property
    def has_site_files(self) -> bool:
        """True if the data set has a file for each site, and needs no split."""
        return self.dataset.startswith(SITES_FORM)

    @property
    def uses_tensors(self) -> bool:
        """True if the tensor engine runs the methods; controls, which exchange nothing, it runs in any case."""
        return self.engine != "sessions" and not self._needs_sessions

    @property
    def _needs_sessions(self) -> str:
        """Return what the tensor engine cannot simulate in this configuration, in words; empty if nothing."""
        if self.protection is not Protection.PLAIN:
            return f"protection {self.protection.value!r}"
        return "" if self.privacy is None else "[privacy]"

    @property
    def methods(self) -> tuple[Method, ...]:
        """All that runs, each once, the method itself first."""
        return tuple(dict.fromkeys((self.method, *self.compare)))

    @property
    def self_aligns_as(self) -> Method:
        """The method whose loss and inference ``self`` has: the one that it is compared with, PFPL if there is none."""
        federated = [method for method in self.methods if method not in CONTROLS]
        return federated[0] if federated else Method.PFPL

    def model_at(self, position: int) -> str:
        """Return the model of the site at ``position`` in the order of names."""
        return self.models[position % len(self.models)] if self.models else self.training.model

    @property
    def fewest_sites(self) -> int:
        """``min_sites``, or its default from ``min_holders``."""
        return self.min_sites or max(2, self.min_holders)

    def agreement(
        self,
        *,
        method: Method,
        seed: int,
        classes: Sequence[str],
        preprocessing: InputSection | None,
        averaged: tuple[int, int] | None = None,
    ) -> Agreement:
        """Return the agreement of one run of this simulation, for classes and preprocessing taken from the data.

        ``averaged`` has the numbers of parameters and buffers that the method averages, if any. ``average`` is an
        agreement on ``fedpc`` with one group and no alignment. Raises ``ConfigError`` for an invalid agreement.
        """
        table = self.model_dump(mode="json", by_alias=True, include={*RunSettings.model_fields, "extension"})
        images = preprocessing if isinstance(preprocessing, PreprocessingSection) else None
        used = (method.value, self.protection.value)
        table["extension"] = {name: settings for name, settings in table["extension"].items() if name in used}
        table["training"]["init_seed"] = seed
        table["training"]["model"] = self.model_at(0)
        if averaged is not None:
            table["averaging"] |= {"parameters": averaged[0], "buffers": averaged[1]}
        # With one group and no alignment FedPC is plain averaging of extractors.
        if method is Method.AVERAGE:
            table["fedpc"] |= {"groups": 1, "alignment": 0.0}
        table |= {
            "federation": "simulation",
            "run": f"{method.value}-seed-{seed}",
            "method": (Method.FEDPC if method is Method.AVERAGE else method).value,
            "classes": list(classes),
            "min_sites": self.fewest_sites,
            "max_sites": max(USUAL_SITES, self.sites),
            "preprocessing": images and images.model_dump(mode="json"),
        }
        return validate(Agreement, table, source="simulation", directory=Path())


def load_simulation(
    path: Path | None, flags: Mapping[str, object], settings: Sequence[str] = ()
) -> SimulationConfig:
    """Load a simulation: ``flags`` override ``settings``, the file and the defaults; a flag of None is not set.

    Each setting is of the form ``section.key=value``, the value as in TOML, where a word needs no quotes. Relative
    paths among the flags are taken from the working directory, those in the file and in settings from the file's.
    ``out`` is by default named after the file. Raises ``ConfigError``.
    """
    table = {} if path is None else parse_toml(path)
    if path is not None:
        check_kind(path, table, SimulationConfig)
    named = [
        str(flags.get("dataset") or ""),
        *(setting.partition("=")[2].strip(" '\"") for setting in settings),
    ]
    if any(value.startswith(SITES_FORM) for value in named):
        # The file's settings of a split belong to the file's data, which the flags replace.
        table = {key: value for key, value in table.items() if key not in SPLITTING}
    for setting in settings:
        _apply_setting(table, setting)
    given = {key: _resolve_flag(key, value) for key, value in flags.items() if value is not None}
    if path is not None and "out" not in table | given:
        given["out"] = _resolve_flag("out", f"runs/{path.stem}")
    directory = Path() if path is None else path.parent
    return validate(SimulationConfig, table | given, source=str(path or "simulate"), directory=directory)


def _apply_setting(table: dict[str, Any], setting: str) -> None:
    name, separator, text = setting.partition("=")
    *sections, key = name.strip().split(".")
    if not (separator and key and all(sections)):
        raise ConfigError("--set", [f"{setting!r} is not of the form section.key=value"])
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise ConfigError("--set", [f"{setting!r}: {section} is not a section"])
    table[key] = _parse_value(text.strip())


def _parse_value(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _resolve_flag(key: str, value: object) -> object:
    if key in {"data_root", "out"}:
        return str(Path(str(value)).absolute())
    return data_spec(str(value), Path.cwd()) if key == "dataset" else value
