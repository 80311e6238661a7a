"""HierarchicalVQ by one operator (python/torchvq/_hierarchical/at_once.py) learns what it learns scale by scale."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hierarchical_vq_cases import DIM, build, data, half_mask
from torch import nn
from torch.nn.utils import parametrize, prune

from torchvq import HierarchicalVQ
from torchvq._hierarchical import scales

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "own": dict(shared_codebook=False),
    # By powers of two, products and sums exchange without rounding.
    "phis": dict(share_quant_resi=2, quant_resi=0.25),
    "own phis": dict(share_quant_resi=0, shared_codebook=False),
    "rotation": dict(rotation_trick=True),
    "dropout": dict(nested_dropout=0.7),
    "own dropout": dict(nested_dropout=0.7, shared_codebook=False, share_quant_resi=0),
    "weight": dict(commitment_weight=0.25),
    "no commitment": dict(commitment_weight=0.0),
    "dead codes": dict(threshold_ema_dead_code=2),
    "frozen": dict(freeze_codebook=True),
    "no convolution": dict(quant_resi=0.0),
    "kept": dict(sync_every=2),
}
IN_TURN: dict[str, dict[str, Any]] = {
    "cosine": dict(use_cosine_sim=True),
    "sampled": dict(stochastic_sample_codes=True),
    "orthogonal": dict(orthogonal_reg_weight=0.1),
    "compatible": dict(vqp_compat=True),
}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each forward of the test was one operator."""
    found: list[bool] = []
    decide = scales.can_walk_at_once

    def decided(*arguments: Any) -> bool:
        found.append(decide(*arguments))
        return found[-1]

    monkeypatch.setattr(scales, "can_walk_at_once", decided)
    return found


def trained(module: HierarchicalVQ, axes: int) -> list[torch.Tensor]:
    """All that three steps and an evaluation return and leave behind."""
    found: list[torch.Tensor] = []
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for step in range(3):
        x = (data(4, DIM, *[5, 6, 3][:axes]) * (step + 1)).requires_grad_()
        quantized, indices, loss = module(x)
        (quantized.pow(2).mean() + loss).backward()
        found += [quantized, *indices, loss, x.grad]
        optimizer.step()
        optimizer.zero_grad()
    module.eval()
    quantized, indices, loss = module(x)
    decoded = module.get_output_from_indices(indices, x.shape[2:])
    assert torch.equal(decoded, quantized)
    counts = [torch.tensor([part.tokens, part.replaced]) for part in module.stats()]
    return [*found, quantized, *indices, loss, *module.state_dict().values(), *counts]


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("name", OPTIONS)
def test_is_scale_by_scale_bit_for_bit(name, axes, calls, monkeypatch):
    module = build(axes, **OPTIONS[name])
    found = trained(copy.deepcopy(module), axes)
    assert calls == [True] * 4
    monkeypatch.setattr(scales, "can_walk_at_once", lambda *_: False)
    expected = trained(module, axes)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("name", IN_TURN)
def test_other_searches_and_losses_go_scale_by_scale(name, calls):
    trained(build(1, **IN_TURN[name]), 1)
    assert not any(calls[:3])


def test_masks_and_targets_go_scale_by_scale(calls):
    module, x = build(1), data(2, DIM, 5)
    indices = module(x, mask=half_mask(2, 5)).indices
    module(x, indices)
    assert calls == [False, False]


def test_kmeans_of_a_codebook_per_scale_comes_between_the_scales(calls):
    module = build(1, codes=False, shared_codebook=False)
    for _ in range(2):
        module(data(8, DIM, 5))
    assert calls == [False, True]
    shared = build(1, codes=False)
    shared(data(8, DIM, 5))
    assert calls[2:] == [True]


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


def replace(module: HierarchicalVQ) -> None:
    module.phi_shared = Doubled()


def hook(module: HierarchicalVQ) -> None:
    module.phi_shared.conv.register_forward_hook(lambda conv, x, out: 2 * out)


def hook_whole(module: HierarchicalVQ) -> None:
    module.phi_shared.register_forward_hook(lambda phi, x, out: 2 * out)


def prune_convolution(module: HierarchicalVQ) -> None:
    prune.l1_unstructured(module.phi_shared.conv, "weight", 0.5)


def parametrized(module: HierarchicalVQ) -> None:
    parametrize.register_parametrization(module.phi_shared.conv, "weight", Doubled())


def cosine_later(module: HierarchicalVQ) -> None:
    module.vq._codebook.use_cosine_sim = True


@pytest.mark.parametrize(
    "change", [replace, hook, hook_whole, prune_convolution, parametrized, cosine_later]
)
def test_what_a_user_puts_in_is_called(change, calls):
    module, x = build(1), data(2, DIM, 5)
    plain = copy.deepcopy(module)(x).quantized
    change(module)
    assert not torch.equal(module(x).quantized, plain)
    # An operator takes the weight that a parametrization computes.
    assert calls == [True, change is parametrized]


def test_levels_that_differ_go_scale_by_scale(calls):
    module = build(1, shared_codebook=False)
    module.vqs[1].commitment_weight = 0.5
    module(data(2, DIM, 5))
    module.vqs[1].commitment_weight = 1.0
    module.vqs[2].eval()
    module(data(2, DIM, 5))
    assert calls == [False, False]
