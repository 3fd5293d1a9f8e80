"""The agreement: the settings that the coordinator and every site of a run share, compared by hash at join."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from agreement.registry.compatibility import plan_for
from agreement.registry.extensions import (
    Extension,
    ExtensionTables,
    extension_distributions,
    extension_settings,
    used_so_far,
)
from agreement.registry.methods import SIMULATED, Method, simulated_only
from agreement.registry.protections import Protection, SumHalves
from agreement.registry.round_plan import PayloadKind, RoundPlan
from agreement.schema.layout import Clustering, Layout, NoisySum
from agreement.schema.run_settings import FEWEST_SAFE_HOLDERS, RunSettings
from agreement.sections.methods import Family, FedplccSection, ModelPart
from agreement.sections.training import IMAGE_MODELS, TABLE_MODELS, TimingSection
from agreement.toml_loading import Section, read_toml, source_of, validate
from crypto.errors import PrecisionError
from crypto.fixed_point import FixedPoint, Segment, narrowest_ring
from crypto.sum_protection import SumFacts
from protoseal_wire.codec.limits import MOST_SITES

NAME_PATTERN = r"^[a-z0-9][a-z0-9.-]{0,62}$"


def _name(value: str) -> str:
    if not re.fullmatch(NAME_PATTERN, value):
        raise ValueError(
            f"{value!r} is no name: use 1 to 63 of a-z, 0-9, '.' and '-', the first a letter or digit"
        )
    return value


Name = Annotated[str, AfterValidator(_name)]
"""Name of a federation, run or site: lower-case letters, digits, dots and hyphens, 63 at most."""

HASH_LABEL = b"protoseal/v1/agreement\x00"

CKKS_SLOTS = 4096
"""Number of values in one ciphertext; all classes of one feature must fit into it."""
USUAL_SITES = 256


_AVERAGED = {
    ModelPart.EXTRACTOR: "without its classifier",
    ModelPart.NOT_NORMS: "without the layers that normalise",
    ModelPart.MODEL: "all of them",
}


class Agreement(RunSettings):
    """Settings that all parties of a run share. Any difference changes :meth:`hash`.

    ``min_holders`` counts *sites* that have a class, the receiver included: with fewer the class is withheld in that
    round, in every protection. Fewer than three give a peer's prototype away, so they need protection ``plain``,
    which hides nothing from anyone, or ``allow_fewer_holders_reveals_peers``. The setting bounds one answer, not a
    run: from two rounds of exact answers with unmoving peers a site can recover a peer's prototype.

    ``min_sites`` is the fewest sites that may take part in a round. It is at least two, since one site has no peers,
    and at least ``min_holders``, since with fewer sites every class of every round would be withheld. ``max_sites``
    is the most sites that a run may have: sums have room for as many terms, and messages for as many entries.
    ``agreement_threshold`` (tau) is in units of ``norm_bound`` squared: at or below it, peers count as equal.
    ``extension`` has the settings of third parties' methods and protections, ``distributions`` the name and version
    of the distributions that provide them, by default the installed ones, so that parties with other versions do not
    agree.
    """

    federation: Name
    """Name of the federation, as in its certificates."""
    run: Name
    """Name of the run; each run has its own."""
    classes: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = Field(
        min_length=2, max_length=CKKS_SLOTS
    )
    """Names of the classes; label i stands for the i-th."""
    min_sites: Annotated[int, Field(ge=2)] = FEWEST_SAFE_HOLDERS
    """Fewest sites that may take part in a round."""
    max_sites: Annotated[int, Field(ge=2, le=MOST_SITES)] = USUAL_SITES
    """Most sites that a run may have; sums have room for as many terms."""
    timing: TimingSection = TimingSection()
    """Delays of a site's answers."""
    extension: ExtensionTables = Field(default_factory=dict, validate_default=True)
    """Settings of extensions."""
    distributions: Annotated[dict[str, str], Field(validate_default=True)] = Field(default_factory=dict)
    """Names and versions of the distributions that extensions come from."""

    @field_validator("extension", mode="before")
    @classmethod
    def _read_extension_settings(cls, tables: Any, info: ValidationInfo) -> Any:
        return (
            extension_settings(tables, used_so_far(info), source_of(info))
            if isinstance(tables, dict)
            else tables
        )

    @field_validator("distributions", mode="after")
    @classmethod
    def _check_distributions(cls, stated: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        return extension_distributions(stated, used_so_far(info))

    @field_validator("classes", mode="after")
    @classmethod
    def _distinct_classes(cls, classes: tuple[str, ...]) -> tuple[str, ...]:
        # In one Unicode form, so that files from a Mac, which decomposes letters, agree with those of other machines.
        classes = tuple(unicodedata.normalize("NFC", name) for name in classes)
        repeated = sorted({name for name in classes if classes.count(name) > 1})
        if repeated:
            raise ValueError(f"class {repeated[0]!r} is named more than once")
        return classes

    @model_validator(mode="after")
    def _enough_holders_and_sites(self) -> Self:
        if self.min_holders < FEWEST_SAFE_HOLDERS:
            self._check_few_holders_are_meant()
        if self.max_sites < self.min_sites:
            raise ValueError(f"max_sites ({self.max_sites}) is below min_sites ({self.min_sites})")
        if self.min_sites < self.min_holders:
            raise ValueError(
                f"min_sites ({self.min_sites}) is below min_holders ({self.min_holders}), so a"
                " round could withhold every class; raise min_sites or lower min_holders"
            )
        return self

    def _check_few_holders_are_meant(self) -> None:
        if self.protection is not Protection.PLAIN and not self.allow_fewer_holders_reveals_peers:
            raise ValueError(
                f"min_holders = {self.min_holders} lets a site compute another site's prototype; set min_holders"
                " to 3 or more, or set allow_fewer_holders_reveals_peers = true"
            )

    @model_validator(mode="after")
    def _protection_serves_method(self) -> Self:
        self.check_served(self.method)
        if self.clustering.literal and self.plan.values is not PayloadKind.LOCAL_CLUSTERS:
            raise ValueError(
                f"literal in [fedplcc] needs vectors with their norms, but protection {self.protection.value!r} shows"
                " only their directions; set literal = false, or choose protection 'plain'"
            )
        return self

    @model_validator(mode="after")
    def _built_in_models_know_their_input(self) -> Self:
        model = self.training.model
        if self.table is None and model in TABLE_MODELS:
            raise ValueError(
                f"model {model!r} needs a section [table] with the columns that it reads: add the section, or name your"
                " own model as module:function"
            )
        if self.table is not None and model in IMAGE_MODELS:
            raise ValueError(
                f'model {model!r} takes images, and [table] gives vectors: set model = "mlp" in [training], or name'
                " your own model as module:function"
            )
        if self.preprocessing is None and model in IMAGE_MODELS:
            raise ValueError(
                f"model {model!r} needs a table [preprocessing] with image_size, channels, mean"
                " and std: add the table, or name your own model as module:function"
            )
        return self

    @model_validator(mode="after")
    def _knows_what_it_averages(self) -> Self:
        if self.method is Method.AVERAGE:
            raise ValueError(
                "an agreement cannot have method 'average': choose fedpc with groups = 1 and alignment = 0"
            )
        if self.method.averages and not self.averaging.parameters:
            if self.method in SIMULATED:
                raise ValueError(simulated_only(self.method))
            raise ValueError(
                f"method {self.method.value} needs the number of averaged parameters: set parameters "
                "in [averaging] to the number of the model's parameters "
                f"({_AVERAGED[self.method.traits.averaged]}), or to 1, for which `protoseal client "
                "check` prints the right number"
            )
        return self

    @model_validator(mode="after")
    def _sums_fit_the_ring(self) -> Self:
        # Found here, since a run that cannot encode its sums would fail after its sites had trained.
        if self.sums and self.plan.masked:
            try:
                self.fixed_point(int(self.clusters))
            except PrecisionError as error:
                raise ValueError(f"masked sums do not fit ring_bits = {self.ring_bits}: {error}") from error
        halves = self.protection.halves(self.method.traits.family)
        if isinstance(halves, SumHalves):
            try:
                halves.form(self.settings_of(self.protection), self.sum_facts)
            except PrecisionError as error:
                raise ValueError(f"sums do not fit protection {self.protection.value!r}: {error}") from error
        return self

    @property
    def plan(self) -> RoundPlan:
        """Return the rounds of the agreed method under the agreed protection; ``ValueError`` for a control alone."""
        return plan_for(self.method, self.protection, self.pfpl.weighting)

    @property
    def delays_answers(self) -> bool:
        """True if a site's answers leave at fixed delays; under `plain` the coordinator has all values anyway."""
        return self.protection is not Protection.PLAIN and not self.timing.answers_show_duration

    @property
    def feature_dim(self) -> int:
        """Number of the model's features: ``dim``, unless a public projection reduces more features to it."""
        projected = self.privacy is not None and self.privacy.project_from
        return projected or self.dim

    @property
    def releases(self) -> int:
        """Most noisy releases of a run, that of FedPC's clustering included; 0 without noise."""
        if self.privacy is None:
            return 0
        periods = -(-self.rounds // self.release_every)
        return periods + int(self.method.is_grouped and not self.has_fixed_query)

    @property
    def has_fixed_query(self) -> bool:
        """True if every noisy release of a site asks the same query of the same features, with noise of its own.

        Features are then frozen, and no class is divided by the clusters of an earlier round.
        """
        # With shared noise no site releases anything by itself, so that each sum is a query of its own.
        noisy = self.privacy is not None and not self.privacy.distributed
        return noisy and self.extractor_is_frozen and not self.clusters

    @property
    def release_every(self) -> int:
        """Rounds that one noisy release serves.

        The number is that of ``[privacy]``; unset, it is the whole run where :attr:`has_fixed_query`, since another
        release would tell the same again at a further cost, and 1 elsewhere.
        """
        agreed = None if self.privacy is None else self.privacy.release_every
        return agreed or (self.rounds if self.has_fixed_query else 1)

    def release_round(self, round_number: int) -> int:
        """Return the round whose noisy release serves a round: the first round of its period.

        Round 0 is FedPC's clustering, of the initial model's features. Its release serves the first period as well
        where :attr:`has_fixed_query` (ADR 23).
        """
        if round_number == 0:
            return 0
        first = round_number - (round_number - 1) % self.release_every
        return 0 if first == 1 and self.method.is_grouped and self.has_fixed_query else first

    @property
    def most_cells(self) -> int:
        """Most parts of classes in one noisy release: classes, or the clusters of the round before."""
        return len(self.classes) * (self.clustering.most_clusters if self.clusters else 1)

    @property
    def sums(self) -> bool:
        """True if sites' values are added up, over all sites or in groups."""
        return self.method.traits.family is not Family.ALONE and self.plan.sums

    @property
    def row_period(self) -> int:
        """Number of rounds in which every site's rows are the same.

        The rows are those of one noisy release, or of a frozen extractor: 1 where each round has rows of its own.
        """
        if self.distributed_noise:
            return 1
        if self.privacy is not None:
            return self.release_every
        return self.rounds if self.training.frozen_extractor else 1

    def sends_rows(self, round_number: int) -> bool:
        """Return whether sites send rows in a round: in the first round of each :attr:`row_period`, and no other.

        Two sums, or two answers, over the same rows of different sites would differ by single sites' rows. A round
        without rows repeats the last sum of rows; with a method of ``PEERS`` sites keep their targets. Round 0 is a
        clustering, with rows of its own.
        """
        return round_number == 0 or (round_number - 1) % self.row_period == 0

    def repeats_rows(self, round_number: int) -> bool:
        """Return whether later rounds repeat the rows of this round's sums."""
        return self.row_period > 1 and round_number > 0 and self.sends_rows(round_number)

    @property
    def clusters(self) -> bool:
        """True if sites' local prototypes are clustered, class by class."""
        return self.method.traits.family is Family.CLUSTERS

    @property
    def clustering(self) -> Clustering:
        """Settings of the clustering of local prototypes; without meaning where the method makes no clusters."""
        fedplcc, own = self.fedplcc, self.method.settings is FedplccSection
        return Clustering(
            most_prototypes=fedplcc.most_prototypes,
            most_clusters=fedplcc.most_clusters,
            single=self.method.traits.single,
            literal=own and fedplcc.literal,
            uniform=not (own and fedplcc.weighted),
        )

    @property
    def layout(self) -> Layout:
        """Layout of a site's contribution to a sum; an empty vector where nothing is added up."""
        traits, averaging = self.method.traits, self.averaging
        averages = self.method.averages
        return Layout(
            classes=len(self.classes) if traits.prototypes and self.sums else 0,
            dim=self.dim,
            parameters=averaging.parameters if averages else 0,
            buffers=averaging.buffers if averages else 0,
            weighted=traits.weighted,
            noisy=self.distributed_noise,
        )

    @property
    def distributed_noise(self) -> bool:
        """True if sites share the noise of the prototypes in a sum."""
        return self.privacy is not None and self.privacy.distributed

    def noisy_sum(self, listed: int) -> NoisySum:
        """Return the noisy sum over so many ``listed`` sites; raise ``ValueError`` for too few."""
        if self.privacy is None:
            raise ValueError("an agreement without noise has no noisy sums")
        return NoisySum.of(self.privacy, self.dim, listed)

    @property
    def sum_facts(self) -> SumFacts:
        """Facts of a sum that the sites read: the contribution's layout, and the ones that are counted.

        There is a one for each class that a site contributes to and one for the site, so that means follow from the
        sum alone.
        """
        counts = Segment(len(self.classes) + 1, 1.0)
        segments = (*self.layout.segments(self.norm_bound, self.averaging), counts)
        return SumFacts(segments, terms=self.max_sites)

    def fixed_point(self, clusters: int = 0) -> FixedPoint:
        """Return the fixed-point encoding of a masked contribution; the part of ``clusters`` precedes the layout's.

        Sums may have as many terms as a run may have sites. Raises :class:`crypto.errors.PrecisionError`.
        """
        return FixedPoint(self._segments(clusters), terms=self.max_sites, ring_bits=self.ring_bits)

    @property
    def ring_bits(self) -> int:
        """Bits of a word of a masked sum: as agreed, or as many as bounds and sites need.

        The number is the same for any number of clusters, so that the form of an answer is known beforehand.
        """
        return self.masking.ring_bits or narrowest_ring(
            self._segments(int(self.clusters)), terms=self.max_sites
        )

    def _segments(self, clusters: int) -> tuple[Segment, ...]:
        of_clusters = self.clustering.segments(
            clusters, self.dim, self.norm_bound, self.averaging.most_samples
        )
        return (*of_clusters, *self.layout.segments(self._row_bound, self.averaging))

    @property
    def _row_bound(self) -> float:
        """Return the bound of a number in a row; with shared noise that of the longest list, on the finest grid."""
        if not self.distributed_noise:
            return self.norm_bound
        return self.noisy_sum(self.max_sites).bound(self.averaging.most_samples)

    def to_json(self) -> str:
        """Return the canonical JSON text: sorted keys, no spaces, ASCII, every default written out."""
        content = self.model_dump(mode="json", by_alias=True)
        return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str, *, source: str) -> Agreement:
        """Read the text of :meth:`to_json`; raise ``ConfigError`` naming ``source``."""
        return validate(cls, json.loads(text), source=source, directory=Path())

    def hash(self) -> bytes:
        """Return the SHA-256 (32 bytes) over a version label and :meth:`to_json`: equal when all settings are."""
        return hashlib.sha256(HASH_LABEL + self.to_json().encode("ascii")).digest()

    @property
    def summary(self) -> str:
        """Return the settings that a party needs to know first."""
        delays = ", answers show how long they took" if self.timing.answers_show_duration else ""
        extensions = "".join(f", {name} of {found}" for name, found in self.distributions.items())
        secret = (
            "one secret shared by all sites" if self.needs_group_secret else "no secret shared among sites"
        )
        return (
            f"{self.method} under {self.protection} ({self.plan.carries}; {secret}), {self.rounds} rounds,"
            f" min_holders {self.min_holders}, min_sites {self.min_sites}{delays}{extensions}"
        )

    def settings_of(self, used: Extension) -> Section:
        """Return the settings of the method or protection in use: a built-in one's section, a third party's table."""
        if not used.built_in:
            return self.extension[used.name]
        sections = (section for _, section in self if type(section) is used.settings)
        return next(sections, None) or used.settings()

    @property
    def own_share(self) -> float:
        """Share of its own prototypes that a site mixes into its answer (``PEERS``): α of PFPL.

        0 for a method with weights of its own, which include the site's share.
        """
        return self.pfpl.alpha if self.method.weights is None else 0.0

    @property
    def needs_group_secret(self) -> bool:
        """True if the sites share a secret that one of them makes and seals to the others."""
        return self.plan.shares_secret and self.protection.secret_bytes > 0


def load_agreement(path: Path) -> Agreement:
    """Load the agreement from a TOML file; raise ``ConfigError``."""
    return read_toml(path, Agreement)
