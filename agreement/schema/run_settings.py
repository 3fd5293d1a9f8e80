"""Settings of a run that an agreement and a simulation share, under the same names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Self, TypeAlias

from pydantic import Field, ValidationInfo, field_validator, model_validator

from agreement.registry.compatibility import check_noise_is_shared, check_protection_serves, plan_for
from agreement.registry.extensions import KnownMethod, KnownProtection
from agreement.registry.methods import METHODS, Method
from agreement.sections.averaging import AveragingSection, MaskingSection
from agreement.sections.methods import (
    BaselinesSection,
    Family,
    FeddbpSection,
    FedpcSection,
    FedplccSection,
    Inference,
    ModelPart,
    PfplSection,
)
from agreement.sections.privacy import Extractor, PrivacySection
from agreement.sections.table import TableSection
from agreement.sections.training import PreprocessingSection, TrainingSection
from agreement.toml_loading import Count, Positive, Section
from crypto.ckks.parameters import check_cohort_size, check_tau
from crypto.errors import PrecisionError
from crypto.pairwise.attempt import fewest_against

FEWEST_SAFE_HOLDERS = 3
"""Fewest safe holders: with two, each one's answer is the other's prototype; one has no other to hide behind."""


LAMBDA_UNDER_DP_SGD = 0.1
"""Default of PFPL's λ under DP-SGD, whose clip limits a record's cross entropy and alignment together."""


InputSection: TypeAlias = PreprocessingSection | TableSection
"""Section by which stored records become a model's inputs: of images, or of tables."""


class RunSettings(Section):
    """Settings that a simulation passes on to its runs' agreements, except ``method`` and ``preprocessing``."""

    method: KnownMethod
    """Method: `pfpl`, `fedpc`, `feddbp`, `fedplcc`, or an extension's."""
    protection: KnownProtection
    """Protection: `plain`, `masked`, `ckks`, or an extension's."""
    rounds: Annotated[int, Field(ge=1, le=100_000)]
    """Number of rounds."""
    dim: Annotated[int, Field(ge=1, le=1 << 20)]
    """Feature dimension d: length of a prototype."""
    min_holders: Count = FEWEST_SAFE_HOLDERS
    """Fewest sites that must have a class before anything about it is released."""
    allow_fewer_holders_reveals_peers: bool = False
    """Allow fewer than three holders, whose answers reveal a peer's prototype."""
    norm_bound: Positive = 50.0
    """Largest Euclidean norm of a prototype; longer ones are shortened."""
    agreement_threshold: Positive = 1e-4
    """Sum of squared distances, in units of `norm_bound` squared, up to which peers count as equal."""
    preprocessing: PreprocessingSection | None = None
    """Preprocessing of images; without it and `table`, records are features."""
    table: TableSection | None = None
    """Columns of tables, and how their values become features."""
    privacy: PrivacySection | None = None
    """Differentially private releases; without it results are exact."""
    # Validated after privacy, on which a default depends.
    pfpl: Annotated[PfplSection, Field(validate_default=True)] = PfplSection()
    """Settings of PFPL."""
    fedpc: FedpcSection = FedpcSection()
    """Settings of FedPC."""
    feddbp: FeddbpSection = FeddbpSection()
    """Settings of FedDBP."""
    fedplcc: FedplccSection = FedplccSection()
    """Settings of FedPLCC."""
    baselines: BaselinesSection = BaselinesSection()
    """Settings of the methods to compare with."""
    averaging: AveragingSection = AveragingSection()
    """Averaged part of the model, and its bounds."""
    masking: MaskingSection = MaskingSection()
    """Settings of masked sums."""
    training: TrainingSection = TrainingSection()
    """Settings of local training."""

    @field_validator("pfpl", mode="after")
    @classmethod
    def _dp_sgd_has_its_own_lambda(cls, pfpl: PfplSection, info: ValidationInfo) -> PfplSection:
        privacy = info.data.get("privacy")
        if privacy is None or privacy.dp_sgd is None or "alignment" in pfpl.model_fields_set:
            return pfpl
        private = pfpl.model_copy(update={"alignment": LAMBDA_UNDER_DP_SGD})
        # It stays a default: the settings without [privacy] have that of exact training.
        private.model_fields_set.discard("alignment")
        return private

    @model_validator(mode="after")
    def _check_table(self) -> Self:
        if self.table is None:
            return self
        if self.preprocessing is not None:
            raise ValueError("[preprocessing] is of images and [table] of tables: remove one of the two")
        if self.privacy is not None and self.table.scaled_by_site:
            raise ValueError(
                f'column {self.table.scaled_by_site[0]!r} of [table] has scale = "site", but with [privacy] one record'
                " would move the features of all records: agree on numbers, scale = [mean, deviation]"
            )
        return self

    @property
    def inputs(self) -> InputSection | None:
        """The section that says how a stored record becomes the model's input; None for features as they are."""
        return self.preprocessing or self.table

    @property
    def extractor_is_frozen(self) -> bool:
        """True if only the classifier trains, so that prototypes are of the initial model."""
        if self.privacy is not None:
            return self.privacy.extractor is Extractor.FROZEN
        return self.training.frozen_extractor

    @property
    def inference(self) -> Inference:
        """Kind of prediction by which accuracies are reported, the method's and those of its controls.

        With frozen features every method predicts by the nearest prototype: each site's classifier then trains on that
        site's records alone, so that its accuracy would show nothing of the values that sites exchange.
        """
        return Inference.PROTOTYPE if self.extractor_is_frozen else self.method.traits.inference

    def check_served(self, method: Method) -> None:
        """Raise ``ValueError`` unless the agreed protection, ``[privacy]`` and ``[training]`` serve this method."""
        check_protection_serves(method, self.pfpl.weighting, self.protection)
        if self.training.frozen_extractor:
            self._check_frozen(method)
        if self.privacy is not None:
            self._check_private(method, self.privacy)

    def _check_frozen(self, method: Method) -> None:
        """Check that [privacy] does not say otherwise, and that the method needs no more than a classifier to train."""
        if self.privacy is not None:
            raise ValueError(
                "frozen_extractor in [training] is for runs without [privacy], which has its own: remove "
                "frozen_extractor, and set extractor in [privacy]"
            )
        if method.traits.averaged not in (ModelPart.NOTHING, ModelPart.EXTRACTOR):
            raise ValueError(
                f"method {method.value!r} averages models with their classifiers, but frozen_extractor = true in"
                " [training] leaves nothing else to train: remove frozen_extractor, or choose another method"
            )
        if method.averages and not method.traits.prototypes:
            raise ValueError(
                f"method {method.value!r} exchanges nothing but extractors, which frozen_extractor = true in"
                " [training] does not train: remove frozen_extractor, or choose a method with prototypes"
            )
        if method is Method.FEDDBP and self.feddbp.decision:
            raise ValueError(
                "feddbp predicts by its decision branch, which frozen_extractor = true in [training] does not train:"
                " set decision = false in [feddbp], or remove frozen_extractor"
            )

    def _check_private(self, method: Method, agreed: PrivacySection) -> None:
        for holds, refusal in self._refusals(method, frozen=agreed.extractor is Extractor.FROZEN):
            if holds:
                raise ValueError(refusal)
        if agreed.distributed:
            check_noise_is_shared(method, self.protection, personal=self.feddbp.personal)
        self._check_projection(method, agreed)

    def _check_projection(self, method: Method, agreed: PrivacySection) -> None:
        if agreed.project_from is None:
            return
        agreed.check_projected(self.dim)
        if method.projection_unsupported:
            raise ValueError(
                f"project_from in [privacy] does not serve {method.value!r}: {method.projection_unsupported}; remove"
                " project_from, and set dim to the model's number of features"
            )

    def _refusals(self, method: Method, *, frozen: bool) -> Iterator[tuple[bool, str]]:
        """Yield conditions under which [privacy] is refused, with the message of each."""
        served = ", ".join(sorted(name for name, served in METHODS.items() if served.private))
        averaged = method.traits.averaged
        yield (
            not method.private,
            f"[privacy] serves {served}, but not method {method.value!r}, which sends more than noisy "
            "prototypes: choose another method, or remove [privacy]",
        )
        yield (
            frozen and averaged not in (ModelPart.NOTHING, ModelPart.EXTRACTOR),
            f"method {method.value!r} averages models with their classifiers, which extractor = 'frozen' trains without"
            " noise, so that no record-level guarantee holds: choose extractor = 'private'",
        )
        yield (
            frozen and method is Method.FEDDBP and self.feddbp.decision,
            "feddbp predicts by its decision branch, which extractor = 'frozen' does not train: set decision ="
            " false in [feddbp], or choose another extractor",
        )
        yield (
            not frozen and averaged is not ModelPart.NOTHING and self.averaging.buffers > 0,
            f"[privacy] allows no buffers in [averaging] unless features are frozen: method {method.value!r} would send"
            " statistics that follow the records; use a model without them",
        )
        # A site's cells are the clusters of the round before, and each cell with records becomes a prototype.
        more_clusters = self.fedplcc.most_clusters > self.fedplcc.most_prototypes
        yield (
            method.traits.family is Family.CLUSTERS and more_clusters,
            "with [privacy] a site sends a prototype for each cluster of the previous round: set most_prototypes in"
            " [fedplcc] to most_clusters or more",
        )

    def check_sites(self, method: Method, sites: int) -> None:
        """Raise ``ValueError`` where so many sites are too few for ``max_colluding``, or too many for ckks."""
        self.check_colluding(method, sites)
        if self.protection.ckks_key:
            try:
                check_cohort_size(sites)
                if method.traits.family is Family.PEERS:
                    check_tau(self.agreement_threshold, sites)
            except PrecisionError as error:
                raise ValueError(str(error)) from error

    def check_colluding(self, method: Method, sites: int) -> None:
        """Raise ``ValueError`` where a group of a run of so many sites may be too small for ``max_colluding`` of them.

        Sites would refuse every masked sum of such a group (:meth:`MaskingSection.fewest_resisting`).
        """
        if method.traits.family is Family.ALONE:
            return
        if not plan_for(method, self.protection, self.pfpl.weighting).masked:
            return
        fewest, smallest = self.masking.fewest_resisting(sites), self._smallest_group(method, sites)
        self._check_noise_is_held(sites, smallest)
        if smallest < fewest:
            larger = f"set min_holders to {fewest} or more, " if fewest <= sites else ""
            raise ValueError(
                f"max_colluding in [masking] is {self.masking.colluding(sites)} of {sites} sites, and "
                f"a group of {smallest} does not resist them: {larger}lower max_colluding, or raise "
                f"complete_up_to to {sites}, where only min_holders counts"
            )

    def _check_noise_is_held(self, sites: int, smallest: int) -> None:
        """Check that ``colluding`` sites leave enough of the distributed noise, and cannot open the masks."""
        if self.privacy is None or not self.privacy.distributed:
            return
        colluding = self.privacy.colluding
        if smallest < fewest_against(colluding):
            raise ValueError(
                f"colluding in [privacy] is {colluding}, and a group of {smallest} does not resist "
                f"them: lower colluding, or set min_holders to {fewest_against(colluding)} or more"
            )
        if sites > self.masking.complete_up_to and self.masking.colluding(sites) < colluding:
            raise ValueError(
                f"colluding in [privacy] is {colluding}, but masks of {sites} sites resist only"
                f" {self.masking.colluding(sites)}: raise max_colluding in [masking], or complete_up_to to {sites}"
            )

    def _smallest_group(self, method: Method, sites: int) -> int:
        """Return the smallest group of FedPC's clustering; without one, all sites are the one group."""
        grouped = method.is_grouped and method is not Method.AVERAGE and self.fedpc.groups != 1
        return self.min_holders if grouped and sites >= 2 * self.min_holders else sites
