"""Configuration file of a site, ``site.toml``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from agreement.schema.agreement import Name
from agreement.schema.party_file import Address, PartyFile
from agreement.schema.run_settings import FEWEST_SAFE_HOLDERS
from agreement.sections.training import ModelSpec
from agreement.toml_loading import Count, LocalPath, Positive, data_spec, directory_of, nearest, read_toml
from secure_client.privacy.budget import BudgetSection
from secure_client.table_format import TableFormat


def _device(value: str) -> str:
    if re.fullmatch(r"auto|cpu|mps|cuda(:[0-9]+)?", value):
        return value
    raise ValueError(f"{value!r} is no device: write auto, cpu, mps, cuda or cuda:N")


Device = Annotated[str, AfterValidator(_device)]
"""``auto`` is the GPU when there is one."""


class SiteConfig(PartyFile):
    """``site.toml``. ``out`` receives the trained model, the prototypes and the site's log.

    ``pretrained`` is this site's copy of the weights whose SHA-256 the agreement holds. Images with other channels than
    the agreement's are refused, unless ``convert_channels`` lets grey and RGB be converted into each other.

    ``class_names`` renames classes of the data: folders, ``class_names`` of an ``.npz``, ``classes`` of a data set, or
    numbers of labels without names. Names that are agreed classes already need no entry.

    ``min_holders`` and ``min_sites`` are this site's own minima. Loading this file refuses an agreement with fewer
    holders (3 unless the file says otherwise), so ``min_holders`` bounds every sum and mean that includes the site; the
    site refuses a roster or a round with fewer sites than ``min_sites``, whatever the coordinator says. Limit:
    ``min_sites`` counts a round's sites over all groups, so the sum of one group may be over fewer sites, down to
    ``min_holders``. ``pins`` maps a peer's name to the SHA-256 fingerprint of its certificate: with a pin, not even the
    CA can put another certificate in the peer's place.
    """

    name: Name
    """Name of this site, as in its certificate."""
    coordinator: Address
    """Host name and port of the coordinator."""
    data: Annotated[str, Field(min_length=1)]
    """Data: `npz:PATH`, `folder:PATH`, `table:PATH`, a name, or `module:function`."""
    data_root: LocalPath | None = None
    """Folder with torchvision's files, or with the data of this site's own code."""
    class_names: dict[str, str] = Field(default_factory=dict)
    """Agreed classes, by the data's own class names, or by labels that have no names."""
    convert_channels: bool = False
    """Convert images between grey and RGB as agreed, instead of refusing them."""
    table: TableFormat = TableFormat()
    """Format of this site's table."""
    accept_dark_or_constant_inputs: bool = False
    """Use data of which every image is constant or below a tenth of the scale, or every record equal."""
    device: Device = "auto"
    """Device of training: `auto`, `cpu`, `cuda:N` or `mps`."""
    out: LocalPath
    """Folder for the trained model, the prototypes and the log; each run has its own."""
    model: ModelSpec | None = None
    """Model of this site's own, with the agreed feature dimension."""
    pretrained: LocalPath | None = None
    """File with the pretrained weights."""
    min_holders: Count = FEWEST_SAFE_HOLDERS
    """Fewest holders that this site accepts in an agreement; below 3 a peer computes this site's prototypes."""
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
        """Name of this site's model: its own when the file names one, else the agreement's."""
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
    def _table_is_read(self) -> Self:
        if "table" in self.model_fields_set and not self.data.startswith("table:"):
            raise ValueError(
                f"[table] is the format of table:PATH, and data is {self.data!r}: remove [table]"
            )
        return self

    @model_validator(mode="after")
    def _classes_are_agreed(self) -> Self:
        if self.class_names and self.data.startswith("table:"):
            raise ValueError("class_names: name the labels of a table by labels in [table]")
        for name, agreed in self.class_names.items():
            if agreed not in self.agreement.classes:
                near = nearest(agreed, self.agreement.classes)
                raise ValueError(f"class_names: {name!r} is mapped to {agreed!r}, which is not agreed{near}")
        return self

    @model_validator(mode="after")
    def _privacy_suffices(self) -> Self:
        agreed = self.agreement.privacy
        if self.privacy is not None:
            self.privacy.check(agreed, self.agreement.rounds)
        elif agreed is not None:
            raise ValueError(
                "the agreement releases prototypes with noise, which spends privacy budget: set this site's "
                "budget in [privacy] (dataset, ledger, epsilon, delta)"
            )
        return self

    @model_validator(mode="after")
    def _agreement_suffices(self) -> Self:
        # When the file is loaded, and so before the site joins: the coordinator learns of no later refusal.
        if self.min_holders > self.agreement.min_holders:
            raise ValueError(
                f"min_holders: this site requires {self.min_holders} holders of a class, the agreement has "
                f"{self.agreement.min_holders}; ask the federation to raise it, or lower min_holders in this file, "
                "which lets other sites compute this site's prototypes where it is below 3"
            )
        return self


def _fingerprint(name: str, text: str) -> str:
    # As OpenSSL prints it, with colons and capitals, or as this program does.
    plain = re.sub(r"[:\s]", "", text).lower()
    if not re.fullmatch(r"[0-9a-f]{64}", plain):
        raise ValueError(f"the pin of {name!r} is not a SHA-256 fingerprint of 64 hexadecimal digits")
    return plain


def load_site(path: Path) -> SiteConfig:
    """Load the site's file; raise ``ConfigError``."""
    return read_toml(path, SiteConfig)
