"""What ``protoseal simulate`` runs: flags over a file over defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from protoseal.config.agreement import (
    FEWEST_SAFE_HOLDERS,
    Agreement,
    Count,
    PfplSection,
    Positive,
    PreprocessingSection,
    TrainingSection,
)
from protoseal.config.capabilities import (
    KnownMethod,
    KnownProtection,
    Method,
    Protection,
    check_protection_serves,
)
from protoseal.config.deployment import Device
from protoseal.config.fedpc import FedpcSection, MaskingSection
from protoseal.config.reading import LocalPath, Section, data_spec, directory_of, parse_toml, validate

Seed = Annotated[int, Field(ge=0, lt=2**32)]


class SimulationConfig(Section):
    """One simulated run, or one for each of ``seeds``.

    A seed makes the split, the initial model and the order of batches. ``compare`` names further methods and
    controls that run on the same data with the same budget. ``classes`` and ``preprocessing`` follow from the
    data set unless given; ``min_sites`` is ``min_holders`` unless given, and at least 2. The sizes of the extractor
    in ``[fedpc]`` follow from the model.
    """

    method: KnownMethod = Method.PFPL
    protection: KnownProtection = Protection.PLAIN
    dataset: Annotated[str, Field(min_length=1)] = "digits"
    split: Annotated[str, Field(min_length=1)] = "mixed:n=6.5,max=25"
    sites: Annotated[int, Field(ge=2, le=1000)] = 5
    rounds: Annotated[int, Field(ge=1, le=100_000)] = 5
    seed: Seed = 0
    seeds: tuple[Seed, ...] = ()
    compare: tuple[KnownMethod, ...] = ()
    device: Device = "auto"
    data_root: LocalPath | None = None
    out: LocalPath = Path("runs/simulation")
    workers: Annotated[int, Field(ge=0, le=1024)] = 0
    classes: tuple[str, ...] | None = None
    dim: Annotated[int, Field(ge=1, le=1 << 20)] = 64
    min_holders: Count = FEWEST_SAFE_HOLDERS
    min_sites: Annotated[int, Field(ge=2)] | None = None
    allow_fewer_holders_reveals_peers: bool = False
    norm_bound: Positive = 10.0
    agreement_threshold: Positive = 1e-4
    preprocessing: PreprocessingSection | None = None
    pfpl: PfplSection = PfplSection()
    fedpc: FedpcSection = FedpcSection()
    masking: MaskingSection = MaskingSection()
    training: TrainingSection = TrainingSection()

    @field_validator("dataset", mode="after")
    @classmethod
    def _data_from_directory(cls, spec: str, info: ValidationInfo) -> str:
        return data_spec(spec, directory_of(info))

    @model_validator(mode="after")
    def _sites_suffice(self) -> Self:
        if self.sites < self.fewest_sites:
            raise ValueError(
                f"sites = {self.sites} is below {self.fewest_sites}, the fewest that min_holders and"
                " min_sites allow; use more sites, or lower min_holders"
            )
        return self

    @model_validator(mode="after")
    def _protection_serves_methods(self) -> Self:
        for method in (self.method, *self.compare):
            check_protection_serves(method, self.pfpl.weighting, self.pfpl.squared, self.protection)
        return self

    @property
    def fewest_sites(self) -> int:
        """``min_sites``, or what follows from ``min_holders`` when it is not given."""
        return self.min_sites or max(2, self.min_holders)

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """``seeds``, or the one ``seed``."""
        return self.seeds or (self.seed,)

    def agreement(
        self,
        *,
        method: Method,
        seed: int,
        classes: Sequence[str],
        preprocessing: PreprocessingSection | None,
        extractor: tuple[int, int] | None = None,
    ) -> Agreement:
        """The agreement of one run of this simulation, for classes and preprocessing taken from the data.

        ``extractor`` is how many parameters and buffers the model has outside its classifier; methods that average
        them need it. ``average`` is an agreement on ``fedpc`` with one group and no alignment. Raises
        ``ConfigError`` where no such agreement may exist.
        """
        shared = (
            *("protection", "rounds", "dim", "min_holders", "allow_fewer_holders_reveals_peers"),
            *("norm_bound", "agreement_threshold", "pfpl", "fedpc", "masking", "training"),
        )
        table = self.model_dump(mode="json", by_alias=True, include=set(shared))
        table["training"]["init_seed"] = seed
        if extractor is not None:
            table["fedpc"] |= {"extractor_parameters": extractor[0], "extractor_buffers": extractor[1]}
        if method is Method.AVERAGE:
            table["fedpc"] |= {"groups": 1, "alignment": 0.0}
        table |= {
            "federation": "simulation",
            "run": f"{method.value}-seed-{seed}",
            "method": (Method.FEDPC if method is Method.AVERAGE else method).value,
            "classes": list(classes),
            "min_sites": self.fewest_sites,
            "preprocessing": preprocessing and preprocessing.model_dump(mode="json"),
        }
        return validate(Agreement, table, source="simulation", directory=Path())


def load_simulation(path: Path | None, flags: Mapping[str, object]) -> SimulationConfig:
    """``flags`` over the file's content over the defaults; a flag that is None was not given.

    Relative paths among the flags are taken from the working directory, those in the file from the file's.
    Raises ``ConfigError``.
    """
    table = {} if path is None else parse_toml(path)
    given = {key: _from_here(key, value) for key, value in flags.items() if value is not None}
    directory = Path() if path is None else path.parent
    return validate(SimulationConfig, table | given, source=str(path or "simulate"), directory=directory)


def _from_here(key: str, value: object) -> object:
    if key in {"data_root", "out"}:
        return str(Path(str(value)).absolute())
    return data_spec(str(value), Path.cwd()) if key == "dataset" else value
