"""HierarchicalVQ on two ranks learns what one process learns from the whole batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import Ranks
from torch import Tensor

from torchvq import HierarchicalVQ

DIM, CODES = 6, 16
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dead": dict(dead_code_threshold_fraction=0.5, decay=0.5),
    "own": dict(shared_codebook=False),
    "dropout": dict(nested_dropout=0.8),
    "dropout_own": dict(nested_dropout=0.8, shared_codebook=False, share_quant_resi=0),
    # With vqp_compat, one process runs the reference's k-means, but several ranks run ours.
    "compatible": dict(vqp_compat=True, threshold_ema_dead_code=0, kmeans_init=False),
    "uneven": {},
    "convolved": dict(quant_resi=0.5),
    # A batch of one sample on a rank.
    "convolved_uneven": dict(quant_resi=0.5, share_quant_resi=0),
}
UNEVEN = {"uneven": (3, 1), "convolved_uneven": (3, 1)}


def build(seed: int, name: str) -> HierarchicalVQ:
    torch.manual_seed(seed)
    options = dict(dim=DIM, codebook_size=CODES, scales=(1, 2, 4), accept_image_fmap=True)
    return HierarchicalVQ(**options | dict(quant_resi=0.0) | OPTIONS[name])


def batch(step: int) -> Tensor:
    return torch.randn(4, DIM, 5, 4, generator=torch.Generator().manual_seed(step))


def masks(step: int) -> Tensor | None:
    if step % 2 == 0:
        return None
    return torch.rand(4, 5, 4, generator=torch.Generator().manual_seed(step)) < 0.7


def weights() -> dict[str, Tensor]:
    """Equal convolutions on all ranks, which otherwise the model's wrapper would ensure."""
    return {name: value for name, value in build(9, "own").state_dict().items() if "phi" in name}


def train(rank: int, name: str, world: int) -> dict[str, Any]:
    module = build(rank, name)
    module.load_state_dict(weights(), strict=False) if module.phi_shared is not None else None
    for phi in module.phi_levels or ():
        phi.load_state_dict({k.removeprefix("phi_shared."): v for k, v in weights().items()})
    share = UNEVEN.get(name, (2, 2)) if world == 2 else (4,)
    start = sum(share[:rank])
    found: dict[str, Any] = {"cutoffs": [], "sent": []}
    for step in range(4):
        own = slice(start, start + share[rank])
        mask = masks(step)
        torch.ops.torchvq.reset_traffic()
        result = module(
            batch(step)[own], mask=None if mask is None else mask[own], return_cutoff=True
        )
        found["cutoffs"].append(result.cutoff)
        found["sent"].append(torch.ops.torchvq.traffic()[0])
        for n, indices in enumerate(result.indices):
            found[f"{step}.{n}"] = indices
    found["stats"] = [tuple(stats) for stats in module.stats(synced=world > 1)]
    return found | {f"state.{k}": v.clone() for k, v in module.state_dict().items()}


@pytest.mark.parametrize("name", OPTIONS)
def test_ranks_learn_what_one_process_learns(two: Ranks, name: str) -> None:
    first, second = two.run(train, name, 2)
    alone = train(0, name, 1)
    assert first["cutoffs"] == second["cutoffs"] == alone["cutoffs"]
    if "dropout" in name:
        assert set(alone["cutoffs"]) - {None}
    for key, value in alone.items():
        if key.startswith("state"):
            assert torch.equal(first[key], second[key]), key
            assert torch.equal(first[key], value), key
        elif key[0].isdigit():
            assert torch.equal(torch.cat([first[key], second[key]]), value), key
    assert first["stats"] == second["stats"] == alone["stats"]


def test_one_exchange_for_all_scales(two: Ranks) -> None:
    for name in ("plain", "own"):
        steps = two.run(train, name, 2)[0]["sent"]
        # After the first step, which initialises the codes.
        assert steps[2] == steps[3] <= 2, steps
    assert two.run(train, "own", 2)[0]["sent"][2] == two.run(train, "plain", 2)[0]["sent"][2]


def frozen_alone(rank: int) -> dict[str, Any]:
    module = build(rank, "plain")
    module(batch(0))
    if rank == 0:
        module(batch(1), freeze_codebook=True)
    module(batch(2))
    return {name: value.clone() for name, value in module.state_dict().items() if "phi" not in name}


def test_one_rank_may_make_frozen_forwards_that_draw_nothing(two: Ranks) -> None:
    one, other = two.run(frozen_alone)
    assert all(torch.equal(value, other[name]) for name, value in one.items())
