"""The workloads of gpu.py: shapes and contenders."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from gpu_measure import DEVICE, HAS_CARD, GpuCase, Target
from torch import Tensor, nn

import torchvq

# (tokens, codes, features): target, as a multiple of the speed of cdist + argmin in float32.
SEARCHES = {(65536, 8192, 256): 8.0, (65536, 16384, 64): 15.0, (65536, 8192, 8): 8.0}
STEP = (49152, 1024, 128)
LEVELS = 8
BITS, BIT_TOKENS = 18, 4096
CDIST, CDIST_TF32, GEMM, COMPILED = "cdist float32", "cdist TF32", "GEMM + argmin", "compiled"
REFERENCE = "reference"
NOT_HERE = "the package vector-quantize-pytorch is not installed"


def has_reference() -> bool:
    return importlib.util.find_spec("vector_quantize_pytorch") is not None


def small(*sizes: int) -> tuple[int, ...]:
    """Without a card, everything is tiny and only shows that it runs."""
    return sizes if HAS_CARD else tuple(max(4, size // 512) for size in sizes)


@contextmanager
def tensor_float() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def with_tensor_float(run: Callable[[], object]) -> Callable[[], object]:
    def call() -> object:
        with tensor_float():
            return run()

    return call


def numbers(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(DEVICE)


def gemm_nearest(x: Tensor, codes: Tensor) -> Tensor:
    """The usual way in torch; near ties may go either way."""
    return torch.addmm(codes.square().sum(-1) / 2, x, codes.T, alpha=-1).argmin(-1)


def search_cases() -> Iterator[GpuCase]:
    compiled = torch.compile(gemm_nearest) if HAS_CARD else None
    for (n, k, d), wanted in SEARCHES.items():
        n, k, d = small(n, k, d)
        x, codes = numbers(n, d), numbers(k, d, seed=1)
        contenders: dict[str, Callable[[], object]] = {
            "torchvq": lambda x=x, codes=codes: torch.ops.torchvq.nearest_code(x, codes),
            CDIST: lambda x=x, codes=codes: torch.cdist(x, codes).argmin(-1),
            GEMM: lambda x=x, codes=codes: gemm_nearest(x, codes),
        }
        contenders[CDIST_TF32] = with_tensor_float(contenders[CDIST])
        if compiled is not None:
            contenders[COMPILED] = lambda x=x, codes=codes: compiled(x, codes)
        yield GpuCase(
            f"nearest_code {n} x {k} x {d}",
            contenders,
            Target(wanted, CDIST),
            flops=2.0 * n * k * d,
            bytes=4.0 * (n * d + k * d) + 8.0 * n,
        )


def training(module: nn.Module, x: Tensor) -> Callable[[], object]:
    """A training step without an optimizer: forward, and backward to the tokens."""
    module.train()
    leaf = x.detach().clone().requires_grad_()

    def step() -> None:
        leaf.grad = None
        output = module(leaf)
        (output[0].sum() + sum(part.sum() for part in output[2:3])).backward()

    return step


def module_case(
    name: str, ours: nn.Module, x: Tensor, wanted: float, build: Callable[[Any], nn.Module]
) -> GpuCase:
    case = GpuCase(name, {"torchvq": training(ours.to(DEVICE), x)}, Target(wanted, REFERENCE))
    if has_reference():
        import vector_quantize_pytorch

        case.contenders[REFERENCE] = training(build(vector_quantize_pytorch).to(DEVICE), x)
    else:
        case.left_out[REFERENCE] = NOT_HERE
    return case


def step_cases() -> Iterator[GpuCase]:
    n, k, d = small(*STEP)
    x = numbers(1, n, d)
    options = dict(dim=d, codebook_size=k)
    yield module_case(
        f"VectorQuantize, a training step, {n} x {k} x {d}",
        torchvq.VectorQuantize(**options),
        x,
        5.0,
        lambda package: package.VectorQuantize(**options),
    )
    stack = options | dict(num_quantizers=LEVELS)
    yield module_case(
        f"ResidualVQ of {LEVELS}, a training step, {n} x {k} x {d}",
        torchvq.ResidualVQ(**stack),
        x,
        6.0,
        lambda package: package.ResidualVQ(**stack),
    )


def entropy_case() -> GpuCase:
    """The target is memory: no matrix of tokens by codes."""
    bits, tokens = (BITS, BIT_TOKENS) if HAS_CARD else (6, 32)
    options = dict(
        codebook_size=2**bits, dim=bits, entropy_loss_weight=0.1, commitment_loss_weight=0.25
    )
    x = numbers(1, tokens, bits)
    return module_case(
        f"LFQ of {bits} bits, a training step, {tokens} tokens",
        torchvq.LFQ(**options),
        x,
        1.0,
        lambda package: package.LFQ(**options),
    )


def host_cases() -> dict[str, dict[str, Callable[[], object]]]:
    """Steps so small that the device finishes before the host, so the time is the host's; one addition shows what any
    operator costs there."""
    x = numbers(1, 64, 32)
    packages: dict[str, Any] = {"torchvq": torchvq}
    if has_reference():
        import vector_quantize_pytorch

        packages[REFERENCE] = vector_quantize_pytorch
    return {
        "VectorQuantize, training": {
            name: training(package.VectorQuantize(dim=32, codebook_size=64).to(DEVICE), x)
            for name, package in packages.items()
        }
        | {"an addition of torch": lambda: x + x},
        "FSQ, training": {
            name: training(_two(package.FSQ(levels=[5, 5, 5], dim=32)).to(DEVICE), x)
            for name, package in packages.items()
        }
        | {"its two projections alone": training(_projections().to(DEVICE), x)},
    }


class _projections(nn.Module):
    """What torch does in a step of the FSQ above: two linear layers and their gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.project_in, self.project_out = nn.Linear(32, 3), nn.Linear(3, 32)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        inner = self.project_in(x)
        return self.project_out(inner), inner


class _two(nn.Module):
    """Adapts a quantizer without a loss to those with one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        quantized, indices = self.inner(x)
        return quantized, indices
