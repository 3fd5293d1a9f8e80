"""Models around a site's model: FedDBP's two branches, a public projection, and batches of one size.

Each wrapper keeps the contract of :class:`secure_client.models.prototype_model.PrototypeModel`.
"""

from __future__ import annotations

import hashlib
import math
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from algorithms.losses import Outputs
from secure_client.errors import ModelError
from secure_client.models.prototype_model import PrototypeModel, compute_features, compute_outputs, seed_torch

_LABEL = b"protoseal/v1/projection\x00"


def _take_classifier(model: PrototypeModel, purpose: str) -> nn.Module:
    """Return the classifier, which ``model`` gives up; raise :class:`ModelError` for one that is no module."""
    classifier: object = model.classifier
    if not isinstance(classifier, nn.Module):
        raise ModelError(f"{purpose}: make model.classifier an nn.Module")
    # Left in place, its parameters would have two names in the state.
    model.classifier = nn.Identity()
    return classifier


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
        self.classifier = _take_classifier(model, "both branches share the classifier")
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
        seed_torch(int.from_bytes(digest[:8], "big") % 2**63)
        return DualBranch(model, dim, share=share, decision=decision)


class PublicProjection(nn.Module):
    """Linear map (B, D) → (B, d) by a fixed matrix, which is in no state or average: the seed determines it."""

    matrix: Tensor

    def __init__(self, inputs: int, outputs: int, seed: int) -> None:
        super().__init__()
        self.shape = (outputs, inputs)
        self.seed = seed
        matrix = torch.from_numpy(make_projection(inputs, outputs, seed).astype(np.float32))
        self.register_buffer("matrix", matrix, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Map float (B, D) to float (B, d)."""
        return functional.linear(features, self.matrix)


class Projected(PrototypeModel):
    """A model whose ``features`` (B, d) are a projection of its body's (B, D); its classifier takes all D of them.

    Noise on a prototype grows with the square root of its dimension, while few dimensions separate the classes: inner
    products survive a random projection (Johnson and Lindenstrauss 1984). The matrix follows from the agreement's
    ``init_seed`` alone. It depends on no data and is not trained, so it costs no privacy and is public.
    """

    def __init__(self, model: PrototypeModel, projection: PublicProjection) -> None:
        """Take over ``model``; the caller must no longer use ``model`` itself.

        Raises :class:`ModelError` if the model's classifier is no module.
        """
        super().__init__()
        self.classifier = _take_classifier(model, "project_from needs a separate classifier")
        self.body = model
        self.projection = projection

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits, float (B, K)."""
        return cast("Tensor", self.classifier(compute_features(self.body, inputs)))

    def features(self, inputs: Tensor) -> Tensor:
        """Return the projected embedding, float (B, d)."""
        return cast("Tensor", self.projection(compute_features(self.body, inputs)))

    def outputs(self, inputs: Tensor) -> Outputs:
        """Return the features that are exchanged and aligned, (B, d), and the logits of all D features."""
        embedded = compute_features(self.body, inputs)
        return Outputs(self.projection(embedded), self.classifier(embedded))


def project(model: PrototypeModel, inputs: int, outputs: int, *, seed: int) -> Projected:
    """Wrap a model with features (B, ``inputs``) to give features (B, ``outputs``)."""
    return Projected(model, PublicProjection(inputs, outputs, seed))


def make_projection(inputs: int, outputs: int, seed: int) -> NDArray[np.float64]:
    """Return √(D/d)·Q, float64 (d, D), where Q has orthonormal rows, uniformly distributed (Haar measure).

    Squared norms are kept on average over seeds, so that clip, norm bound and weights of the loss mean what they would
    for all D features; no vector gets longer than √(D/d) times its length. Q is that of Gaussian columns'
    QR decomposition with R's diagonal positive (Mezzadri 2007), which makes it unique: machines differ in float64's
    last digits only. The generator is numpy's PCG64, seeded with a hash of seed and shape.
    """
    digest = hashlib.sha256(_LABEL + f"{seed}\0{inputs}\0{outputs}".encode()).digest()
    generator = np.random.Generator(np.random.PCG64(int.from_bytes(digest, "big")))
    # QR alone fixes Q up to signs that depend on the LAPACK at hand; sites would then exchange unlike features.
    columns, upper = np.linalg.qr(generator.standard_normal((inputs, outputs)))
    rows: NDArray[np.float64] = (columns * np.sign(np.diagonal(upper))).T
    return rows * math.sqrt(inputs / outputs)


class FixedBatchModel(PrototypeModel):
    """Model that computes in batches of one size, so that the number of records affects no record's features.

    A matrix product over few records rounds differently from one over many. Copies of a batch's first record fill the
    batch up to ``size``.
    """

    def __init__(self, model: PrototypeModel, size: int) -> None:
        super().__init__()
        self.inner = model
        self._size = size

    def features(self, inputs: Tensor) -> Tensor:
        """Return the model's own features, of up to ``size`` inputs."""
        return self.outputs(inputs).features

    def outputs(self, inputs: Tensor) -> Outputs:
        """Return the model's outputs, of up to ``size`` inputs."""
        count = len(inputs)
        copies = inputs[:1].expand(self._size - count, *inputs.shape[1:])
        outputs = compute_outputs(self.inner, torch.cat([inputs, copies]))
        return Outputs(*(None if output is None else output[:count] for output in outputs))  # type: ignore[arg-type]
