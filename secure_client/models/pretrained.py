"""Loader of pretrained weights from a file: the common initial model of a run that does not begin from a seed alone."""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from secure_client.errors import ModelError
from secure_client.models.prototype_model import PrototypeModel, SplitModel

_log = logging.getLogger("protoseal.site")
_BACKBONE, _CLASSIFIER = "backbone.", "classifier."
_COUNTER = ".num_batches_tracked"
"""Suffix of batch normalisation's count of batches, which old files lack and no code here uses."""
_MOST_NAMED = 5


@dataclass(frozen=True)
class _Naming:
    """Mapping of a file's names to the model's.

    Names of the file that begin with one of ``ignored`` are dropped, the others get ``prefix``. Tensors of the model
    whose names begin with one of ``untouched`` keep their initial values. ``stem`` may have another shape.
    """

    prefix: str
    ignored: tuple[str, ...]
    untouched: tuple[str, ...]
    stem: str | None = None


def load_pretrained(model: PrototypeModel, path: Path, sha256: str) -> frozenset[str]:
    """Give the model the extractor in ``path``, if the file has this SHA-256 (hex); return the loaded tensors' names.

    The file is in safetensors' format, or a table of tensors that ``torch.save`` wrote, read by torch's reader of plain
    weights: no code in the file is executed. The names are those of a model that this program saved, those of the
    backbone alone, or torchvision's. The classifier is never read. Of torchvision's weights, the last layer and a first
    convolution of another shape (for small images) are not read either and follow from the seed. All other tensors must
    be present in their shape, and no further ones.

    The hash ensures that all sites begin with equal weights, not that the weights are good: parties that agree on the
    hash trust the file. Weights suit the images that they were trained on: torchvision's GoogLeNet expects a mean and
    std of 0.5.

    Raises :class:`ModelError`, leaving the model unchanged, for a file that cannot be read, has another hash, or does
    not fit.
    """
    stored = _read(path, sha256)
    state, names = model.state_dict(), _find_naming(model, stored)
    taken = {
        names.prefix + name: value for name, value in stored.items() if not name.startswith(names.ignored)
    }
    expected = {name for name in state if not name.startswith(names.untouched)}
    _check_names(path, taken.keys(), expected)
    misfits = {name for name in taken.keys() & expected if taken[name].shape != state[name].shape}
    _check_values(path, taken, state, misfits - {names.stem})
    loaded = {name: value for name, value in taken.items() if name not in misfits}
    model.load_state_dict(state | loaded)
    if misfits:
        _log.warning("%s: tensors of another shape were not loaded: %s", path, ", ".join(sorted(misfits)))
    absent = ", ".join(sorted(state.keys() - expected))
    _log.info("%s: %d tensors loaded; initialised from the seed: %s", path, len(loaded), absent)
    return frozenset(loaded)


def _read(path: Path, sha256: str) -> dict[str, Tensor]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelError(
            f"pretrained weights {path} cannot be read ({error.strerror}); correct pretrained in the configuration"
        ) from error
    # Hashed and parsed from the same bytes: a file that changes between two reads cannot pass with other weights.
    digest = hashlib.sha256(content).hexdigest()
    if digest != sha256.lower():
        raise ModelError(
            f"pretrained weights {path} have the SHA-256 {digest}, the agreement's have {sha256.lower()}: get the"
            " federation's file"
        )
    stored = _parse(path, content)
    if not isinstance(stored, Mapping) or not all(_is_named_tensor(*item) for item in stored.items()):
        raise ModelError(
            f"pretrained weights {path} are not a table of names and dense tensors: save only the model's "
            "state_dict()"
        )
    return {name: value.detach() for name, value in stored.items()}


def _parse(path: Path, content: bytes) -> object:
    """Parse the bytes; a safetensors file begins with the length of its header, which begins with a brace."""
    try:
        if content[8:9] == b"{":
            return safetensors.torch.load(content)
        # Without weights_only torch unpickles, which runs the file's code.
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # the readers raise many exception types
        reason = str(error).partition("\n")[0]
        raise ModelError(
            f"pretrained weights {path} are neither safetensors nor plain weights of torch ({reason}): save "
            "only the model's state_dict()"
        ) from error


def _is_named_tensor(name: object, value: object) -> bool:
    if not (isinstance(name, str) and isinstance(value, Tensor)):
        return False
    return value.layout is torch.strided and value.device.type == "cpu" and not value.is_quantized


def _find_naming(model: PrototypeModel, stored_names: Iterable[str]) -> _Naming:
    # The names of a model that this program saved, of a bare backbone, or of torchvision's published weights.
    if not isinstance(model, SplitModel) or any(name.startswith(_BACKBONE) for name in stored_names):
        return _Naming("", (_CLASSIFIER,), (_CLASSIFIER,))
    from secure_client.models.photo_networks import find_published_layout  # noqa: PLC0415 (torchvision takes seconds to import)

    layout = find_published_layout(model.backbone)
    if layout is None:
        return _Naming(_BACKBONE, (), (_CLASSIFIER,))
    return _Naming(
        prefix=_BACKBONE,
        ignored=(layout.head, *layout.extra),
        untouched=(_CLASSIFIER, _BACKBONE + layout.head),
        stem=_BACKBONE + layout.stem,
    )


def _check_names(path: Path, taken: Iterable[str], expected: Iterable[str]) -> None:
    unknown = sorted(set(taken) - set(expected))
    missing = sorted(name for name in set(expected) - set(taken) if not name.endswith(_COUNTER))
    problems = [
        *([f"has {_list_some(unknown)}, which the model lacks"] if unknown else []),
        *([f"lacks {_list_some(missing)}"] if missing else []),
    ]
    if problems:
        raise ModelError(
            f"pretrained weights {path} are another model's: the file {' and '.join(problems)}; agree on the model and"
            " the norm that they were trained with"
        )


def _check_values(
    path: Path, taken: Mapping[str, Tensor], state: Mapping[str, Tensor], misfits: Iterable[str]
) -> None:
    wrong = [
        f"{name} is {tuple(taken[name].shape)}, not {tuple(state[name].shape)}" for name in sorted(misfits)
    ]
    wrong += [
        f"{name} holds {taken[name].dtype}"
        for name in sorted(taken)
        if taken[name].is_floating_point() != state[name].is_floating_point() or taken[name].is_complex()
    ]
    # In the model's own type: a float64 beyond float32's range is finite in the file alone.
    wrong = wrong or [
        f"{name} has numbers that are not finite"
        for name in sorted(taken)
        if not bool(taken[name].to(state[name].dtype).isfinite().all())
    ]
    if wrong:
        raise ModelError(f"pretrained weights {path} do not fit the model: {_list_some(wrong)}")


def _list_some(items: list[str]) -> str:
    more = f" and {len(items) - _MOST_NAMED} more" if len(items) > _MOST_NAMED else ""
    return ", ".join(items[:_MOST_NAMED]) + more
