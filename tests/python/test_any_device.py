"""The any-device path gives the CPU's results on a GPU; `simulated_device` stands in for the GPU."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from device_cases import CASES, Case
from simulated_device import ANY, SimulatedDevice
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import torchvq

ops = torch.ops.torchvq
SEEDS = range(2)
# Searches read the number of rows still undecided, unless the library has CUDA kernels, which read nothing.
SEARCH = {
    "linear_nearest_code",
    "nearest_code",
    "projected_residual_encode",
    "quantize_and_commit",
    "residual_encode",
    "residual_beam_search",
    "sample_codes",
    "sampled_beam_search",
}
WAITS = {"keep_statistics_", "kmeans", "prepare_codes", "synced_kmeans", "synced_usage", *SEARCH}
# With several ranks, these read whether all ranks agree, or whether a code is dead.
SYNCED = {
    "handshake_",
    "synced_code_statistics",
    "synced_replace_dead_codes_",
    "synced_step_statistics",
}
# Operators of ranks whose results stay on the device.
UNREAD = {
    "all_reduce_differentiable",
    "all_reduce_statistics",
    "broadcast_state_",
    "noise_rng",
    "replica_hashes",
}
# Without a case: collectives need a group, and refinement takes data that are on the CPU.
ELSEWHERE = {
    "synced_step_statistics",
    "all_reduce_differentiable",
    "all_reduce_statistics",
    "broadcast_state_",
    "handshake_",
    "refine_codebooks",
}


def overload(case: str) -> Any:
    return getattr(ops, case.split(" ")[0]).default


def tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def on_cpu(name: str) -> list[Tensor]:
    """Results, and arguments after the call."""
    arguments, options = copy.deepcopy((CASES[name].arguments, CASES[name].options))
    result = overload(name)(*arguments, **options)
    return [*tensors(result), *tensors((arguments, options))]


def on_device(name: str, gpu: SimulatedDevice) -> list[Tensor]:
    with gpu:
        arguments, options = gpu.put((CASES[name].arguments, CASES[name].options))
        result = overload(name)(*arguments, **options)
        return tensors(gpu.get((result, arguments, options)))


def any_kernels() -> set[str]:
    names = {
        schema.name
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("torchvq::")
    }
    return {
        name.removeprefix("torchvq::")
        for name in names
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, ANY)
    }


def test_every_operator_has_a_case() -> None:
    assert any_kernels() - ELSEWHERE == {name.split(" ")[0] for name in CASES}


def compare(name: str, found: list[Tensor], expected: list[Tensor]) -> None:
    case: Case = CASES[name]
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        if case.exact or not b.is_floating_point():
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
            continue
        unit = 64 * torch.finfo(b.dtype).eps
        scale = max(1.0, b.abs().nan_to_num(0, 0, 0).max().item() if b.numel() else 0)
        torch.testing.assert_close(a, b, rtol=unit, atol=unit * scale, equal_nan=True)


@pytest.mark.parametrize("name", CASES)
def test_rounded_as_a_gpu_would(name: str) -> None:
    expected = on_cpu(name)
    found = [on_device(name, SimulatedDevice(seed=seed)) for seed in SEEDS]
    for one in found:
        compare(name, one, expected)
        if CASES[name].orderless:
            assert all(torch.equal(a, b) for a, b in zip(one, found[0], strict=True))


PRODUCTS: dict[str, dict[str, str]] = {
    "TF32": {},
    "emulated float32": {"CUBLAS_EMULATE_SINGLE_PRECISION": "1"},
    "emulated float64": {"CUBLAS_EMULATE_DOUBLE_PRECISION": "1"},
    "both emulated": {
        "CUBLAS_EMULATE_SINGLE_PRECISION": "1",
        "CUBLAS_EMULATE_DOUBLE_PRECISION": "1",
    },
}


SEARCHES = [
    name
    for name in CASES
    if name.startswith(
        ("extend_paths", "nearest_code", "projected_residual", "residual_beam", "residual_encode")
    )
    or name in ("sample_codes ties", "sample_codes ties topk", "sampled_beam_search ties")
]
ENTROPIES = [name for name in CASES if name.startswith("sign_entropy")]


@pytest.fixture
def products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The user's settings for the precision of matrix products."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    for variable, value in PRODUCTS[request.param].items():
        monkeypatch.setenv(variable, value)
    matmul.allow_tf32 = request.param == "TF32"
    yield
    matmul.allow_tf32 = before


@pytest.mark.parametrize("products", PRODUCTS, indirect=True)
@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.usefixtures("products")
def test_search_trusts_no_reduced_product(name: str) -> None:
    compare(name, on_device(name, SimulatedDevice()), on_cpu(name))


@pytest.mark.parametrize("products", ["TF32", "emulated float32"], indirect=True)
@pytest.mark.parametrize("name", ENTROPIES)
@pytest.mark.usefixtures("products")
def test_entropy_keeps_its_digits(name: str) -> None:
    compare(name, on_device(name, SimulatedDevice()), on_cpu(name))


@pytest.mark.parametrize(
    "name", [name for name in CASES if CASES[name].options.get("dtype") != torch.float64]
)
def test_without_float64_it_works_or_says_so(name: str) -> None:
    def narrow(value: Any) -> Any:
        return (
            value.float() if isinstance(value, Tensor) and value.dtype == torch.float64 else value
        )

    case, apple = CASES[name], SimulatedDevice("mps", rounds=False)
    arguments, options = torch.utils._pytree.tree_map(narrow, (case.arguments, case.options))
    operator = name.split(" ")[0]
    said = f"{operator}: expected tensors to be on a device with float64, but got mps; move them to the CPU"
    if (
        torch._C._dispatch_has_kernel_for_dispatch_key(f"torchvq::{operator}", "MPS")
        or name == "scalar_perturb"
    ):
        with apple, pytest.raises(TypeError, match=re.escape(said)):
            overload(name)(*apple.put(arguments), **apple.put(options))
    else:
        with apple:
            overload(name)(*apple.put(arguments), **apple.put(options))


@pytest.mark.parametrize("name", CASES)
def test_what_waits_for_the_device_says_so(name: str) -> None:
    """Inductor splits its graphs at operators with the tag `cudagraph_unsafe`."""
    gpu = SimulatedDevice()
    on_device(name, gpu)
    gpu.waits.clear()
    on_device(name, gpu)  # the first call copied tables
    assert {wait[0] for wait in gpu.waits} <= WAITS


def test_tags() -> None:
    kernels = torch._C._dispatch_has_kernel_for_dispatch_key("torchvq::nearest_code", "CUDA")
    expected = {*WAITS, *SYNCED, "refine_codebooks"} - (SEARCH if kernels else set())
    unsafe = torch.Tag.cudagraph_unsafe
    assert {name for name in any_kernels() if unsafe in getattr(ops, name).default.tags} == expected


def test_operators_that_meet_other_ranks_say_whether_they_wait() -> None:
    """Each operator that has its own kernel and takes a group either waits or is listed as reading nothing."""
    meets = {
        schema.name.removeprefix("torchvq::")
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("torchvq::")
        and any(argument.name == "group_name" for argument in schema.arguments)
    }
    assert meets & any_kernels() == {
        *SYNCED,
        *UNREAD,
        *WAITS - SEARCH - {"kmeans", "prepare_codes"},
        "refine_codebooks",
    }


class Called(TorchDispatchMode):
    """Records the names of our operators that reach a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function.namespace == "torchvq":
            self.names.add(function._schema.name.removeprefix("torchvq::"))
        return function(*args, **(kwargs or {}))


def test_steps_of_one_process_call_nothing_that_waits_for_ranks() -> None:
    """So the tag splits none of their graphs."""
    modules = [
        torchvq.VectorQuantize(
            dim=8, codebook_size=16, affine_param=True, threshold_ema_dead_code=2
        ),
        torchvq.ResidualVQ(dim=8, codebook_size=16, num_quantizers=3, shared_codebook=True),
        torchvq.LFQ(dim=8, codebook_size=256),
    ]
    for module in modules:
        called = Called()
        x = torch.randn(2, 12, 8)
        with called:
            module.train()(x)
        assert called.names
        assert not called.names & SYNCED, type(module)


def test_search_waits_twice_at_most_and_once_where_all_is_certain() -> None:
    """Rows left open by any chunk are decided together, so the number of launches does not grow with them."""
    certain, open_rows = SimulatedDevice(), SimulatedDevice()
    on_device("nearest_code", certain)
    on_device("nearest_code ties", open_rows)
    heads = 2
    assert len(certain.waits) == heads
    assert len(open_rows.waits) == 2
    features = CASES["nearest_code ties"].arguments[0].shape[-1]
    # One search, and two sums in the order of the features: of the scores, and of the distances.
    assert open_rows.calls["add_"] <= 2 * features + 10


def test_gradients_of_lookups_have_one_order() -> None:
    folder = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, str(folder / "device_gradients.py")],
        env=os.environ | {"PYTHONPATH": str(Path(torchvq.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["lookup_codes", "residual_decode", "nearest_code"]
