"""Tables of the codec: names are compared with the schema and the dataclass when a shape is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from protoseal_wire.codec.shapes import PLAIN, name, one_of, shape, sole
from protoseal_wire.messages import TaskRequest, Wait
from protoseal_wire.v1 import protoseal_pb2 as pb


@dataclass(frozen=True)
class LongRequest:
    """Request with a field that the schema does not have."""

    protocol: int
    run: str
    later: int


MISMATCHES: list[tuple[Callable[[], object], str]] = [
    (lambda: shape(pb.TaskRequest, TaskRequest, protocol=PLAIN), "run"),
    (lambda: shape(pb.TaskRequest, TaskRequest, protocol=PLAIN, run=PLAIN, later=PLAIN), "later"),
    (lambda: shape(pb.TaskRequest, LongRequest, protocol=PLAIN, run=PLAIN), "later"),
    (lambda: shape(pb.CheckReply, TaskRequest, protocol=PLAIN, run=PLAIN), "may_join"),
    (lambda: sole(pb.TaskRequest, "run", name("run")), "protocol"),
    (lambda: one_of(pb.Task, wait=(Wait, shape(pb.Wait, Wait))), "stopped"),
]


@pytest.mark.parametrize(("build", "field"), MISMATCHES)
def test_shape_other_names_than_schema_or_dataclass_raises(build: Callable[[], object], field: str) -> None:
    with pytest.raises(TypeError, match=field):
        build()
