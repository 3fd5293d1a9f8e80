"""Sections of the agreement on averaged models and on masked sums: sizes, bounds, thresholds, who may collude."""

from __future__ import annotations

from math import ceil, floor
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from agreement.toml_loading import Positive, Section
from crypto.pairwise.attempt import fewest_against, threshold
from crypto.pairwise.neighbour_graph import Graph, choose_graph, complete_graph

Elements = Annotated[int, Field(ge=0, le=2**26)]
_ROUNDING = 1e-9


class AveragingSection(Section):
    """Part of the model that the method averages, and its bounds.

    ``parameters`` and ``buffers`` count its numbers: parameters (FedPC: outside the classifier), and floating-point
    buffers such as batch normalisation's. Write 1 for the parameters, and `protoseal client check` prints both
    numbers. Before sending, a site clamps parameters beyond ``parameter_bound`` and buffers beyond 10⁶, the same in
    every run, and logs a warning; an initial model beyond the bounds is refused. Sums in fixed point have room for
    values within the bounds. Where models are weighed by sample counts, ``most_samples`` is such a bound too: a site
    with more training samples counts as a site with that many, and logs a warning when it starts.
    """

    parameters: Elements = 0
    """Number of averaged parameters; write 1, and `protoseal client check` prints the right number."""
    buffers: Elements = 0
    """Number of averaged floating-point buffers, such as batch normalisation's."""
    parameter_bound: Positive = 60.0  # masked sums over 256 sites then fit in 32 bits
    """Largest absolute value of a parameter; a site sets larger ones to it before it sends any."""
    most_samples: Annotated[int, Field(ge=1, le=10**9)] = 100_000
    """Largest number of training samples that a site counts as, where models are weighed by samples."""

    buffer_bound: ClassVar[float] = 1e6
    """Largest absolute value of a buffer; a site sets larger ones to it."""

    @model_validator(mode="after")
    def _buffers_come_with_parameters(self) -> Self:
        if self.buffers and not self.parameters:
            raise ValueError("buffers is set, but parameters is not: set both")
        return self


class MaskingSection(Section):
    """Settings of masked sums, which are taken in the ring of integers modulo 2^``ring_bits``.

    32 bits halve the traffic and leave fewer fractional bits, 16 or more: each term is off by 2^-17 at most. By
    default the agreement has 32 where that fits, every bound times ``max_sites`` being below 2^14, and else 64.

    In a group of up to ``complete_up_to`` members each member has a mask with each other and holds shares of its
    secrets. In a larger group each member shares masks and secrets with a few others, drawn at random: as many as are
    needed to resist ``max_colluding`` of the run's sites, if these help the coordinator, and to open the sum without
    ``max_dropped`` of the group's members. More colluders void the guarantee there; a complete graph resists almost a
    third of the group's members.

    In a run of more than ``complete_up_to`` sites a list of members must be long enough to resist that share
    (:meth:`fewest_resisting`), since the coordinator chooses the list. In a smaller run every graph is complete and
    ``max_colluding`` **has no effect**: the threshold and ``min_holders`` decide, and c colluders require min_holders
    of max(3c − 1, c + 2). The coordinator also states the number of the run's sites, from ``min_sites`` up.
    """

    ring_bits: Literal[32, 64] | None = None
    """Bits of a masked word; by default 32 where every bound times `max_sites` is below 2^14, else 64."""
    complete_up_to: Annotated[int, Field(ge=2)] = 100
    """Largest group in which every member shares masks with every other one."""
    max_colluding: Annotated[float, Field(ge=0, lt=1 / 3)] = 0.1
    """Share of the run's sites that may help the coordinator, in groups larger than `complete_up_to`."""
    max_dropped: Annotated[float, Field(ge=0, le=1 / 3)] = 0.3
    """Share of a large group's members that may drop out of a sum."""

    def graph(self, roster: int, listed: int) -> Graph:
        """Return the graph of masks and shares in a run of ``roster`` sites.

        ``listed``: members of the group that an attempt lists. Colluders are counted in the whole run, since the
        coordinator chooses which others are listed, and rounded up; drop-outs are rounded down. Both allow for the
        error of floats.
        """
        if listed <= self.complete_up_to:
            return complete_graph(listed)
        dropped = min(floor(self.max_dropped * listed + _ROUNDING), listed - threshold(listed))
        return choose_graph(listed, self.colluding(roster), dropped)

    def colluding(self, roster: int) -> int:
        """Return the number of colluders among a run's ``roster`` sites that ``max_colluding`` stands for."""
        return ceil(self.max_colluding * roster - _ROUNDING)

    def fewest_resisting(self, roster: int) -> int:
        """Return the fewest members of a group that resist the colluders of a run of ``roster`` sites.

        1 where no group of the run is large enough for a sparse graph.
        """
        if roster <= self.complete_up_to:
            return 1
        return fewest_against(self.colluding(roster))
