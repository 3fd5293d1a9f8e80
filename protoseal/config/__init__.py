"""The configuration files: the agreement of a run, the coordinator's file, a site's file, a simulation's.

Each is TOML, validated when it is loaded: a model here that exists is one that can be used. Unknown keys, and
what belongs to a later version, are refused by name.
"""

from protoseal.config.agreement import (
    Agreement,
    Norm,
    Optimiser,
    PfplSection,
    PreprocessingSection,
    TrainingSection,
    load_agreement,
)
from protoseal.config.averaging import AveragingSection, MaskingSection
from protoseal.config.capabilities import (
    CONTROLS,
    DEPLOYABLE,
    SIMULATED,
    Family,
    Inference,
    Method,
    Part,
    Predicts,
    Presence,
    Protection,
    Traits,
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
from protoseal.config.methods import BaselinesSection, FeddbpSection, FedpcSection, FedplccSection
from protoseal.config.reading import ConfigError
from protoseal.config.simulation import SimulationConfig, load_simulation

__all__ = [
    "CONTROLS",
    "DEPLOYABLE",
    "SIMULATED",
    "Agreement",
    "AveragingSection",
    "BaselinesSection",
    "Clustering",
    "ConfigError",
    "CoordinatorConfig",
    "DeadlinesSection",
    "Family",
    "FeddbpSection",
    "FedpcSection",
    "FedplccSection",
    "Inference",
    "Layout",
    "LogLevel",
    "MaskingSection",
    "Method",
    "Norm",
    "Optimiser",
    "Part",
    "PfplSection",
    "Predicts",
    "PreprocessingSection",
    "Presence",
    "Protection",
    "SimulationConfig",
    "SiteConfig",
    "TrainingSection",
    "Traits",
    "load_agreement",
    "load_coordinator",
    "load_simulation",
    "load_site",
]
