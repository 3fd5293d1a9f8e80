"""Federations of the end-to-end tests, with rounds of a fraction of a second, and the results to expect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from agreement import (
    Agreement,
    AveragingSection,
    FeddbpSection,
    FedpcSection,
    MaskingSection,
    Method,
    ModelPart,
    PfplSection,
    PreprocessingSection,
    Protection,
    TimingSection,
)
from algorithms.pfpl import Weighting
from protoseal.reports.result_files import site_folder
from protoseal.splits import SiteArrays, mixed
from secure_client.data.published import APPEARANCES, DIGIT_NAMES, make_digit_domains
from secure_client.data.samples import Samples
from secure_client.models.prototype_model import build_model
from secure_client.output.site_files import SitePrototypes, read_prototypes
from secure_client.training.averaged_parameters import AveragedPart
from tests.support.processes import Federation, Running, own_nursery
from tests.support.simulations import run_federation
from tests.support.small import short_training

_SCANS = 5
"""Training samples of a class at a site of :func:`two_kinds_of_sites`; there is one more to test on."""
FINE = MaskingSection(ring_bits=64)
"""Words in which a site's values are millions of times what sums may be off by."""


def small_agreement(
    *, rounds: int, protection: Protection = Protection.PLAIN, min_sites: int = 3
) -> Agreement:
    """PFPL with twelve features and a small-cnn that trains for two epochs, whose answers leave at once."""
    return Agreement(
        federation="hospitals",
        run="e2e",
        method=Method.PFPL,
        protection=protection,
        rounds=rounds,
        classes=DIGIT_NAMES,
        dim=12,
        norm_bound=1.0,
        min_holders=3,
        min_sites=min_sites,
        preprocessing=PreprocessingSection(image_size=8, channels=1, mean=(0.5,), std=(0.5,)),
        pfpl=PfplSection.model_validate({"alpha": 0.3, "lambda": 10.0}),
        training=short_training("small-cnn", init_seed=5, batch_size=16, local_epochs=2),
        timing=TimingSection(answers_show_duration=True),
    )


def peer_sum_agreement(*, rounds: int) -> Agreement:
    """PFPL with equal weights under `masked`: a pairwise sum, and no secret that the sites share."""
    rotated = small_agreement(rounds=rounds, protection=Protection.MASKED)
    uniform = {"pfpl": rotated.pfpl.model_copy(update={"weighting": Weighting.UNIFORM}), "masking": FINE}
    return Agreement.model_validate({**dict(rotated), **uniform})


def small_sites(count: int) -> tuple[SiteArrays, ...]:
    """``site-1`` … with seven or eight classes each, up to eight training samples a class."""
    return mixed(make_digit_domains(5), sites=count, n=7.5, max_per_class=8, seed=5)


def fedpc_agreement(*, rounds: int, protection: Protection = Protection.MASKED) -> Agreement:
    """FedPC in two groups, with five classes, twelve features and the same small-cnn."""
    pfpl, classes = small_agreement(rounds=rounds, protection=protection), DIGIT_NAMES[:5]
    model = build_model("small-cnn", classes=len(classes), dim=pfpl.dim, channels=1, image_size=8, seed=0)
    parameters, buffers = AveragedPart(model).sizes
    averaging = AveragingSection(parameters=parameters, buffers=buffers)
    return Agreement.model_validate(
        {
            **dict(pfpl),
            "method": Method.FEDPC,
            "classes": classes,
            "pfpl": PfplSection(),
            "fedpc": FedpcSection(groups=2),
            "averaging": averaging,
            "masking": FINE,
        }
    )


def feddbp_agreement(*, rounds: int, protection: Protection) -> Agreement:
    """FedDBP with twelve features, half a site's own in its five best channels, and a small-cnn before the branches."""
    pfpl = small_agreement(rounds=rounds, protection=protection)
    section = FeddbpSection(own=0.5, top_channels=5)
    return Agreement.model_validate(
        {**dict(pfpl), "method": Method.FEDDBP, "pfpl": PfplSection(), "feddbp": section, "masking": FINE}
    )


def fedplcc_agreement(*, rounds: int, protection: Protection) -> Agreement:
    """FedPLCC with five classes, twelve features and the same small-cnn, all of which is averaged."""
    pfpl, classes = small_agreement(rounds=rounds, protection=protection), DIGIT_NAMES[:5]
    model = build_model("small-cnn", classes=len(classes), dim=pfpl.dim, channels=1, image_size=8, seed=0)
    parameters, buffers = AveragedPart(model, ModelPart.MODEL).sizes
    averaging = AveragingSection(parameters=parameters, buffers=buffers)
    return Agreement.model_validate(
        {
            **dict(pfpl),
            "method": Method.FEDPLCC,
            "classes": classes,
            "norm_bound": 10.0,
            "pfpl": PfplSection(),
            "averaging": averaging,
        }
    )


def two_kinds_of_sites(count: int) -> tuple[SiteArrays, ...]:
    """``site-1`` …: those of odd number have scans in one appearance, the others in another, so they make two groups.

    All have the digits 0 to 2. Digit 3 is at two odd sites, too few for a sum, and at all even ones; 4 is at three
    even ones alone, each of which it takes for a sum.
    """
    return tuple(_site_of_its_kind(number) for number in range(1, count + 1))


def _site_of_its_kind(number: int) -> SiteArrays:
    scans, kind, position = make_digit_domains(5).train, number % 2, (number - 1) // 2
    holds = [0, 1, 2] + [3] * (kind == 0 or number <= 3) + [4] * (number in (2, 4, 6))
    own = slice(position * (_SCANS + 1), (position + 1) * (_SCANS + 1))
    of_class = [np.flatnonzero((scans.labels == k) & (scans.domains == kind))[own] for k in holds]
    return SiteArrays(
        f"site-{number}",
        _in_one_domain(scans.take(np.concatenate([each[:_SCANS] for each in of_class]))),
        _in_one_domain(scans.take(np.concatenate([each[_SCANS:] for each in of_class]))),
        (tuple(APPEARANCES)[kind],),
    )


def _in_one_domain(samples: Samples) -> Samples:
    return Samples(samples.inputs, samples.labels, np.zeros_like(samples.labels))


def simulated(agreement: Agreement, sites: Sequence[SiteArrays], out: Path) -> dict[str, SitePrototypes]:
    """Return the files that each site saves when the same agreement runs undisturbed in this process."""
    data = {site.name: site.to_data(agreement.preprocessing) for site in sites}
    run_federation(agreement, data, out)
    return {name: read_prototypes(site_folder(out, name)) for name in data}


def check_saved(federation: Federation, expected: Mapping[str, SitePrototypes]) -> None:
    """Own and personalised prototypes of the sites in ``expected`` are those, bit for bit."""
    for site, wanted in expected.items():
        saved = vars(federation.prototypes(site))
        for name, array in vars(wanted).items():
            np.testing.assert_array_equal(saved[name], array, err_msg=f"{site}: {name}")


def protoseal(folder: Path, *arguments: str) -> str:
    """Return the output of the command, which succeeds."""
    done = Running(folder, *arguments, nursery=own_nursery())
    assert done.exit_code() == 0, done.log()
    return done.log()


def check_predictions(federation: Federation, site: SiteArrays, simulated: Path, *options: str) -> None:
    """Check that the site's saved model and the simulated run predict the same for all of the site's test samples."""
    asked = ("--data", "npz:data.npz", "--json", *options)
    outputs = [
        protoseal(federation.folder(site.name), "predict", "--run", each, *asked)
        for each in (".", str(simulated))
    ]
    # The channels' ranges, which the command prints on standard error, come first.
    trained, wanted = (json.loads(text[text.index("{") :]) for text in outputs)
    assert trained == wanted
    assert len(trained["predictions"]) == len(site.test)
