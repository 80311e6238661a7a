"""Checks for a CUDA card. test_cuda.py runs them as tests, benchmarks/python/gpu.py where there is no pytest."""

from __future__ import annotations

import copy
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

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
# The card's logarithm is off by one unit in the last place; the simulated device has that of the CPU.
ROUNDED_BY_THE_CARD = {"binary_kl_loss quotient"}
# The program of tests/cpp/run.cpp for a class, by the end of the class's name; others are "scalar" with a class.
CPP_PROGRAMS = {
    "VectorQuantize": "vector_quantize",
    "ResidualVQ": "residual_vq",
    "SimVQ": "sim_vq",
    "RandomProjectionQuantizer": "sim_vq",
    "HierarchicalVQ": "hierarchical_vq",
    "FSQ": "fsq",
    "LFQ": "lfq",
}
# What these rows are made of are Python's callables and layers.
WITHOUT_CPP_PROGRAM = {"evo_lfq", "latent_in_place", "sequential"}
STEPS = 3
# Tokens, codes and features.
SHAPES = [
    *((4096, 1024, 8), (4096, 1024, 17), (4096, 1000, 32), (20000, 1024, 64), (777, 8192, 100)),
    *((4096, 16384, 64), (4096, 1024, 256), (3000, 2000, 512), (500, 1024, 1025), (1, 1024, 128)),
    *((64, 1024, 128), (3, 1, 64), (30000, 2, 300)),
]


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
    exact = case.exact and name not in ROUNDED_BY_THE_CARD
    for a, b in zip(found, expected, strict=True):
        alike(a.cpu(), b, exact)


def alike(found: Tensor, expected: Tensor, exact: bool) -> None:
    if exact or not expected.is_floating_point():
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        return
    unit = 64 * torch.finfo(expected.dtype).eps
    scale = max(1.0, expected.abs().nan_to_num(0, 0, 0).max().item() if expected.numel() else 0)
    torch.testing.assert_close(found, expected, rtol=unit, atol=unit * scale, equal_nan=True)


def search_is_exact(kind: str, metric: str, dim: int, rows: int = 2000) -> None:
    """The adversarial rows of the exactness suite; more than 16 features go to the tensor cores."""
    generator = torch.Generator().manual_seed(0)
    x, codebook = nearest_code_rows.KINDS[kind](rows, 512, dim, generator)
    expected = ops.nearest_code(x, codebook, metric=metric, return_distances=True)
    found = ops.nearest_code(x.cuda(), codebook.cuda(), metric=metric, return_distances=True)
    for a, b in zip(found, expected, strict=True):
        alike(a.cpu(), b, exact=True)


def search_is_exact_at(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    """Shapes of real use: tokens beside codes, and half of them halfway between two."""
    generator = torch.Generator().manual_seed(1)
    rows, codes, dim = shape
    beside, codebook = nearest_code_rows.near_codes(rows // 2, codes, dim, generator)
    noise = torch.randn(rows - rows // 2, dim, generator=generator)
    between = nearest_code_rows.middles(noise, codebook, 1e-3, generator)
    x = torch.cat([beside, between]).to(dtype)
    codebook = codebook.to(dtype)
    alike(
        ops.nearest_code(x.cuda(), codebook.cuda())[0].cpu(), ops.nearest_code(x, codebook)[0], True
    )


def training_step(module: nn.Module, x: Tensor) -> classes.Seen:
    seen = classes.forward(module, x)
    if seen.quantized.requires_grad:
        (seen.quantized.float().sum() + seen.loss.sum()).backward()
    return seen


def learns_what_the_cpu_learns(row: str, dtype: torch.dtype) -> None:
    here, there = classes.build(row).train(), classes.build(row).train().cuda()
    for step in range(STEPS):
        x = classes.data(row, step, dtype=dtype)
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


def steps_in_every_precision(row: str) -> None:
    """Two steps of training and one of evaluation, in mixed precision and as a module of bfloat16, without NaN."""
    for dtype, mixed in ((torch.float16, True), (torch.bfloat16, True), (torch.bfloat16, False)):
        module = classes.build(row).cuda()
        if not mixed:
            module = module.to(dtype)
        for number in range(3):
            module.train(number < 2)
            x = classes.data(row, number, dtype=torch.float32 if mixed else dtype).cuda()
            with torch.autocast("cuda", dtype, enabled=mixed):
                seen = training_step(module, x.requires_grad_(number < 2))
            assert seen.quantized.isfinite().all() and seen.loss.isfinite().all(), (dtype, mixed)


def comes_back_from_the_card(row: str) -> None:
    """What a module has learned on the card, on the CPU: the same indices for the same tokens."""
    module = classes.build(row).cuda()
    for step in range(STEPS):
        training_step(module.train(), classes.data(row, step).cuda())
    fresh = classes.build(row, seed=1)
    fresh.load_state_dict({name: value.cpu() for name, value in module.state_dict().items()})
    x = classes.data(row, STEPS)
    here, there = _evaluation(fresh.eval(), x), _evaluation(module.eval(), x.cuda())
    alike(there.indices.cpu(), here.indices, exact=True)


def cpp_module_does_what_it_does_on_the_cpu(row: str) -> None:
    """Steps of training and one of evaluation of the C++ module: outputs, gradients and states."""
    from cli_support import run_cpp_module

    name, options = classes.ROWS[row].name, classes.ROWS[row].options
    program = next((p for end, p in CPP_PROGRAMS.items() if name.endswith(end)), "scalar")
    words = [f"{option}={value}" for option, value in options.items()]
    if program in ("sim_vq", "scalar"):
        words.append(f"class={name}")
    given = {f"state.{key}": value for key, value in classes.build(row).state_dict().items()}
    for step in range(STEPS):
        x = classes.data(row, step)
        given |= {
            f"{step}.x": x,
            f"{step}.weight": _weight(row, x),
            f"{step}.seed": torch.tensor(7),
        }
    given["eval.x"] = classes.data(row, STEPS)
    with tempfile.TemporaryDirectory() as folder:
        here = run_cpp_module(program, given, words, Path(folder))
        there = run_cpp_module(program, given, [*words, "device=cuda"], Path(folder))
    assert here.keys() == there.keys()
    for result, expected in here.items():
        exact = not expected.is_floating_point()
        try:
            alike(there[result], expected, exact)
        except AssertionError as error:
            raise AssertionError(f"{result}: {error}") from error


def _weight(row: str, x: Tensor) -> Tensor:
    """The gradient of the output; BinaryMapper's has a place for each code."""
    return (
        torch.randn(*x.shape[:-1], 2 ** x.shape[-1])
        if row.startswith("binary")
        else torch.randn_like(x)
    )


def compiles(row: str, mode: str) -> None:
    """Compiled steps have the indices and the states of eager ones."""
    eager, module = classes.build(row).cuda().train(), classes.build(row).cuda().train()
    compiled = torch.compile(module, mode=mode)
    for step in range(STEPS + 1):
        x = classes.data(row, step).cuda()
        # Gradients that stay would be results of a graph that runs again.
        for each in (eager, module):
            each.zero_grad()
        found = classes.forward(compiled, x.clone().requires_grad_())
        (found.quantized.float().sum() + found.loss.sum()).backward()
        expected = training_step(eager, x.clone().requires_grad_())
        alike(found.indices, expected.indices, exact=True)
    state = eager.state_dict()
    for name, value in module.state_dict().items():
        alike(value, state[name], exact=True)


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

    for check, rows in CHECKS.items():
        for arguments in rows:
            add(check, *arguments)
    return checks


def lacking(name: str) -> str:
    """What a check needs that is not here; empty: nothing."""
    if name.startswith((step_does_not_wait.__name__, graph_records.__name__)):
        # Searches by torch wait for the device.
        return "" if has_kernel("nearest_code") else "a CUDA kernel of nearest_code in this library"
    if name.startswith(cpp_module_does_what_it_does_on_the_cpu.__name__):
        return "" if has_cpp_program() else "the program torchvq_run (tests/cpp/run.cpp)"
    return ""


def has_cpp_program() -> bool:
    """Whether there is the C++ side of comparisons, and the package that passes tensors to it."""
    try:
        from cli_support import cpp_program

        cpp_program()
    except (FileNotFoundError, ImportError):  # the latter without safetensors
        return False
    return True


# Each check, and the arguments of its cases.
CHECKS: dict[Callable[..., None], list[tuple[Any, ...]]] = {
    search_is_exact_at: [
        (shape, dtype)
        for shape in SHAPES
        for dtype in (torch.float32, torch.float16, torch.bfloat16)
    ],
    compiles: [
        (row, mode)
        for row in ("vq", "vq_dead_codes", "residual_vq", "vq_learnable")
        for mode in ("default", "reduce-overhead")
    ],
    operator_gives_the_cpus_results: [(name,) for name in CASES],
    search_is_exact: [
        (kind, metric, dim)
        for kind in nearest_code_rows.KINDS
        for metric in ("euclidean", "cosine")
        for dim in (16, 200)
    ],
    learns_what_the_cpu_learns: [
        (row, dtype) for row in LEARNS_ALIKE for dtype in (torch.float32, torch.bfloat16)
    ],
    comes_back_from_the_card: [(row,) for row in LEARNS_ALIKE],
    cpp_module_does_what_it_does_on_the_cpu: [
        (row,) for row in sorted(classes.ROWS.keys() - WITHOUT_CPP_PROGRAM)
    ],
    steps_in_every_precision: [(row,) for row in classes.ROWS],
    step_does_not_wait: [(row,) for row in sorted(classes.ROWS.keys() - HOST_DECIDES)],
    graph_records: [(row, training) for row in LEARNS_ALIKE for training in (False, True)],
}
