"""FedDBP's model: a backbone, then a shared branch and a decision branch, and one classifier for both."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

from algorithms.losses import Outputs
from secure_client.errors import ModelError
from secure_client.models.prototype_model import PrototypeModel, compute_features


class DualBranch(PrototypeModel):
    """A model's features (B, d) → z^s = ReLU(linear) and z^d = linear, each (B, d) → the model's classifier.

    ``features(x)`` is z^s, whose class means are the prototypes. The ablations leave out a branch: without ``share``
    only z^d exists, whose means are the prototypes; without ``decision`` the outputs have no decision part.
    """

    def __init__(self, model: PrototypeModel, dim: int, *, share: bool = True, decision: bool = True) -> None:
        """Take over ``model``, whose features are (B, ``dim``); the caller must no longer use ``model`` itself.

        The branches' weights are drawn from torch's generator. Raises :class:`ModelError` when the model's classifier
        is no module, ``ValueError`` when both branches are left out.
        """
        super().__init__()
        if not (share or decision):
            raise ValueError("a model has the shared branch, the decision branch, or both")
        if not isinstance(model.classifier, nn.Module):
            raise ModelError("both branches share the classifier: make model.classifier an nn.Module")
        self.classifier = model.classifier
        model.classifier = nn.Identity()  # else its parameters have two names in the state
        self.body = model
        self.branches = nn.ModuleDict()
        if share:
            self.branches["shared"] = nn.Sequential(nn.Linear(dim, dim), nn.ReLU())
        if decision:
            self.branches["decision"] = nn.Linear(dim, dim)

    def features(self, inputs: Tensor) -> Tensor:
        """Return z^s, float (B, d); z^d without a shared branch."""
        return self._branches(inputs)[0]

    def outputs(self, inputs: Tensor) -> Outputs:
        """Return the outputs of both branches; the backbone runs once."""
        features, decision = self._branches(inputs)
        logits = self.classifier(features)
        if decision is None or decision is features:
            return Outputs(features, logits, decision, None if decision is None else logits)
        return Outputs(features, logits, decision, self.classifier(decision))

    def _branches(self, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the features of the prototypes, and z^d."""
        embedded = compute_features(self.body, inputs)
        outputs: dict[str, Tensor] = {name: branch(embedded) for name, branch in self.branches.items()}
        decision = outputs.get("decision")
        return next(iter(outputs.values())), decision  # the shared branch is the first


def add_branches(
    model: PrototypeModel, dim: int, *, seed: int, share: bool = True, decision: bool = True
) -> DualBranch:
    """Return the model with branches whose weights follow from ``seed`` alone; torch's generator is left as it was.

    The same seed gives sites with different backbones the same branches. See :class:`DualBranch` for the other
    arguments.
    """
    # Not the seed itself, from which the backbone's weights are drawn: the branches would repeat its numbers.
    digest = hashlib.sha256(f"branches\0{seed}".encode()).digest()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int.from_bytes(digest[:8], "big") % 2**63)
        return DualBranch(model, dim, share=share, decision=decision)
