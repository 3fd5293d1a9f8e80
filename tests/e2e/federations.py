"""What the end-to-end tests run, small enough for a round to take a fraction of a second, and what must come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from protoseal.config import Agreement, Method, PfplSection, PreprocessingSection, Protection, TrainingSection
from protoseal.federation import run_federation
from protoseal.files import SitePrototypes, read_prototypes, site_folder
from protoseal.splits import SiteArrays, mixed
from secure_client.data.digits import CLASSES, digits_in_five_appearances
from tests.support.processes import Federation


def small_agreement(
    *, rounds: int, protection: Protection = Protection.PLAIN, min_sites: int = 3
) -> Agreement:
    """PFPL with twelve features and a small-cnn that trains for two epochs."""
    return Agreement(
        federation="hospitals",
        run="e2e",
        method=Method.PFPL,
        protection=protection,
        rounds=rounds,
        classes=CLASSES,
        dim=12,
        norm_bound=1.0,
        min_holders=3,
        min_sites=min_sites,
        preprocessing=PreprocessingSection(image_size=8, channels=1, mean=(0.5,), std=(0.5,)),
        pfpl=PfplSection.model_validate({"alpha": 0.3, "lambda": 10.0}),
        training=TrainingSection(init_seed=5, batch_size=16, local_epochs=2),
    )


def small_sites(count: int) -> tuple[SiteArrays, ...]:
    """``site-1`` … with seven or eight classes each, up to eight training samples a class."""
    return mixed(digits_in_five_appearances(5), sites=count, n=7.5, max_per_class=8, seed=5)


def simulated(agreement: Agreement, sites: Sequence[SiteArrays], out: Path) -> dict[str, SitePrototypes]:
    """What each site saves when the same agreement runs undisturbed, in this process."""
    data = {site.name: site.to_data(agreement.preprocessing) for site in sites}
    run_federation(agreement, data, out, device="cpu")
    return {name: read_prototypes(site_folder(out, name)) for name in data}


def check_saved(federation: Federation, expected: Mapping[str, SitePrototypes]) -> None:
    """Own and personalised prototypes of the sites in ``expected`` are those, bit for bit."""
    for site, wanted in expected.items():
        saved = vars(federation.prototypes(site))
        for name, array in vars(wanted).items():
            np.testing.assert_array_equal(saved[name], array, err_msg=f"{site}: {name}")
