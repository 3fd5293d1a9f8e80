"""The configuration files: the agreement of a run, the coordinator's file, a site's file, a simulation's.

Each is TOML, validated when it is loaded: a model here that exists is one that can be used. Unknown keys, and
what belongs to a later version, are refused by name.
"""

from protoseal.config.agreement import (
    Agreement,
    Optimiser,
    PfplSection,
    PreprocessingSection,
    TrainingSection,
    load_agreement,
)
from protoseal.config.capabilities import CONTROLS, SIMULATED, Method, Presence, Protection
from protoseal.config.deployment import (
    CoordinatorConfig,
    DeadlinesSection,
    LogLevel,
    SiteConfig,
    load_coordinator,
    load_site,
)
from protoseal.config.fedpc import FedpcSection, MaskingSection
from protoseal.config.reading import ConfigError
from protoseal.config.simulation import SimulationConfig, load_simulation

__all__ = [
    "CONTROLS",
    "SIMULATED",
    "Agreement",
    "ConfigError",
    "CoordinatorConfig",
    "DeadlinesSection",
    "FedpcSection",
    "LogLevel",
    "MaskingSection",
    "Method",
    "Optimiser",
    "PfplSection",
    "PreprocessingSection",
    "Presence",
    "Protection",
    "SimulationConfig",
    "SiteConfig",
    "TrainingSection",
    "load_agreement",
    "load_coordinator",
    "load_simulation",
    "load_site",
]
