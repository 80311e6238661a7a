"""Checks for a CUDA card. test_cuda.py runs them as tests, benchmarks/python/gpu.py where there is no pytest."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import torchvq

sys.path.append(str(Path(__file__).resolve().parents[1] / "matrix"))

import classes
import nearest_code_rows
from device_cases import CASES

ops = torch.ops.torchvq
# Rows that draw the number of levels on the host, or begin with k-means, which reads its progress from the device.
HOST_DECIDES = {name for name in classes.ROWS if "dropout" in name} | {"vq_kmeans"}
# Rows whose codes only our operators compute: they learn the same bits as on the CPU.
LEARNS_ALIKE = [
    "vq",
    "vq_cosine",
    "vq_dead_codes",
    "residual_vq",
    "residual_vq_shared",
    "grouped_residual_vq",
]
STEPS = 3


def has_kernel(operator: str) -> bool:
    """Whether the library has a CUDA kernel of the operator, not only the any-device path in plain torch."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"torchvq::{operator}", "CUDA")


def tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def moved(tree: Any, device: str = "cuda") -> Any:
    return torch.utils._pytree.tree_map(
        lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, tree
    )


def operator_gives_the_cpus_results(name: str) -> None:
    """Results, and arguments after the call; sums of many numbers up to rounding."""
    case = CASES[name]
    operator = getattr(ops, name.split(" ")[0])
    given = copy.deepcopy((case.arguments, case.options))
    there = moved(given)
    expected = [*tensors(operator(*given[0], **given[1])), *tensors(given)]
    found = [*tensors(operator(*there[0], **there[1])), *tensors(there)]
    for a, b in zip(found, expected, strict=True):
        alike(a.cpu(), b, exact=case.exact)


def alike(found: Tensor, expected: Tensor, exact: bool) -> None:
    if exact or not expected.is_floating_point():
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        return
    unit = 64 * torch.finfo(expected.dtype).eps
    scale = max(1.0, expected.abs().nan_to_num(0, 0, 0).max().item() if expected.numel() else 0)
    torch.testing.assert_close(found, expected, rtol=unit, atol=unit * scale, equal_nan=True)


def search_is_exact(kind: str, metric: str, rows: int = 2000) -> None:
    """The adversarial rows of the exactness suite."""
    generator = torch.Generator().manual_seed(0)
    x, codebook = nearest_code_rows.KINDS[kind](rows, 512, 16, generator)
    expected = ops.nearest_code(x, codebook, metric=metric, return_distances=True)
    found = ops.nearest_code(x.cuda(), codebook.cuda(), metric=metric, return_distances=True)
    for a, b in zip(found, expected, strict=True):
        alike(a.cpu(), b, exact=True)


def training_step(module: nn.Module, x: Tensor) -> classes.Seen:
    seen = classes.forward(module, x)
    if seen.quantized.requires_grad:
        (seen.quantized.float().sum() + seen.loss.sum()).backward()
    return seen


def learns_what_the_cpu_learns(row: str) -> None:
    here, there = classes.build(row).train(), classes.build(row).train().cuda()
    for step in range(STEPS):
        x = classes.data(row, step)
        alike(
            training_step(there, x.cuda()).indices.cpu(), training_step(here, x).indices, exact=True
        )
    state = there.state_dict()
    for name, expected in here.state_dict().items():
        alike(state[name].cpu(), expected, exact=True)


def step_does_not_wait(row: str) -> None:
    """A step of training and one of evaluation, after a first one that compiles and copies tables."""
    module = classes.build(row).cuda()
    x = classes.data(row).cuda().requires_grad_()
    for training in (True, False):
        module.train(training)
        training_step(module, x)
        with _without_waiting():
            training_step(module, x)


class _without_waiting:
    def __enter__(self) -> None:
        torch.cuda.set_sync_debug_mode("error")

    def __exit__(self, *exception: object) -> None:
        torch.cuda.set_sync_debug_mode("default")


def graph_records(row: str, training: bool) -> None:
    """A step recorded as a CUDA graph, replayed on other data, gives the same as an eager step."""
    recorded, eager = classes.build(row).cuda(), classes.build(row).cuda()
    for module in (recorded, eager):
        module.train(training)
    x = classes.data(row).cuda()
    step: Callable[[nn.Module, Tensor], classes.Seen] = training_step if training else _evaluation
    x.requires_grad_(training)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step(recorded, x)
    torch.cuda.current_stream().wait_stream(side)
    step(eager, x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        seen = step(recorded, x)
    # Recording executes nothing, so both modules have done one step.
    for number in (1, 2):
        fresh = classes.data(row, number).cuda()
        with torch.no_grad():
            x.copy_(fresh)
        graph.replay()
        expected = step(eager, fresh.requires_grad_(training))
        alike(seen.indices, expected.indices, exact=True)
    state = eager.state_dict()
    for name, value in recorded.state_dict().items():
        alike(value, state[name], exact=True)


def _evaluation(module: nn.Module, x: Tensor) -> classes.Seen:
    with torch.no_grad():
        return classes.forward(module, x)


def all_checks() -> dict[str, Callable[[], None]]:
    """Every check, by name."""
    checks: dict[str, Callable[[], None]] = {}

    def add(check: Callable[..., None], *arguments: Any) -> None:
        checks[" ".join([check.__name__, *map(str, arguments)])] = lambda: check(*arguments)

    for name in CASES:
        add(operator_gives_the_cpus_results, name)
    for kind in nearest_code_rows.KINDS:
        for metric in ("euclidean", "cosine"):
            add(search_is_exact, kind, metric)
    for row in LEARNS_ALIKE:
        add(learns_what_the_cpu_learns, row)
    if has_kernel("nearest_code"):
        for row in sorted(classes.ROWS.keys() - HOST_DECIDES):
            add(step_does_not_wait, row)
        for row in LEARNS_ALIKE:
            add(graph_records, row, False)
            add(graph_records, row, True)
    return checks


def run(checks: dict[str, Callable[[], None]]) -> dict[str, str]:
    """The result of each check: empty, or why it failed."""
    return {name: _why_it_fails(check) for name, check in checks.items()}


def _why_it_fails(check: Callable[[], None]) -> str:
    try:
        check()
    except Exception as error:  # one failing check must not hide the others
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    return ""


__all__ = ["all_checks", "run", "torchvq"]
