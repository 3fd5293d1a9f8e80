"""The coordinator's file and the site's file."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from protoseal.config.agreement import Agreement, Name, load_agreement
from protoseal.config.capabilities import DEPLOYABLE, SIMULATED
from protoseal.config.extensions import added_among
from protoseal.config.numbers import Count, Positive
from protoseal.config.privacy import BudgetSection
from protoseal.config.reading import (
    LocalPath,
    Section,
    data_spec,
    directory_of,
    read_toml,
    source_of,
    validate,
)
from protoseal.config.training import ModelSpec

Seconds = Annotated[float, Field(gt=0, le=30 * 86_400)]


def _address(value: str) -> str:
    if (
        re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):\d{1,5}", value)
        and int(value.rpartition(":")[2]) < 65_536
    ):
        return value
    raise ValueError(f"{value!r} is not host:port, such as coordinator.example.org:8443")


Address = Annotated[str, AfterValidator(_address)]


Device = Annotated[str, Field(pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")]
"""``auto`` is the GPU when there is one."""


def _agreement_of(value: object, info: ValidationInfo) -> object:
    """A path becomes the agreement that the file holds, a table the agreement it is."""
    directory = directory_of(info) or Path()
    match value:
        case str():
            return load_agreement(directory / Path(value).expanduser())
        case dict():
            return validate(Agreement, value, source=f"{source_of(info)}: agreement", directory=directory)
        case _:
            return value


def _deployable(agreement: Agreement) -> Agreement:
    if agreement.method in SIMULATED:
        raise ValueError(
            f"method {agreement.method.value!r} is here to be compared with: it runs in `protoseal simulate` only;"
            f" choose {', '.join(sorted(method.value for method in DEPLOYABLE))}"
        )
    for added in added_among((agreement.method, agreement.protection)):
        if not added.deployable:
            raise ValueError(
                f"{added.value!r} of {agreement.distributions[added.name]} runs in `protoseal simulate` only: its maker"
                " does not declare it to be deployable"
            )
    return agreement


DeployedAgreement = Annotated[Agreement, AfterValidator(_deployable), BeforeValidator(_agreement_of)]
"""In a coordinator's or site's file: the path of the agreement's file, or the agreement as a table."""


class LogLevel(StrEnum):
    """The least severe message that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class DeadlinesSection(Section):
    """Seconds that the coordinator waits for sites before it goes on without them.

    ``empty`` is for a run that every site has left, or in which each has missed a deadline: it stops unless one comes
    back in that time.
    """

    join: Seconds = 3600.0
    """Seconds to wait for sites on the list to join."""
    setup: Seconds = 300.0
    """Seconds for rosters, keys and presence."""
    train: Seconds = 7200.0
    """Seconds for local training."""
    values: Seconds = 900.0
    """Seconds for uploads."""
    result: Seconds = 900.0
    """Seconds for the acknowledgement of a result."""
    empty: Seconds = 900.0
    """Seconds after which a run that every site has left stops."""


class PartyFile(Section):
    """What the coordinator's and a site's file have in common.

    ``key`` is the encrypted private key; its passphrase comes from ``passphrase_file``, the environment, a service's
    credential or, on a terminal, a prompt: never from this file.
    """

    agreement: DeployedAgreement
    """Path of the agreement."""
    ca: LocalPath
    """Certificate of the federation's CA."""
    certificate: LocalPath
    """Certificate of this party."""
    key: LocalPath
    """Encrypted private key of this party."""
    passphrase_file: LocalPath | None = None
    """File with the key's passphrase, open to its owner alone."""
    state_dir: LocalPath
    """Folder for the state of this run; each run has its own."""
    log_level: LogLevel = LogLevel.INFO
    """Least severe message that is logged."""


class CoordinatorConfig(PartyFile):
    """``coordinator.toml``. Only sites on the list ``sites`` may join; ``workers = 0`` uses every core.

    ``record_view`` keeps every message that the coordinator receives, for audits and tests; it grows with the
    run. ``anchors`` is the file in which the last entries of the sites' privacy ledgers are kept, where the agreement
    has noise: one for all runs, beside ``state_dir`` unless it is given.
    """

    listen: Address
    """Address and port to listen on."""
    sites: tuple[Name, ...]
    """Names of the sites that may join."""
    deadlines: DeadlinesSection = DeadlinesSection()
    """Deadlines of the phases."""
    max_attempts: Annotated[int, Field(ge=1, le=100)] = 3
    """Attempts of a round before the run stops."""
    workers: Annotated[int, Field(ge=0, le=1024)] = 0
    """Processes for ciphertexts; 0 uses every core."""
    record_view: bool = False
    """Record every message that the coordinator receives."""
    anchors: LocalPath | None = None
    """File of the ledgers' anchors, for all runs; beside `state_dir` unless given."""

    @property
    def anchors_file(self) -> Path:
        """Where the anchors are kept. A run has a ``state_dir`` of its own, and they are for all runs."""
        return self.anchors or self.state_dir.parent / "anchors.sqlite"

    @model_validator(mode="after")
    def _roster_suffices(self) -> Self:
        repeated = sorted({name for name in self.sites if self.sites.count(name) > 1})
        if repeated:
            raise ValueError(f"sites: {repeated[0]!r} is listed more than once")
        if len(self.sites) < self.agreement.min_sites:
            raise ValueError(
                f"sites: {len(self.sites)} listed, but the agreement's min_sites is"
                f" {self.agreement.min_sites}; list every site that may join"
            )
        if len(self.sites) > self.agreement.max_sites:
            raise ValueError(
                f"sites: {len(self.sites)} listed, but the agreement's max_sites is {self.agreement.max_sites}"
            )
        self.agreement.check_sites(self.agreement.method, len(self.sites))
        return self


class SiteConfig(PartyFile):
    """``site.toml``. ``out`` receives the trained model, the prototypes and the site's log.

    ``pretrained`` is this site's copy of the weights whose SHA-256 the agreement holds. Images with other channels than
    the agreement's are refused, unless ``convert_channels`` lets grey and RGB be converted into each other.

    ``min_holders`` and ``min_sites`` are what *this site* insists on. An agreement with fewer holders is refused
    when this file is loaded, and so bounds every sum and mean that the site is in; a roster or round with fewer
    sites is refused when it comes, whatever the coordinator says. The limit: ``min_sites`` counts a round's sites
    over all groups, so the sum of one group may be over fewer, down to ``min_holders``. ``pins``
    maps a peer's name to the SHA-256 fingerprint of its certificate: with a pin, not even the CA can put another
    certificate in the peer's place.
    """

    name: Name
    """Name of this site, as in its certificate."""
    coordinator: Address
    """Host name and port of the coordinator."""
    data: Annotated[str, Field(min_length=1)]
    """Data: `npz:PATH`, `folder:PATH`, a name, or `module:function`."""
    data_root: LocalPath | None = None
    """Folder with torchvision's files."""
    convert_channels: bool = False
    """Convert images between grey and RGB as agreed, instead of refusing them."""
    device: Device = "auto"
    """Device of training: `auto`, `cpu`, `cuda:N` or `mps`."""
    out: LocalPath
    """Folder for the trained model, the prototypes and the log; each run has its own."""
    model: ModelSpec | None = None
    """Model of this site's own, with the agreed feature dimension."""
    pretrained: LocalPath | None = None
    """File with the pretrained weights."""
    min_holders: Count | None = None
    """Fewest holders that this site accepts in an agreement."""
    min_sites: Annotated[int, Field(ge=2)] | None = None
    """Fewest sites that this site accepts on a roster or in a round."""
    pins: dict[Name, str] = Field(default_factory=dict)
    """SHA-256 fingerprints of peers' certificates, by name."""
    retry_seconds: Positive = 600.0
    """Seconds to keep trying when the coordinator cannot be reached."""
    privacy: BudgetSection | None = None
    """Limits of what this site releases, whatever is agreed."""

    @property
    def model_spec(self) -> str:
        """This site's model: its own when the file names one, else the agreement's."""
        return self.model or self.agreement.training.model

    @property
    def required_sites(self) -> int:
        """Fewest sites, this one included, in a round that this site takes part in, over all groups."""
        return max(self.min_sites or 0, self.agreement.min_sites)

    @field_validator("data", mode="after")
    @classmethod
    def _data_from_directory(cls, spec: str, info: ValidationInfo) -> str:
        return data_spec(spec, directory_of(info))

    @field_validator("pins", mode="after")
    @classmethod
    def _plain_fingerprints(cls, pins: dict[str, str]) -> dict[str, str]:
        return {name: _fingerprint(name, text) for name, text in pins.items()}

    @model_validator(mode="after")
    def _privacy_suffices(self) -> Self:
        agreed = self.agreement.privacy
        if self.privacy is not None:
            self.privacy.check(agreed, self.agreement.rounds)
        elif agreed is not None:
            raise ValueError(
                "the agreement releases prototypes with noise, and that has to be paid for: say in [privacy] what this"
                " site may spend (dataset, ledger, epsilon, delta)"
            )
        return self

    @model_validator(mode="after")
    def _agreement_suffices(self) -> Self:
        if self.min_holders and self.min_holders > self.agreement.min_holders:
            raise ValueError(
                f"min_holders: this site insists on {self.min_holders} holders of a class, the agreement has"
                f" {self.agreement.min_holders}; have the federation raise it, or do not take part"
            )
        return self


def _fingerprint(name: str, text: str) -> str:
    plain = text.replace(":", "").lower()
    if not re.fullmatch(r"[0-9a-f]{64}", plain):
        raise ValueError(f"the pin of {name!r} is not a SHA-256 fingerprint of 64 hexadecimal digits")
    return plain


def load_coordinator(path: Path) -> CoordinatorConfig:
    """The coordinator's file; raises ``ConfigError``."""
    return read_toml(path, CoordinatorConfig)


def load_site(path: Path) -> SiteConfig:
    """The site's file; raises ``ConfigError``."""
    return read_toml(path, SiteConfig)
