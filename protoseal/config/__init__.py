"""The configuration files: the agreement of a run, the coordinator's file, a site's file, a simulation's.

Each is TOML, validated when it is loaded: a model here that exists is one that can be used. Unknown keys are refused
by name.
"""

from protoseal.config.added import AddedMethod, AddedProtection, NoSettings, PeersHalves, SumHalves
from protoseal.config.agreement import Agreement, load_agreement
from protoseal.config.averaging import AveragingSection, MaskingSection
from protoseal.config.capabilities import (
    CONTROLS,
    DEPLOYABLE,
    SIMULATED,
    AnyMethod,
    AnyProtection,
    Method,
    Protection,
    method_named,
)
from protoseal.config.clustering import Clustering
from protoseal.config.deployment import (
    CoordinatorConfig,
    DeadlinesSection,
    LogLevel,
    SiteConfig,
    load_coordinator,
    load_site,
)
from protoseal.config.layout import Layout
from protoseal.config.methods import (
    BaselinesSection,
    FeddbpSection,
    FedpcSection,
    FedplccSection,
    PfplSection,
)
from protoseal.config.privacy import (
    Accounting,
    BudgetSection,
    DpSgdSection,
    Extractor,
    Noise,
    PrivacySection,
    Unit,
)
from protoseal.config.reading import ConfigError, Section
from protoseal.config.simulation import SimulationConfig, load_simulation
from protoseal.config.training import Norm, Optimiser, PreprocessingSection, TrainingSection
from protoseal.config.traits import Family, Inference, Part, Predicts, Traits

__all__ = [
    "CONTROLS",
    "DEPLOYABLE",
    "SIMULATED",
    "Accounting",
    "AddedMethod",
    "AddedProtection",
    "Agreement",
    "AnyMethod",
    "AnyProtection",
    "AveragingSection",
    "BaselinesSection",
    "BudgetSection",
    "Clustering",
    "ConfigError",
    "CoordinatorConfig",
    "DeadlinesSection",
    "DpSgdSection",
    "Extractor",
    "Family",
    "FeddbpSection",
    "FedpcSection",
    "FedplccSection",
    "Inference",
    "Layout",
    "LogLevel",
    "MaskingSection",
    "Method",
    "NoSettings",
    "Noise",
    "Norm",
    "Optimiser",
    "Part",
    "PeersHalves",
    "PfplSection",
    "Predicts",
    "PreprocessingSection",
    "PrivacySection",
    "Protection",
    "Section",
    "SimulationConfig",
    "SiteConfig",
    "SumHalves",
    "TrainingSection",
    "Traits",
    "Unit",
    "load_agreement",
    "load_coordinator",
    "load_simulation",
    "load_site",
    "method_named",
]
