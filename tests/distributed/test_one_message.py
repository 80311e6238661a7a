"""A training step is one all-reduce for every class, with dead codes, and the state is that of one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import Ranks
from torch import Tensor, nn

from torchvq import GroupedResidualVQ, HierarchicalVQ, ResidualVQ, VectorQuantize

DIM = 6
STEPS = 6
DEAD = dict(kmeans_init=True, kmeans_iters=2, threshold_ema_dead_code=1)

KINDS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "VectorQuantize": (VectorQuantize, dict(codebook_size=40)),
    "cosine": (VectorQuantize, dict(codebook_size=40, use_cosine_sim=True)),
    "heads": (
        VectorQuantize,
        dict(codebook_size=40, heads=2, codebook_dim=3, separate_codebook_per_head=True),
    ),
    "fraction": (VectorQuantize, dict(codebook_size=40, dead_code_threshold_fraction=0.5)),
    "ResidualVQ": (ResidualVQ, dict(codebook_size=40, num_quantizers=3)),
    "dropout": (ResidualVQ, dict(codebook_size=40, num_quantizers=3, quantize_dropout=True)),
    "shared": (ResidualVQ, dict(codebook_size=40, num_quantizers=3, shared_codebook=True)),
    "GroupedResidualVQ": (
        GroupedResidualVQ,
        dict(codebook_size=40, num_quantizers=3, groups=2, quantize_dropout=True),
    ),
    "grouped shared": (
        GroupedResidualVQ,
        dict(codebook_size=40, num_quantizers=2, groups=3, shared_codebook=True),
    ),
    "HierarchicalVQ": (HierarchicalVQ, dict(codebook_size=40, scales=(1, 2, 4))),
}

Traffic = tuple[int, ...]


def build(kind: str, seed: int, **options: Any) -> nn.Module:
    torch.manual_seed(seed)
    make, own = KINDS[kind]
    return make(dim=DIM, **{**DEAD, **own, **options})


def batch(kind: str, step: int, parts: int) -> list[Tensor]:
    """Tokens of each rank."""
    generator = torch.Generator().manual_seed(step)
    if kind == "HierarchicalVQ":
        return list(torch.randn(2 * parts, DIM, 4, generator=generator).chunk(parts))
    # Few clusters, so that codes die; not so tight that the next tokens outgrow the codes, which takes more messages.
    x = torch.randn(4, DIM, generator=generator)[torch.randint(4, (1, 60), generator=generator)]
    x = x + 0.05 * torch.randn(1, 60, DIM, generator=generator)
    return list(x.split([20, 40] if parts == 2 else [20, 0, 40], 1))


def train(
    rank: int | None, size: int, kind: str, options: dict[str, Any]
) -> tuple[list[Tensor], list[Traffic], int]:
    """State, traffic of steps without k-means, number of replaced codes; rank None is one process with all tokens."""
    # Ranks take rank 0's codes, but not its convolutions, which a wrapper would synchronise: hence the equal seeds.
    module = build(kind, 100 + (0 if kind == "HierarchicalVQ" else rank or 0), **options)
    counted, replaced = [], 0
    books = [m for m in module.modules() if type(m).__name__ == "Codebook"]
    for step in range(STEPS):
        before = [bool(book.initted) for book in books]
        parts = batch(kind, step, size)
        torch.ops.torchvq.reset_traffic()
        module(
            torch.cat(parts, 0 if kind == "HierarchicalVQ" else 1) if rank is None else parts[rank]
        )
        # Without k-means, which a level that was dropped in earlier steps runs later.
        if before == [bool(book.initted) for book in books]:
            counted.append(tuple(torch.ops.torchvq.traffic()))
        replaced += sum(int(book.replaced.sum()) for book in books)
    return list(module.state_dict().values()), counted, replaced


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_one_message(ranks: Ranks, kind: str) -> None:
    expected, _, number = train(None, ranks.size, kind, {"sync_codebook": False})
    assert number > 0, "the test means nothing without dead codes"
    for state, counted, _ in ranks.run(train, ranks.size, kind, {}):
        assert len(counted) >= 3 and {entry[:3] for entry in counted} == {(1, 0, 0)}
        assert all(torch.equal(a, b) for a, b in zip(state, expected, strict=True))


@pytest.mark.parametrize("kind", ["VectorQuantize", "GroupedResidualVQ"])
def test_in_floating_point_too(ranks: Ranks, kind: str) -> None:
    (first, *_), *_ = answers = ranks.run(train, ranks.size, kind, {"reduction": "float"})
    for state, counted, number in answers:
        assert len(counted) >= 3 and {entry[:3] for entry in counted} == {(1, 0, 0)}
        assert number > 0
        assert all(torch.equal(a, b) for a, b in zip(state, first, strict=True))


# Where there is no room -----------------------------------------------------------------------------------

CODES = 512  # of 6 features: the message has room for about 100 candidates of each of two ranks


def many_dead(rank: int | None, size: int, reduction: str) -> tuple[list[Tensor], list[Traffic]]:
    torch.manual_seed(0)
    options = {"sync_codebook": False} if rank is None else {"reduction": reduction}
    module = VectorQuantize(DIM, CODES, threshold_ema_dead_code=1, decay=0.1, **options)
    counted = []
    for step in range(4):
        x = torch.randn(1, 1200 * size, DIM, generator=torch.Generator().manual_seed(step))
        # In a step with similar tokens nearly every code dies; then tokens are spread out, and few codes die.
        x = x * 0.1 + 3 if step == 1 else x
        torch.ops.torchvq.reset_traffic()
        module(x if rank is None else x.chunk(size, 1)[rank])
        counted.append(tuple(torch.ops.torchvq.traffic()))
    return list(module.state_dict().values()), counted


@pytest.mark.parametrize("reduction", ["exact", "float"])
def test_more_dead_codes_than_candidates_are_a_message_more(ranks: Ranks, reduction: str) -> None:
    expected, _ = many_dead(None, ranks.size, reduction)
    answers = ranks.run(many_dead, ranks.size, reduction)
    for state, counted in answers:
        gathers = [entry[1] for entry in counted[1:]]
        assert max(gathers) == 1, "the test means nothing where all candidates have room"
        if reduction == "exact":
            assert all(torch.equal(a, b) for a, b in zip(state, expected, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(state, answers[0][0], strict=True))
