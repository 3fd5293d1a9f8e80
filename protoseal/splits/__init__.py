"""Splits: how a data set is divided among simulated sites, by class and by domain.

A split is a table of shares (sites, domains, classes): the samples of each domain and class are shuffled and
dealt out by it, so no sample is at two sites. Everything follows from a seed. The names of splits, and their
options, are in :mod:`protoseal.splits.split_options`.
"""

from protoseal.splits.partitions import by_domain, dirichlet, iid, mixed, shots
from protoseal.splits.site_samples import SiteArrays, with_subjects, with_validation
from protoseal.splits.split_options import Split, parse_split

__all__ = [
    "SiteArrays",
    "Split",
    "by_domain",
    "dirichlet",
    "iid",
    "mixed",
    "parse_split",
    "shots",
    "with_subjects",
    "with_validation",
]
