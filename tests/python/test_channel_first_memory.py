"""Inputs with features first: tokens are copied to contiguous memory by a kernel, and their gradients back.

Oracle: torch's own transposes; copies have the same bits.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchvq

ops = torch.ops.torchvq

# Whole blocks of every instruction set, with rests in one axis or both, and inputs too small for the kernel.
SHAPES = [
    (2, 64, 128),
    (3, 37, 131),
    (1, 16, 4097),
    (2, 5, 1000),
    (4, 300, 7, 9),
    (2, 33, 4, 6, 11),
    (2, 8, 9),
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def expected_tokens(x: Tensor) -> Tensor:
    return x.flatten(2).transpose(1, 2)


def numbered(*shape: int, dtype: torch.dtype) -> Tensor:
    """Elements that differ from their neighbours in every axis, also in half precision; infinite ones and NaN, too."""
    x = (torch.arange(torch.Size(shape).numel()) % 1009).view(shape).to(dtype)
    x.view(-1)[3], x.view(-1)[-2] = torch.nan, -torch.inf
    return x


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(
        a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tokens_and_gradients_are_those_of_torchs_transpose(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x = numbered(*shape, dtype=dtype).requires_grad_()
    tokens = ops.pack_tokens(x, True)
    assert same_bits(tokens.detach(), expected_tokens(x.detach()))
    large = x.numel() >= 4096 and dtype != torch.float64
    assert tokens.is_contiguous() == large
    gradient = numbered(*tokens.shape, dtype=dtype)
    (found,) = torch.autograd.grad(tokens, x, gradient)
    assert same_bits(found, gradient.transpose(1, 2).reshape(shape))
    assert not large or found.is_contiguous()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_unpacking_is_the_inverse(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = numbered(*shape, dtype=dtype)
    tokens = ops.pack_tokens(x, True).detach().contiguous().requires_grad_()
    back = ops.unpack_tokens(tokens, x, True)
    assert same_bits(back.detach(), x)
    for gradient in (x, x.movedim(1, -1).contiguous().movedim(-1, 1)):
        (found,) = torch.autograd.grad(back, tokens, gradient, retain_graph=True)
        assert same_bits(found, expected_tokens(x))
    back.data.zero_()
    assert not back.is_contiguous() or same_bits(tokens.detach(), expected_tokens(x))


@pytest.mark.parametrize("view", ["channels last", "every other", "expanded", "conjugated"])
def test_inputs_that_are_not_contiguous(view: str) -> None:
    x = torch.randn(2, 64, 16, 16)
    made = {
        "channels last": lambda: x.contiguous(memory_format=torch.channels_last),
        "every other": lambda: torch.randn(2, 64, 16, 32)[..., ::2],
        "expanded": lambda: torch.randn(2, 1, 16, 16).expand(2, 64, 16, 16),
        "conjugated": lambda: torch.view_as_complex(torch.randn(2, 64, 16, 16, 2)).conj().imag,
    }[view]()
    assert same_bits(ops.pack_tokens(made, True), expected_tokens(made))


def test_channels_last_inputs_and_outputs_are_not_copied() -> None:
    x = torch.randn(2, 64, 16, 16).contiguous(memory_format=torch.channels_last).requires_grad_()
    tokens = ops.pack_tokens(x, True)
    assert tokens.data_ptr() == x.data_ptr()
    back = ops.unpack_tokens(tokens * 1, x, True)
    assert back.is_contiguous(memory_format=torch.channels_last)


def test_inputs_get_no_gradient_where_the_output_has_none_of_theirs() -> None:
    x = torch.randn(2, 8, 32, 33, requires_grad=True)
    quantizer = torchvq.SimVQ(dim=8, codebook_size=32, channel_first=True).eval()
    # In evaluation the output is the code, whose gradient goes to the transform alone.
    quantizer(x)[0].sum().backward()
    assert x.grad is None


def test_second_derivatives_and_transforms() -> None:
    x = torch.randn(2, 32, 100, dtype=torch.float32, requires_grad=True)
    (first,) = torch.autograd.grad(ops.pack_tokens(x, True).pow(3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(second, 6 * x.detach())
    pack = lambda t: ops.pack_tokens(t, True)  # noqa: E731
    value, tangent = torch.func.jvp(pack, (x.detach(),), (torch.ones_like(x),))
    assert torch.equal(value, expected_tokens(x.detach()))
    assert torch.equal(tangent, torch.ones_like(value))
    many = torch.randn(3, 2, 32, 100)
    assert torch.equal(torch.vmap(pack)(many), many.transpose(2, 3))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x.detach(), torch.ones_like(x))
        assert torch.autograd.forward_ad.unpack_dual(pack(dual)).tangent is not None
    assert torch.equal(torch.compile(pack, backend="aot_eager")(x.detach()), pack(x.detach()))


MODULES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("VectorQuantize", dict(dim=48, codebook_size=32), dict(channel_last=False)),
    (
        "VectorQuantize",
        dict(dim=48, codebook_dim=8, codebook_size=32, rotation_trick=False),
        dict(channel_last=False),
    ),
    ("VectorQuantize", dict(dim=48, codebook_size=32, heads=2), dict(channel_last=False)),
    ("VectorQuantize", dict(dim=48, codebook_size=32, use_cosine_sim=True), dict(channel_last=False)),
    ("ResidualVQ", dict(dim=48, codebook_size=32, num_quantizers=3), dict(channel_last=False)),
    ("FSQ", dict(levels=[8, 5, 5], dim=48), dict(channel_first=True)),
    ("LFQ", dict(codebook_size=256, dim=48), dict(channel_first=True)),
]  # fmt: skip


def twins(name: str, options: dict[str, Any], first: dict[str, Any]) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    last = getattr(torchvq, name)(**options, **{option: not on for option, on in first.items()})
    turned = getattr(torchvq, name)(**options, **first)
    turned.load_state_dict(last.state_dict())
    return last, turned


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", MODULES, ids=lambda case: f"{case[0]} {case[1]}")
def test_training_with_features_first_is_training_with_features_last(
    case: tuple[str, dict[str, Any], dict[str, Any]],
    dtype: torch.dtype,
    memory: torch.memory_format,
) -> None:
    last, first = twins(*case)
    for step in range(2):
        tokens = torch.randn(2, 16, 12, 48, generator=torch.Generator().manual_seed(step)).to(dtype)
        maps = tokens.movedim(-1, 1).contiguous(memory_format=memory)
        inputs = tokens.requires_grad_(), maps.requires_grad_()
        found = last(inputs[0]), first(inputs[1])
        assert torch.equal(found[0][0].movedim(-1, 1), found[1][0])
        assert torch.equal(found[0][1], found[1][1])
        gradient = torch.randn_like(tokens)
        sums = [
            (output[0] * own).sum() + (output[2].sum() if len(output) > 2 else 0)
            for output, own in zip(found, (gradient, gradient.movedim(-1, 1)), strict=True)
        ]
        grads = [torch.autograd.grad(total, x)[0] for total, x in zip(sums, inputs, strict=True)]
        assert torch.equal(grads[0].movedim(-1, 1), grads[1])
    for name, value in last.state_dict().items():
        assert torch.equal(value, first.state_dict()[name]), name
