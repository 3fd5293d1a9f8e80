"""The agreement of a run, and the facts that follow from it for the coordinator and for every site.

An agreement is a TOML file, validated when it is loaded: every model object of this package is usable. Unknown keys
are refused by name.
"""

from agreement.registry.extensions import method_named
from agreement.registry.methods import CONTROLS, DEPLOYABLE, METHODS, SIMULATED, Method
from agreement.registry.named_component import NoSettings
from agreement.registry.protections import PROTECTIONS, PeersHalves, Protection, SumHalves
from agreement.schema.agreement import Agreement, load_agreement
from agreement.schema.layout import Clustering, Layout
from agreement.schema.party_file import LogLevel
from agreement.schema.run_settings import InputSection
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
    Predicts,
    Traits,
)
from agreement.sections.privacy import DpSgdSection, Extractor, Noise, PrivacySection
from agreement.sections.table import TableColumn, TableSection
from agreement.sections.training import Norm, Optimiser, PreprocessingSection, TimingSection, TrainingSection
from agreement.toml_loading import ConfigError, Section

__all__ = [
    "CONTROLS",
    "DEPLOYABLE",
    "METHODS",
    "PROTECTIONS",
    "SIMULATED",
    "Agreement",
    "AveragingSection",
    "BaselinesSection",
    "Clustering",
    "ConfigError",
    "DpSgdSection",
    "Extractor",
    "Family",
    "FeddbpSection",
    "FedpcSection",
    "FedplccSection",
    "Inference",
    "InputSection",
    "Layout",
    "LogLevel",
    "MaskingSection",
    "Method",
    "ModelPart",
    "NoSettings",
    "Noise",
    "Norm",
    "Optimiser",
    "PeersHalves",
    "PfplSection",
    "Predicts",
    "PreprocessingSection",
    "PrivacySection",
    "Protection",
    "Section",
    "SumHalves",
    "TableColumn",
    "TableSection",
    "TimingSection",
    "TrainingSection",
    "Traits",
    "load_agreement",
    "method_named",
]
