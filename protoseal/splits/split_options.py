"""Parser of ``--split``: the names of splits and their arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from agreement.toml_loading import nearest
from protoseal.splits.partitions import by_domain, dirichlet, iid, mixed, shots
from protoseal.splits.site_samples import SiteArrays, with_subjects, with_validation
from secure_client.data.samples import TrainTest, join_samples
from secure_client.errors import DataError

Divide = Callable[..., tuple[SiteArrays, ...]]
"""Function ``(data, *, sites, seed)`` that returns each site's samples; raises :class:`DataError` for too few data."""


@dataclass(frozen=True)
class Split:
    """Division of a data set, with or without pooling its parts and keeping a ``validation`` part aside.

    With ``subject`` training samples are assigned to synthetic subjects of that many samples each.
    """

    divide: Divide
    validation: float | None = None
    pools: bool = False
    subject: int | None = None

    def pool_parts(self, data: TrainTest) -> TrainTest:
        """Return the data to divide: with ``pools`` the test part joins the training part.

        Raises :class:`DataError` where only one of the two names its samples' subjects, which could then be on both
        sides of the split.
        """
        if not self.pools or data.test is None:
            return data
        if (data.train.subjects is None) != (data.test.subjects is None):
            raise DataError(
                "pool=1 deals out training and test samples together, but only one of the two names its samples' "
                "subjects: leave pool=1 out, or name the subjects of both"
            )
        return replace(data, train=join_samples([data.train, data.test]), test=None)

    def __call__(self, data: TrainTest, *, sites: int, seed: int) -> tuple[SiteArrays, ...]:
        """Divide :meth:`pool_parts` data, as :class:`Divide` does."""
        divided = self.divide(self.pool_parts(data), sites=sites, seed=seed)
        if self.validation is not None:
            divided = with_validation(divided, self.validation, seed)
        return divided if self.subject is None else with_subjects(divided, self.subject, seed)


def parse_split(spec: str) -> Split:
    """Return the split that ``spec`` names.

    ``iid[:per=300]``, ``domains[:per=300]``, ``mixed:n=6.5[,max=25]``,
    ``shots:n=3,k=100[,nstd=1][,kstd=10][,domains=2]`` or ``dirichlet:0.3[,min=10][,per=300]``; each also with
    ``test=0.25``, the part of its own samples that a site tests on, ``pool=1``, by which the data set's own test part
    is dealt out with the rest, and ``val=0.1``, the part of its training samples that a site keeps aside for early
    stopping, and ``subject=8``, by which the rest is dealt to made-up subjects of so many samples each. Raises
    :class:`DataError` naming the nearest known name or option.
    """
    kind, _, text = spec.partition(":")
    if kind not in SPLITS:
        raise DataError(f"no split is called {kind!r}{nearest(kind, SPLITS)}")
    form = SPLITS[kind]
    values = dict(_option(spec, form, item) for item in text.split(",") if item)
    for name in form.required:
        if name not in values:
            raise DataError(f"split {spec!r} lacks {name}; write {form.example}")
    # These three are steps before and after a division, and no arguments of its function.
    validation, pools, subject = (values.pop(name, None) for name in (VALIDATION, POOL, SUBJECT))
    keywords = {form.all_options[name].keyword: value for name, value in values.items()}
    divide = partial(form.divide, **keywords)
    return Split(divide, validation, pools is not None, None if subject is None else int(subject))


@dataclass(frozen=True)
class _Option:
    keyword: str
    convert: Callable[[str], float]
    below: float = math.inf
    above: float = 0


VALIDATION, POOL, SUBJECT = "val", "pool", "subject"
_EVERYWHERE = {
    "test": _Option("own_test", float, below=1.0),
    VALIDATION: _Option("", float, below=1.0),
    POOL: _Option("", int, below=2),
    SUBJECT: _Option("", int),
}
_PER = {"per": _Option("per_site", int)}


@dataclass(frozen=True)
class _Form:
    """A split's function, and how its options are written; ``unnamed`` may stand without a name."""

    divide: Divide
    example: str
    required: Mapping[str, _Option] = field(default_factory=dict)
    optional: Mapping[str, _Option] = field(default_factory=dict)
    unnamed: str = ""

    @property
    def all_options(self) -> dict[str, _Option]:
        """Return the options by name."""
        return {**self.required, **self.optional, **_EVERYWHERE}


SPLITS = {
    "iid": _Form(iid, "iid", optional=_PER),
    "domains": _Form(by_domain, "domains", optional=_PER),
    "mixed": _Form(
        mixed,
        "mixed:n=6.5,max=25",
        {"n": _Option("n", float)},
        {"max": _Option("max_per_class", int)},
    ),
    "shots": _Form(
        shots,
        "shots:n=3,k=100",
        {"n": _Option("n", int), "k": _Option("k", int)},
        {
            "nstd": _Option("n_spread", int, above=-1),
            "kstd": _Option("k_spread", int, above=-1),
            "domains": _Option("domains", int),
        },
    ),
    "dirichlet": _Form(
        dirichlet,
        "dirichlet:0.3,min=10",
        {"beta": _Option("beta", float)},
        {"min": _Option("minimum", int), **_PER},
        unnamed="beta",
    ),
}


def _option(spec: str, form: _Form, item: str) -> tuple[str, float]:
    name, separator, text = item.partition("=")
    if not separator:
        name, text = form.unnamed, item
    if name not in form.all_options:
        raise DataError(f"split {spec!r}: {item!r} is not one of its options; write {form.example}")
    option = form.all_options[name]
    try:
        value = option.convert(text)
    except ValueError as error:
        raise DataError(f"split {spec!r}: {text!r} is not a number as in {form.example}") from error
    # A NaN fails every comparison, so it is refused here too.
    if not option.above < value < option.below:
        lowest = f"above {option.above:g}" if option.above >= 0 else "0 or more"
        between = lowest if option.below == math.inf else f"{lowest} and below {option.below:g}"
        raise DataError(f"split {spec!r}: {text} is not {between}; write {form.example}")
    return name, value
