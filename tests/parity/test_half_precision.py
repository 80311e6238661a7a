"""What modules in half precision decode to, against the reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import vector_quantize_pytorch as reference

import torchvq

STACK: dict[str, Any] = dict(dim=4, codebook_size=16, num_quantizers=8)


@pytest.mark.parametrize("options", [{}, dict(learnable_codebook=True, ema_update=False)])
def test_modules_in_half_precision(options: dict[str, Any]) -> None:
    """They decode in their dtype, in both; codes that are state stay float32."""
    found = []
    for package in (reference, torchvq):
        stack = package.ResidualVQ(**STACK, **options).bfloat16()
        assert stack.get_codes_from_indices(torch.ones(2, 3, 8).long()).dtype == torch.bfloat16
        found.append(stack.codebooks.dtype)
    assert found == [torch.bfloat16, torch.bfloat16 if options else torch.float32]


def test_scalars_in_half_precision_decode_to_it() -> None:
    indices = torch.ones(2, 3).long()
    for name, options in {
        "FSQ": dict(levels=[5, 5], channel_first=False),
        "LatentQuantize": dict(levels=[5, 5], dim=2),
    }.items():
        codes = [
            getattr(package, name)(**options).bfloat16().indices_to_codes(indices)
            for package in (reference, torchvq)
        ]
        assert [own.dtype for own in codes] == [torch.float32, torch.bfloat16], name
