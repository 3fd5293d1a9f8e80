"""Names of the models that an agreement may ask for without code of the user's own."""

from __future__ import annotations

IMAGE_MODELS = (
    *("small-cnn", "fedpc-cnn", "tanh-cnn", "scatternet"),
    *("resnet10", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152"),
    *("googlenet", "mobilenet-v2"),
)
TABLE_MODELS = ("mlp",)
BUILT_IN_MODELS = (*IMAGE_MODELS, *TABLE_MODELS)
