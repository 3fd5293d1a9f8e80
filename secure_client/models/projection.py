"""Public random projection after a model: fewer features are exchanged, and the classifier keeps all of them.

Noise on a prototype grows with the square root of its dimension, while few dimensions separate the classes: inner
products survive a random projection (Johnson and Lindenstrauss 1984). The matrix follows from the agreement's
``init_seed`` alone. The matrix depends on no data and is not trained, so it costs no privacy and is public.
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
from secure_client.models.prototype_model import PrototypeModel, compute_features

_LABEL = b"protoseal/v1/projection\x00"


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
    """A model whose ``features`` (B, d) are a projection of its body's (B, D); its classifier takes all D of them."""

    def __init__(self, model: PrototypeModel, projection: PublicProjection) -> None:
        """Take over ``model``; the caller must no longer use ``model`` itself.

        Raises :class:`ModelError` if the model's classifier is no module.
        """
        super().__init__()
        if not isinstance(model.classifier, nn.Module):
            raise ModelError("project_from needs a separate classifier: make model.classifier an nn.Module")
        self.classifier = model.classifier
        model.classifier = nn.Identity()  # else its parameters have two names in the state
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
