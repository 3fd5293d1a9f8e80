"""Releases that a site keeps for an audit of its run: the noisy sums as drawn, the model, and the values sent.

A site keeps them if its file says ``keep_releases``, and a simulation with ``--keep-releases``. Each release that was
paid for has a file with its noisy sums and counts, the number of its entry in the ledger, the cells that it was drawn
over, if any, and the model whose features were summed. Each answer has a file with the values that the protection got,
in the clear, and the round of the release that they come from. The same values again make no other file.

**The files are sensitive and stay at the site**: the values left it only as the protection made them, under masks or
encrypted. Nothing in the files is exact, but a model trained without noise follows the records. Limits: a file for each
release is as large as the model. Shares of a noise that sites add up, and terms with them, are not kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from agreement.storage.run_files import FileError, first_line
from privacy.ledger.hash_chain import Anchor
from privacy.ledger.lines import ReleaseName
from privacy.mechanisms.cell_query import Cells
from privacy.mechanisms.grid import Float
from protoseal_files import durable_files
from protoseal_wire.messages import Phase, PhaseKey

FOLDER = "releases"
"""Name of the folder in a site's ``state_dir``, or in its folder of a simulation."""
_MODEL, _FACTS = "model.", "facts"
_DRAWN, _SENT = "drawn-", "sent-"


@dataclass(frozen=True)
class Drawn:
    """One draw of noise: noisy ``sums`` (M, d) of features and noisy ``counts`` (M,) of records, by class or cell.

    ``anchor`` is the ledger's entry that paid for the draw. ``cells`` are those of a release over cells. ``model`` is
    the state of the model whose features were summed.
    """

    release: ReleaseName
    anchor: Anchor
    sums: Float = field(repr=False)
    counts: Float = field(repr=False)
    cells: Cells | None = field(repr=False)
    model: Mapping[str, Tensor] = field(repr=False)


@dataclass(frozen=True)
class Sent:
    """Values of one answer, as the protection got them: ``arrays`` in its order.

    ``released`` is the round of the release that the values come from, by the site's state. ``asked`` are the classes
    (K,) of which the attempt asked for rows, those that the site stated and that no rule withholds; for sums of
    clusters, the local prototypes (M,) that have a cluster. It is None for the statement itself, and in round 0.
    """

    round: int
    phase: Phase
    released: int | None
    arrays: tuple[NDArray[np.generic], ...] = field(repr=False)
    asked: NDArray[np.bool_] | None = field(repr=False, default=None)


class KeptReleases:
    """Writer of a run's releases into ``folder``, which is made for its owner alone."""

    def __init__(self, folder: Path) -> None:
        """Keep no model until ``model`` is set to a function that returns the state of the model of the features."""
        self.folder = folder
        self.model: Callable[[], Mapping[str, Tensor]] = dict

    def keep_drawn(
        self, release: ReleaseName, anchor: Anchor, sums: Float, counts: Float, cells: Cells | None = None
    ) -> None:
        """Keep what was drawn, before any of it is sent; raise ``OSError`` if the disk refuses."""
        arrays: dict[str, NDArray[Any]] = {"sums": sums, "counts": counts}
        if cells is not None:
            arrays |= {"classes": cells.classes, "centres": cells.centres}
        model = {_MODEL + name: value.detach().cpu().contiguous() for name, value in self.model().items()}
        facts = {"run": release.run, "round": release.round, "what": release.what, "anchor": list(anchor)}
        self._write(f"{_DRAWN}{release.round:05d}-{anchor.seq:05d}", facts, arrays, model)

    def keep_sent(
        self,
        key: PhaseKey,
        released: int | None,
        *arrays: NDArray[np.generic],
        asked: NDArray[np.bool_] | None = None,
    ) -> None:
        """Keep the values of an answer, before it is stored or sent; raise ``OSError`` if the disk refuses."""
        # Named by a hash of the content: an attempt that repeats the same values makes no other file.
        classes = None if asked is None else asked.tolist()
        form = [(array.dtype.str, array.shape) for array in arrays]
        digest = hashlib.sha256(repr((form, classes)).encode())
        for array in arrays:
            digest.update(np.ascontiguousarray(array).tobytes())
        name = f"{_SENT}{key.round:05d}-{key.phase.name}-{digest.hexdigest()[:16]}"
        facts = {"round": key.round, "phase": key.phase.name, "released": released, "asked": classes}
        self._write(name, facts, {str(number): array for number, array in enumerate(arrays)})

    def _write(
        self,
        name: str,
        facts: Mapping[str, object],
        arrays: Mapping[str, NDArray[np.generic]],
        model: Mapping[str, Tensor] | None = None,
    ) -> None:
        path = self.folder / f"{name}.safetensors"
        if path.exists():  # the same content: a draw is named by its payment, an answer by its hash
            return
        durable_files.make_state_folder(self.folder)
        tensors = {key: torch.tensor(np.ascontiguousarray(array)) for key, array in arrays.items()}
        content = safetensors.torch.save({**tensors, **(model or {})}, {_FACTS: json.dumps(facts)})
        durable_files.write(path, content)


def read_kept(folder: Path) -> tuple[list[Drawn], list[Sent]]:
    """Return the draws in the order of the ledger, and the values sent by round; none without a folder.

    Raises :class:`FileError` for a damaged file.
    """
    drawn = [_read_drawn(path) for path in folder.glob(f"{_DRAWN}*.safetensors")]
    sent = [_read_sent(path) for path in sorted(folder.glob(f"{_SENT}*.safetensors"))]
    return sorted(drawn, key=lambda draw: draw.anchor.seq), sent


def _read_drawn(path: Path) -> Drawn:
    facts, tensors = _read(path)
    try:
        model = {
            key.removeprefix(_MODEL): tensors.pop(key) for key in list(tensors) if key.startswith(_MODEL)
        }
        arrays = {key: tensor.numpy() for key, tensor in tensors.items()}
        return Drawn(
            ReleaseName(facts["run"], facts["round"], facts["what"]),
            Anchor(*facts["anchor"]),
            arrays["sums"],
            arrays["counts"],
            Cells(arrays["classes"], arrays["centres"]) if "centres" in arrays else None,
            model,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _damage_error(path, error) from error


def _read_sent(path: Path) -> Sent:
    facts, tensors = _read(path)
    try:
        arrays = tuple(tensors[str(number)].numpy() for number in range(len(tensors)))
        asked = None if facts["asked"] is None else np.array(facts["asked"], dtype=np.bool_)
        return Sent(facts["round"], Phase[facts["phase"]], facts["released"], arrays, asked)
    except (KeyError, TypeError, ValueError) as error:
        raise _damage_error(path, error) from error


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return json.loads(file.metadata()[_FACTS]), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no mapping)
    except (OSError, KeyError, TypeError, ValueError, safetensors.SafetensorError) as error:
        raise _damage_error(path, error) from error


def _damage_error(path: Path, error: Exception) -> FileError:
    return FileError(f"{path} is no release that a site kept ({first_line(error)}); move it away")
