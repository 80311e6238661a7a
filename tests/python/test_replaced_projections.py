"""Projections that a user puts in place of the identities after construction: forward and decoding take the same."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import torchvq

MODULES: dict[str, tuple[str, dict[str, Any]]] = {
    "lfq": ("LFQ", dict(dim=4, codebook_size=16)),
    "fsq": ("FSQ", dict(levels=[4, 5, 3, 3])),
    "fsp": ("FSP", dict(levels=[4, 5, 3, 3])),
    "latent": ("LatentQuantize", dict(levels=[4, 5, 3, 3], dim=4, channel_first=False)),
    "residual_lfq": ("ResidualLFQ", dict(dim=4, codebook_size=16, num_quantizers=2)),
    "residual_fsq": ("ResidualFSQ", dict(levels=[4, 5, 3, 3], dim=4, num_quantizers=2)),
    "residual_sim_vq": ("ResidualSimVQ", dict(dim=4, codebook_size=8, num_quantizers=2)),
    "vq": ("VectorQuantize", dict(dim=4, codebook_size=8)),
    "residual_vq": ("ResidualVQ", dict(dim=4, codebook_size=8, num_quantizers=2)),
}


@pytest.mark.parametrize("name", MODULES)
def test_decoding_is_the_output_and_padding_is_zero(name: str) -> None:
    kind, options = MODULES[name]
    module = getattr(torchvq, kind)(**options).eval()
    module.project_in, module.project_out = nn.Linear(4, 4), nn.Linear(4, 4)
    x, mask = torch.randn(2, 5, 4), torch.tensor([[1, 1, 0, 0, 1], [1, 0, 0, 1, 1]]).bool()
    output, indices = module(x, mask=mask)[:2]
    decode = getattr(module, "get_output_from_indices", None) or module.indices_to_codes
    assert output[~mask].abs().max() == 0
    assert output[mask].abs().min() > 0
    torch.testing.assert_close(decode(indices), output)


@pytest.mark.parametrize("name", MODULES)
def test_masks_and_indices_that_are_no_tensors_are_type_errors(name: str) -> None:
    kind, options = MODULES[name]
    module = getattr(torchvq, kind)(**options).eval()
    with pytest.raises(TypeError, match="expected mask to be bool, but got list"):
        module(torch.randn(1, 2, 4), mask=[True, True])
    decode = getattr(module, "get_output_from_indices", None) or module.indices_to_codes
    with pytest.raises(TypeError, match="expected indices to be a tensor, but got NoneType"):
        decode(None)


@pytest.mark.parametrize("kind", ["hooked", "replaced"])
def test_the_commitment_loss_of_the_reference_does_not_depend_on_identities(kind: str) -> None:
    torch.manual_seed(0)
    plain = torchvq.VectorQuantize(4, 7, use_cosine_sim=True, vqp_compat=True)
    module = copy.deepcopy(plain)
    if kind == "hooked":
        module.project_in.register_forward_hook(lambda *_: None)
    else:
        module.project_in = nn.Sequential(nn.Identity())
    x, mask = torch.randn(2, 5, 4), torch.tensor([[1, 1, 0, 0, 1], [1, 0, 0, 1, 1]]).bool()
    seen = []
    for vq in (plain, module):
        leaf = x.clone().requires_grad_()
        quantized, _, loss = vq(leaf, mask=mask)
        (quantized.sum() + loss.sum()).backward()
        seen.append((quantized, loss, leaf.grad))
    for expected, found in zip(*seen, strict=True):
        torch.testing.assert_close(found, expected)


def test_a_replaced_projection_may_change_the_width_of_masked_tokens() -> None:
    vq = torchvq.VectorQuantize(4, 7, vqp_compat=True)
    vq.dim, vq.project_in, vq.project_out = 6, nn.Linear(6, 4), nn.Linear(4, 6)
    x, mask = torch.randn(2, 5, 6), torch.tensor([[1, 1, 0, 0, 1], [1, 0, 0, 1, 1]]).bool()
    assert vq(x, mask=mask)[2].isfinite()
