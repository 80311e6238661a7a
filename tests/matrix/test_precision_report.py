"""precision_report for every class: its numbers follow the dtype policy, and the module does not change."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from classes import ROWS, build, data, state

import torchvq


@pytest.mark.parametrize("row", ROWS)
def test_precision_report(row: str) -> None:
    module, x = build(row), data(row)
    before, training = state(module), module.training
    generator = torch.get_rng_state()
    rows = torchvq.precision_report(module, x)
    assert module.training == training and torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(tensor, before[name]) for name, tensor in state(module).items())
    assert all(parameter.grad is None for parameter in module.parameters())
    assert [(each.dtype, each.how) for each in rows] == [
        (torch.float32, "input"), (torch.float32, "module"),
        (torch.bfloat16, "input"), (torch.bfloat16, "module"), (torch.bfloat16, "autocast"),
        (torch.float16, "input"), (torch.float16, "module"), (torch.float16, "autocast"),
    ]  # fmt: skip
    for each in rows:
        numbers = (each.tokens_changed, each.loss_difference, each.output_difference, each.seconds)
        assert all(math.isfinite(number) and number >= 0 for number in numbers), each
        if each.dtype == torch.float32:
            assert numbers[:3] == (0, 0, 0)
        elif next(module.parameters(), None) is None:
            assert each.tokens_changed == 0
            assert each.output_difference < torch.finfo(each.dtype).eps


SCALES = dict(scales=(1, 64, 512), channel_first=False, kmeans_init=False)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("VectorQuantize", dict(codebook_size=256, codebook_dim=4)),
        ("FSQ", dict(levels=[255, 255], vqp_compat=True)),  # int32
        ("HierarchicalVQ", dict(codebook_size=256, **SCALES)),  # a tuple
    ],
    ids=["VectorQuantize", "FSQ", "HierarchicalVQ"],
)
def test_rounding_is_seen(name: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    module = getattr(torchvq, name)(dim=8, **options)
    rows = torchvq.precision_report(module, torch.randn(4, 512, 8), dtypes=[torch.bfloat16])
    assert all(each.tokens_changed > 0 for each in rows if each.how == "module")


def test_integers_are_refused() -> None:
    with pytest.raises(TypeError, match="precision_report: expected dtypes to be floating point"):
        torchvq.precision_report(build("vq"), data("vq"), dtypes=[torch.int32])
