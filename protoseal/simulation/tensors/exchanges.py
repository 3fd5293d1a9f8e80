"""Exchanges of the tensor engine: the arithmetic of a round between its sites, in the clear and without messages.

Each function does for all sites at once what a site and the coordinator do under ``plain``
(:mod:`secure_client.exchanges`, :mod:`secure_server.exchanges`), and calls the same functions of :mod:`algorithms`:
classes are withheld, and values bounded, in the same way. Sites are in the order of their names, as in a cohort.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from agreement import Agreement
from agreement.derived.cohorts import stated_classes
from agreement.derived.means import Means, cluster_means
from agreement.sections.methods import Family
from algorithms.averaging import active_classes
from algorithms.fedpc import cluster
from algorithms.gram_matrix import Bool, Float
from algorithms.pfpl import personalise
from algorithms.prototypes import Clusters, Targets
from crypto.plain import SCHEME, Weights
from crypto.protection import Cohort
from protoseal.simulation.tensors.models import SiteModels, float64_device
from protoseal.simulation.tensors.sites import TensorSite
from secure_client.exchanges.cluster_directions import clusters_to_send
from secure_client.exchanges.sum_halves import read_cleartext_means
from secure_client.exchanges.sums import fuse_targets, grouping_row
from secure_client.privacy.bounds import model_weight
from secure_client.training.recipes import site_method
from secure_server.exchanges.cluster_assignment import LocalPrototypes, assign_clusters
from secure_server.exchanges.clusters import sum_in_clusters
from secure_server.exchanges.group_results import GroupSum, group_payloads
from secure_server.exchanges.peers import peers_weights
from secure_server.exchanges.site_grouping import grouped
from secure_server.rounds.state import Groups

Shapes = tuple[tuple[int, ...], ...]
"""Shapes of a payload's arrays."""


@dataclass(frozen=True)
class Exchanged:
    """Outcome of a round's exchange among n sites.

    ``received`` (n, K) are the classes of which each site got a value, ``active`` (K,) those that are not withheld in
    every group; ``groups`` are the participants by their groups, if any. ``sent`` and ``result`` are the shapes of each
    site's upload and of its answer.
    """

    received: Bool
    active: Bool
    groups: Groups
    sent: Sequence[Shapes]
    result: Sequence[Shapes]


class Exchange(ABC):
    """Exchange of a run's rounds."""

    groups: Groups = ()
    """Groups of sites; () without groups, and before round 1."""

    def __init__(
        self, agreement: Agreement, sites: Sequence[TensorSite], models: SiteModels, device: torch.device
    ) -> None:
        self._agreement = agreement
        self._sites = {site.name: site for site in sites}
        self._models = models
        self._device = float64_device(device)

    @abstractmethod
    def run(self, round_number: int, participants: Sequence[TensorSite]) -> Exchanged:
        """Exchange the values of the participants' last training, and give sites their results.

        A result that all sites of a group share reaches every site of the group, a site's own mixture that site alone.
        """

    @abstractmethod
    def group(self) -> None:
        """Form the groups of the run, if the method has any, from values before training where it says so."""

    def _model_sum(self, sites: Sequence[TensorSite]) -> Float:
        """Return the sum of models times samples, and of samples, or of models alone, as the layout has it."""
        layout, most = self._agreement.layout, self._agreement.averaging.most_samples
        if not layout.model:
            return np.empty(0)
        samples = [model_weight(site.learner.counts, most) if layout.weighted else 1 for site in sites]
        total = self._models.add_up([site.name for site in sites], samples)
        return np.append(total, float(sum(samples))) if layout.weighted else total

    def _cohort(self, round_number: int, sites: Sequence[TensorSite]) -> Cohort:
        """Return the cohort of these sites, with the classes that enough of them hold."""
        presence = np.stack(
            [stated_classes(self._agreement, round_number, site.values.held_classes()) for site in sites]
        )
        holds = presence & active_classes(presence, self._agreement.min_holders)
        return Cohort(tuple(site.name for site in sites), holds, self._agreement.dim)


def build_exchange(
    agreement: Agreement, sites: Sequence[TensorSite], models: SiteModels, device: torch.device
) -> Exchange:
    """Return the exchange of the agreed method; raise ``ValueError`` for a control, which has none."""
    kinds: dict[Family, type[Exchange]] = {
        Family.PEERS: PeerExchange,
        Family.SUMS: SumExchange,
        Family.GROUPS: SumExchange,
        Family.CLUSTERS: ClusterExchange,
    }
    family = agreement.method.traits.family
    if family not in kinds:
        raise ValueError(f"{agreement.method} exchanges nothing")
    return kinds[family](agreement, sites, models, device)


class PeerExchange(Exchange):
    """Rows of all sites in, for each site a combination of its peers' rows out (PFPL, and third parties' methods)."""

    def group(self) -> None:
        """Do nothing: each site has peers of its own."""

    def run(self, round_number: int, participants: Sequence[TensorSite]) -> Exchanged:
        """See :class:`Exchange`. In a round without rows the targets stay."""
        agreement = self._agreement
        cohort = self._cohort(round_number, participants)
        received = cohort.holds
        if agreement.sends_rows(round_number):
            rows = np.stack([site.values.rows() for site in participants]) / agreement.norm_bound
            given = cohort.holds[:, :, None]
            combined = combine_peers(
                np.where(given, rows, 0.0), cohort.holds, peers_weights(agreement), self._device
            )
            targets = personalise(rows, np.where(given, combined, rows), agreement.own_share)
            targets *= agreement.norm_bound
            for site, target, present in zip(participants, targets, cohort.holds, strict=True):
                if np.isfinite(target).all():
                    site.received.guide = Targets.of(target, present)
        else:
            received = np.stack([site.predictor.prototypes().has_personal for site in participants])
        shapes = [((len(agreement.classes), agreement.dim),)] * len(participants)
        return Exchanged(received, cohort.counts > 0, (), shapes, shapes)


def combine_peers(rows: Float, holds: Bool, weights: Weights, device: torch.device) -> Float:
    """Return Σ_m W[k, i, m]·C_m^k for each site i and class k, (n, K, d), from ``rows`` (n, K, d) and ``holds`` (n, K).

    Gram matrices and combinations are computed on the device in float64, the weights from the Gram matrices by numpy.
    """
    by_class = torch.from_numpy(rows).to(device).transpose(0, 1)
    gram = (by_class @ by_class.transpose(1, 2)).cpu().numpy()
    combined = torch.from_numpy(weights(gram, holds)).to(device) @ by_class
    return np.asarray(combined.transpose(0, 1).cpu().numpy())


class SumExchange(Exchange):
    """Sums of prototypes and models over all sites, or over the groups that FedPC forms before training."""

    def __init__(
        self, agreement: Agreement, sites: Sequence[TensorSite], models: SiteModels, device: torch.device
    ) -> None:
        super().__init__(agreement, sites, models, device)
        self.last_rows: dict[tuple[str, ...], tuple[Float, NDArray[np.int64]]] = {}
        """Each group's last sum of rows (K, d) and its holders (K,), for rounds that repeat these."""

    def group(self) -> None:
        """Group the sites by their prototypes before training (FedPC), or all together."""
        agreement, names = self._agreement, tuple(self._sites)
        if not agreement.method.is_grouped:
            self.groups = (names,)
            return
        rows = [grouping_row(site.values.rows(), agreement.norm_bound) for site in self._sites.values()]
        stacked = torch.from_numpy(np.concatenate(rows)).to(self._device)
        products = (stacked @ stacked.T).cpu().numpy()
        labels = cluster(
            (products + products.T) / 2.0,
            min_holders=agreement.min_holders,
            groups=agreement.fedpc.groups,
            seed=agreement.training.init_seed,
        )
        self.groups = grouped(names, [int(label) for label in labels])

    def run(self, round_number: int, participants: Sequence[TensorSite]) -> Exchanged:
        """See :class:`Exchange`."""
        agreement = self._agreement
        by_name = {site.name: site for site in participants}
        groups = tuple(tuple(name for name in group if name in by_name) for group in self.groups)
        sums = [self._sum(round_number, [by_name[name] for name in group]) for group in groups]
        received: dict[str, Bool] = {}
        for everyone, payload in zip(self.groups, group_payloads(agreement, sums, SCHEME), strict=True):
            means = read_cleartext_means(agreement, payload, SCHEME)
            # Without sums of prototypes, no class is withheld.
            received |= dict.fromkeys(everyone, means.has | (not agreement.layout.classes))
            self._give([self._sites[name] for name in everyone], means, by_name.keys())
        active = np.any([group_sum.cohort.counts > 0 for group_sum in sums], axis=0)
        layout, number = agreement.layout, len(participants)
        return Exchanged(
            np.stack([received[name] for name in by_name]),
            active,
            groups,
            [((layout.length,),)] * number,
            [((layout.means,), (len(agreement.classes),))] * number,
        )

    def _give(self, group: Sequence[TensorSite], means: Means, participants: Set[str]) -> None:
        """Give a group's sites its means: the base of their training, and targets, or what the method makes of them."""
        shared = Targets.of(means.rows, means.has)
        for site in group:
            site.received.averaged = means.model
            if site_method(self._agreement.method).targets is None:
                site.received.guide = shared
            elif site.name in participants:
                site.received.guide = Targets.of(
                    *fuse_targets(self._agreement, site.values, means.rows, means.has)
                )

    def _sum(self, round_number: int, members: Sequence[TensorSite]) -> GroupSum:
        """Return the sum over a group's members, with its last rows in a round whose sums have none."""
        agreement, layout = self._agreement, self._agreement.layout
        cohort = self._cohort(round_number, members)
        rows = np.zeros((layout.classes, layout.dim))
        for site, holds in zip(members, cohort.holds, strict=True) if layout.classes else ():
            rows += np.where(holds[:, None], site.values.rows(), 0.0)
        total = np.concatenate([rows.ravel(), self._model_sum(members)])
        summed = GroupSum(cohort, cohort.sites, total)
        if agreement.repeats_rows(round_number):
            self.last_rows[cohort.sites] = rows, summed.holders
        elif not agreement.sends_rows(round_number):
            rows, holders = self.last_rows[cohort.sites]
            total[: layout.prototypes] = rows.ravel()
            summed = replace(summed, last_holders=holders)
        return summed


class ClusterExchange(Exchange):
    """Local prototypes of all sites, assigned to clusters, and models averaged (FedPLCC, FPL, FedPLVM)."""

    def group(self) -> None:
        """Put all sites into one group."""
        self.groups = (tuple(self._sites),)

    def run(self, round_number: int, participants: Sequence[TensorSite]) -> Exchanged:
        """See :class:`Exchange`."""
        agreement, layout = self._agreement, self._agreement.layout
        cohort, most = self._cohort(round_number, participants), agreement.averaging.most_samples
        model = self._model_sum(participants)
        local = {
            site.name: clusters_to_send(site.values.local(), holds, most)
            for site, holds in zip(participants, cohort.holds, strict=True)
        }
        rows = {name: LocalPrototypes(sent.rows, sent.labels) for name, sent in local.items()}
        assignment = assign_clusters(agreement, rows)
        total = sum_in_clusters(assignment, local)
        clusters, averaged = cluster_means(agreement, total, assignment.labels, model)
        received = np.zeros(len(agreement.classes), dtype=np.bool_)
        received[clusters.labels] = True
        guide = Clusters.of(clusters.rows, clusters.labels, clusters.weights)
        for site in self._sites.values():
            site.received.guide = guide
            site.received.averaged = averaged
        number, dim = len(clusters.labels), agreement.dim
        result = ((number, dim), (number,), (number,), (layout.means,))
        return Exchanged(
            np.stack([received] * len(participants)),
            cohort.counts > 0,
            (cohort.sites,),
            [
                ((len(sent.labels), dim), (len(sent.labels),), (len(sent.labels),), (layout.length,))
                for sent in local.values()
            ],
            [result] * len(participants),
        )
