"""Interface of an attack, and the data that an adversary has besides its view."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from protoseal.attacks.adversaries import Adversary
from protoseal.attacks.recorded_run import LabelledImages, RecordedRun
from protoseal.attacks.verdicts import Measured


class Case(ABC):
    """Base of an attack with its metric.

    The attack succeeds at ``chance + margin`` of ``metric``. ``question`` is what the attack answers, in words that a
    reader without cryptography understands, and ``ability`` is what success shows, in words that complete "it can";
    ``not_covered`` says what failure does not show. ``by_design`` is true if the protocol itself tells every member
    what the attack asks, under every protection. A ``thinned`` case runs on sites with few samples of each class
    (:func:`protoseal.attacks.recorded_run.thinned`). ``samples`` is the number of samples behind what is
    attacked, where the case fixes it. A case that ``reads_values`` reads what sites released and no more, so that the ε
    of a site's own noise covers its success.
    """

    attack: str
    metric: str
    chance: float
    margin: float
    question: str
    ability: str
    not_covered: str
    by_design: bool = False
    reads_values: bool = False
    thinned: bool = False
    samples: int | None = None
    adversaries: Sequence[Adversary] = tuple(Adversary)

    @property
    def family(self) -> str:
        """Name without the number of samples, for attacks that differ in it alone."""
        return self.attack

    @abstractmethod
    def measure(self, run: RecordedRun, adversary: Adversary) -> Sequence[Measured]:
        """Run the attack; return one result for each of the adversary's readings, none if the attack has no input."""

    def reference(self, run: RecordedRun) -> Measured | None:  # noqa: ARG002 (for a case's own)
        """Return the same attack on the same run undefended, for a case whose defence is no protection and no noise.

        None means that the coordinator of an undefended run (``plain``, without noise) is the reference.
        """
        return None


@dataclass(frozen=True)
class Auxiliary:
    """Samples besides the victim's training samples.

    ``outsiders`` are of the victim's own distribution, in no prototype, and score an attack. ``public`` are the
    adversary's own: of the same task, disjoint from the outsiders.
    """

    outsiders: LabelledImages
    public: LabelledImages


@lru_cache(maxsize=16)
def auxiliary(run: RecordedRun, victim: str) -> Auxiliary:
    """Divide the sites' test samples: half of the victim's as outsiders; all others that equal none of them as public.

    Both halves have as equal numbers of each class as possible.
    """
    own, rng = run.sites[victim].test, np.random.default_rng(0)
    order = rng.permutation(len(own))
    order = order[np.argsort(own.labels[order], kind="stable")]
    outsiders = own.take(order[::2])
    kept = {each.numpy().tobytes() for each in outsiders.inputs}
    parts = [own.take(order[1::2]), *(site.test for name, site in run.sites.items() if name != victim)]
    seen: set[bytes] = set()
    public = []
    for part in parts:
        contents = [each.numpy().tobytes() for each in part.inputs]
        fresh = [i for i, content in enumerate(contents) if content not in kept and content not in seen]
        seen.update(contents)
        public.append(part.take(np.array(fresh, dtype=np.int64)))
    return Auxiliary(outsiders, joined(public))


def joined(parts: Sequence[LabelledImages]) -> LabelledImages:
    """Return the samples of all parts, one after the other."""
    return LabelledImages(
        torch.cat([each.inputs for each in parts]), np.concatenate([each.labels for each in parts])
    )
