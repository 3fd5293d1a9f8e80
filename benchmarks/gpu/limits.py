"""Bare training steps of all sites: what a device can do when nothing but the step is computed.

Every limit takes the same step, of SGD on one fixed batch a site, on other shapes or with fewer launches:

* *one by one*: each site's forward, backward and optimiser, launched from Python;
* *stacked*: all sites in one ``vmap``, so that an operation is launched once for all sites;
* *stacked in a graph*: the same, recorded as one CUDA graph and replayed;
* *graphs on streams*: each site's step as a CUDA graph of its own, replayed on a few streams side by side.

Graphs need a CUDA device. :func:`check_limits` compares all limits in float64, so that no limit is fast because it
computes something else.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state
from torch.nn import functional

from benchmarks.workloads import LR, MOMENTUM, WEIGHT_DECAY, Workload

Step = Callable[[], None]
WARM_UP = 3
"""Steps that a limit takes while it is made: the first ones allocate memory and choose kernels."""
STREAMS = 4


@dataclass(frozen=True)
class Batches:
    """One batch of each site on a device: inputs (S, B, C, H, W), int64 labels (S, B), and the sites' models."""

    models: list[nn.Module]
    inputs: Tensor
    labels: Tensor

    @classmethod
    def draw(cls, workload: Workload, device: torch.device, dtype: torch.dtype = torch.float32) -> Batches:
        """Build the models and draw a batch for each site."""
        network = workload.network()
        models = [copy.deepcopy(network).to(device, dtype) for _ in range(workload.sites)]
        inputs, labels = workload.images(workload.sites * workload.batch).tensors
        of_sites = workload.sites, workload.batch
        return cls(
            [model.train() for model in models],
            inputs.to(device, dtype).view(*of_sites, *inputs.shape[1:]),
            labels.to(device).view(of_sites),
        )


@dataclass(frozen=True)
class Limit:
    """A step that can be repeated, and the weights after it, (S, P)."""

    step: Step
    weights: Callable[[], Tensor]


def one_by_one(batches: Batches, mixed: bool) -> Limit:
    """Return the limit of a loop over the sites; with ``mixed`` in bfloat16 where autocast allows it."""
    steps = [_site_step(batches, site, mixed) for site in range(len(batches.models))]

    def step() -> None:
        for site_step in steps:
            site_step()

    _repeat(step)
    return Limit(step, lambda: _weights(batches.models))


def stacked(batches: Batches, mixed: bool) -> Limit:
    """Return the limit of one ``vmap`` over the sites."""
    parameters, buffers = stack_module_state(batches.models)
    parameters = {name: value.detach() for name, value in parameters.items()}
    momenta = {name: torch.zeros_like(value) for name, value in parameters.items()}
    architecture = copy.deepcopy(batches.models[0]).to("meta")

    def loss(weights: dict[str, Tensor], state: dict[str, Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
        with _autocast(inputs.device, mixed):
            logits = functional_call(architecture, (weights, state), (inputs,))
        return functional.cross_entropy(logits.to(weights[first].dtype), labels)

    first = next(iter(parameters))
    gradients_of_sites = torch.vmap(grad(loss), randomness="different")

    def step() -> None:
        gradients = gradients_of_sites(parameters, buffers, batches.inputs, batches.labels)
        given, weights, velocity = (
            [values[name] for name in parameters] for values in (gradients, parameters, momenta)
        )
        torch._foreach_add_(given, weights, alpha=WEIGHT_DECAY)
        torch._foreach_mul_(velocity, MOMENTUM)
        torch._foreach_add_(velocity, given)
        torch._foreach_add_(weights, velocity, alpha=-LR)

    _repeat(step)
    return Limit(step, lambda: torch.cat([value.flatten(1) for value in parameters.values()], dim=1))


def stacked_in_graph(batches: Batches, mixed: bool) -> Limit:
    """Return the limit of the stacked step, recorded as a CUDA graph."""
    stream = _stream()
    with _on(stream):
        eager = stacked(batches, mixed)
    return Limit(_capture(eager.step, stream), eager.weights)


def graphs_on_streams(batches: Batches, mixed: bool) -> Limit:
    """Return the limit of a CUDA graph for each site, replayed on :data:`STREAMS` streams."""
    streams = [_stream() for _ in range(STREAMS)]
    replays = []
    for site in range(len(batches.models)):
        # A graph is captured on the stream on which it is replayed: cuBLAS has a workspace for each stream, and graphs
        # that were captured on one stream and replayed on two would write into the same workspace.
        stream = streams[site % STREAMS]
        with _on(stream):
            step = _site_step(batches, site, mixed)
            _repeat(step)
        replays.append((_capture(step, stream), stream))

    def replay() -> None:
        current = torch.cuda.current_stream()
        for stream in streams:
            stream.wait_stream(current)
        for replay_site, stream in replays:
            with torch.cuda.stream(stream):
                replay_site()
        for stream in streams:
            current.wait_stream(stream)

    return Limit(replay, lambda: _weights(batches.models))


LIMITS: dict[str, Callable[[Batches, bool], Limit]] = {
    "one by one": one_by_one,
    "stacked": stacked,
    "stacked in a graph": stacked_in_graph,
    "graphs on streams": graphs_on_streams,
}


def limits_on(device: torch.device) -> dict[str, Callable[[Batches, bool], Limit]]:
    """Return the limits that a device can run."""
    graphs = {stacked_in_graph, graphs_on_streams}
    return {name: make for name, make in LIMITS.items() if device.type == "cuda" or make not in graphs}


def check_limits(workload: Workload, device: torch.device) -> dict[str, float]:
    """Return each limit's distance from the loop over sites, relative to the change, after some steps in float64."""
    begun = _weights(Batches.draw(workload, device, torch.float64).models)
    after = {}
    for name, make in limits_on(device).items():
        limit = make(Batches.draw(workload, device, torch.float64), False)
        limit.step()
        after[name] = limit.weights() - begun
    change = after["one by one"]
    return {name: float((moved - change).norm() / change.norm()) for name, moved in after.items()}


def _site_step(batches: Batches, site: int, mixed: bool) -> Step:
    model, inputs, labels = batches.models[site], batches.inputs[site], batches.labels[site]
    optimiser = torch.optim.SGD(
        model.parameters(), LR, MOMENTUM, weight_decay=WEIGHT_DECAY, foreach=inputs.device.type == "cuda"
    )

    def step() -> None:
        # Gradients are None at the start of a step, so that a graph's backward pass writes them and adds to nothing.
        with _autocast(inputs.device, mixed):
            logits = model(inputs)
        loss = functional.cross_entropy(logits.to(next(model.parameters()).dtype), labels)
        torch.autograd.backward(loss)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step


def _autocast(device: torch.device, mixed: bool) -> torch.autocast:
    # Without its cache: a cast weight of an earlier step would be a constant of a graph.
    return torch.autocast(device.type, torch.bfloat16, enabled=mixed, cache_enabled=False)


def _repeat(step: Step) -> None:
    for _ in range(WARM_UP):
        step()


def _stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


@contextmanager
def _on(stream: torch.cuda.Stream) -> Iterator[None]:
    """Run on a stream, after what the current one has to do and before what it will be given."""
    current = torch.cuda.current_stream()
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        yield
    current.wait_stream(stream)


def _capture(step: Step, stream: torch.cuda.Stream) -> Step:
    """Return the replay of a step's graph, which keeps the step, and so the tensors that the graph reads and writes."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()

    def replay(captured: Step = step) -> None:
        del captured
        graph.replay()

    return replay


def _weights(models: Sequence[nn.Module]) -> Tensor:
    flat = [torch.cat([value.detach().flatten() for value in model.parameters()]) for model in models]
    return torch.stack(flat)
