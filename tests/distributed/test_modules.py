"""Quantizers that train on several ranks have, bit for bit, the state of one process with the whole batch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from ranks import Ranks, outcome, stderr_of
from torch import Tensor, nn

import torchvq
from torchvq import GroupedResidualVQ, ResidualVQ, VectorQuantize

DIM = 6
STEPS = 12
DEAD = dict(kmeans_init=True, kmeans_iters=4, threshold_ema_dead_code=1)

CASES: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "default": (VectorQuantize, dict(codebook_size=24)),
    "kmeans": (VectorQuantize, dict(codebook_size=24, kmeans_init=True)),
    "kmeans_of_rank_0": (
        VectorQuantize,
        dict(codebook_size=24, kmeans_init=True, sync_kmeans=False),
    ),
    "dead_codes": (VectorQuantize, dict(codebook_size=24, **DEAD)),
    "dead_fraction": (
        VectorQuantize,
        dict(codebook_size=24, kmeans_init=True, dead_code_threshold_fraction=0.5),
    ),
    "cosine": (VectorQuantize, dict(codebook_size=24, use_cosine_sim=True, **DEAD)),
    "heads": (VectorQuantize, dict(codebook_size=24, heads=2, codebook_dim=3, **DEAD)),
    "separate_heads": (
        VectorQuantize,
        dict(codebook_size=24, heads=2, codebook_dim=3, separate_codebook_per_head=True, **DEAD),
    ),
    "affine": (VectorQuantize, dict(codebook_size=24, affine_param=True, sync_affine_param=True)),
    "orthogonal": (VectorQuantize, dict(codebook_size=24, orthogonal_reg_weight=1.0)),
    "manual": (VectorQuantize, dict(codebook_size=24, manual_ema_update=True)),
    "residual": (ResidualVQ, dict(codebook_size=24, num_quantizers=4, **DEAD)),
    "residual_sizes": (ResidualVQ, dict(codebook_size=(8, 24, 16), **DEAD)),
    "residual_dropout": (
        ResidualVQ,
        dict(codebook_size=24, num_quantizers=4, quantize_dropout=True, **DEAD),
    ),
    "residual_shared": (
        ResidualVQ,
        dict(codebook_size=24, num_quantizers=4, shared_codebook=True, **DEAD),
    ),
    "grouped": (GroupedResidualVQ, dict(codebook_size=24, num_quantizers=2, groups=2, **DEAD)),
}
# Tokens of each rank, step by step: unequal, none on a rank, all on one rank.
SHARES = [(20, 31, 9), (0, 40, 20), (60, 0, 0), (13, 13, 14)]


def build(case: str, seed: int, **options: Any) -> nn.Module:
    torch.manual_seed(seed)
    kind, defaults = CASES[case]
    return kind(dim=DIM, **{**defaults, **options})


def batch(step: int, shares: tuple[int, ...]) -> tuple[list[Tensor], list[Tensor]]:
    """Tokens and masks of each rank."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(1, sum(shares), DIM, generator=generator)
    mask = torch.rand(1, sum(shares), generator=generator) < 0.8
    if step % 3 == 2:
        # The last rank has only padding.
        mask[:, sum(shares) - shares[-1] :] = False
    return list(x.split(shares, 1)), list(mask.split(shares, 1))


def shares_of(step: int, size: int) -> tuple[int, ...]:
    first, *others = SHARES[step % len(SHARES)]
    return (first, sum(others)) if size == 2 else (first, *others)


def states_of(rank: int | None, size: int, case: str, steps: int, options: dict[str, Any]) -> Any:
    """The state after each step; rank None is one process with all tokens."""
    module = build(case, 100 + (rank or 0), **options)
    states, results = [], []
    for step in range(steps):
        x, mask = batch(step, shares_of(step, size))
        mine = torch.cat(x, 1) if rank is None else x[rank]
        real = torch.cat(mask, 1) if rank is None else mask[rank]
        indices = module(mine, mask=real)[1]
        results.append(indices)
        states.append({name: value.clone() for name, value in module.state_dict().items()})
    return states, results


def work(rank: int, size: int, case: str, steps: int, options: dict[str, Any]) -> Any:
    return states_of(rank, size, case, steps, options)


@pytest.mark.parametrize("case", CASES)
def test_ranks_learn_what_one_process_learns(ranks: Ranks, case: str) -> None:
    """Ranks have different seeds; k-means, dead codes and dropout in every step, also on ranks without tokens."""
    answers = ranks.run(work, ranks.size, case, STEPS, {})
    expected, _ = states_of(None, ranks.size, case, STEPS, {"sync_codebook": False})
    if case == "kmeans_of_rank_0":
        expected = answers[0][0]
    for states, _ in answers:
        for step, (state, right) in enumerate(zip(states, expected, strict=True)):
            for name, value in right.items():
                assert torch.equal(state[name], value), (step, name)


def last_state(rank: int, size: int, case: str) -> Any:
    return states_of(rank, size, case, 50, {})[0][-1]


@pytest.mark.parametrize("case", ["dead_codes", "residual_dropout", "residual_shared", "grouped"])
def test_fifty_steps_end_where_one_process_ends(ranks: Ranks, case: str) -> None:
    expected = states_of(None, ranks.size, case, 50, {"sync_codebook": False})[0][-1]
    for state in ranks.run(last_state, ranks.size, case):
        for name, value in expected.items():
            assert torch.equal(state[name], value), name


@pytest.mark.parametrize("case", ["dead_codes", "residual_dropout"])
def test_ranks_choose_what_one_process_chooses(ranks: Ranks, case: str) -> None:
    answers = ranks.run(work, ranks.size, case, STEPS, {})
    _, expected = states_of(None, ranks.size, case, STEPS, {"sync_codebook": False})
    for step, indices in enumerate(expected):
        parts = torch.cat([results[step] for _, results in answers], 1)
        assert torch.equal(parts, indices), step


def test_float_reduction_is_close_and_equal_on_all_ranks(ranks: Ranks) -> None:
    answers = ranks.run(work, ranks.size, "default", STEPS, {"reduction": "float"})
    expected, _ = states_of(None, ranks.size, "default", STEPS, {"sync_codebook": False})
    for states, _ in answers:
        for name, value in expected[-1].items():
            assert torch.equal(states[-1][name], answers[0][0][-1][name])
            torch.testing.assert_close(states[-1][name], value, rtol=1e-5, atol=1e-6)


# Collectives -----------------------------------------------------------------------------------------------


def traffic(rank: int, case: str, options: dict[str, Any]) -> list[tuple[int, ...]]:
    module = build(case, 7, **options)
    x = torch.randn(1, 50, DIM, generator=torch.Generator().manual_seed(rank))
    counted = []
    for step in range(6):
        torch.ops.torchvq.reset_traffic()
        if step >= 4:
            module.eval()
        module(x)
        counted.append(torch.ops.torchvq.traffic())
    return counted


@pytest.mark.parametrize("case", ["default", "residual"])
def test_a_training_step_is_one_all_reduce(two: Ranks, case: str) -> None:
    options = {} if case == "default" else {"threshold_ema_dead_code": 0}
    for counted in two.run(traffic, case, options):
        for all_reduces, all_gathers, broadcasts, sent in counted[1:4]:
            assert (all_reduces, all_gathers, broadcasts) == (1, 0, 0) and sent > 0
        assert counted[4] == counted[5] == (0, 0, 0, 0)


@pytest.mark.parametrize("case", ["default", "residual"])
def test_float_reduction_sends_less(two: Ranks, case: str) -> None:
    exact, reduced = (
        two.run(traffic, case, {"threshold_ema_dead_code": 0, "reduction": reduction})
        for reduction in ("exact", "float")
    )
    for counted, fewer in zip(exact, reduced, strict=True):
        assert 0 < fewer[2][3] < 0.75 * counted[2][3]  # headers and counts keep their size


@pytest.mark.parametrize(
    "options", [{"sync_codebook": False}, {"decay": 0.5, "sync_codebook": False}]
)
def test_without_synchronisation_nothing_is_sent(two: Ranks, options: dict[str, Any]) -> None:
    for counted in two.run(traffic, "dead_codes", options):
        assert all(entry == (0, 0, 0, 0) for entry in counted)


def evaluate_alone(rank: int, case: str) -> list[Tensor]:
    """Rank 0 validates before the first step, and between steps, while the others do not."""
    module = build(case, rank)
    x = torch.randn(1, 40, DIM, generator=torch.Generator().manual_seed(rank))
    for _ in range(3):
        if rank == 0:
            module.eval()(x)
            module.train()
        module(x)
    return list(module.state_dict().values())


@pytest.mark.parametrize("case", ["dead_codes", "residual_dropout"])
def test_one_rank_may_validate_alone(two: Ranks, case: str) -> None:
    first, second = two.run(evaluate_alone, case)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


# Faults ----------------------------------------------------------------------------------------------------


def unequal_sizes(rank: int) -> str:
    module = VectorQuantize(DIM, 32 if rank == 0 else 48)
    return outcome(module, torch.randn(1, 10, DIM))


def test_unequal_codebooks_are_a_sentence_on_every_rank(two: Ranks) -> None:
    for message in two.run(unequal_sizes):
        assert message.startswith("ValueError: ") and "VectorQuantize" in message
        assert "32 codes" in message and "48 codes" in message


def meddle(rank: int) -> tuple[str, bool]:
    module = build("default", 3)
    x = torch.randn(1, 10, DIM)
    module(x)
    if rank == 1:
        module._codebook.cluster_size[0, 0] += 1e-6
    before = {name: value.clone() for name, value in module.state_dict().items()}
    message = outcome(module, x)
    after = module.state_dict()
    return message, all(torch.equal(after[name], value) for name, value in before.items())


def test_ranks_whose_state_differs_are_told_and_keep_it(two: Ranks) -> None:
    for message, intact in two.run(meddle):
        assert (
            message.startswith("DistError: ")
            and "VectorQuantize(dim=6, codebook_size=24)" in message
        )
        assert intact


def adopt(rank: int) -> tuple[str, Tensor]:
    module = build("default", 50 + rank)
    warning = stderr_of(module, torch.randn(1, 10, DIM, generator=torch.Generator().manual_seed(1)))
    return warning, module.codebook


def test_ranks_that_start_differently_take_rank_0s_state(two: Ranks) -> None:
    (first, codes), (second, others) = two.run(adopt)
    assert "rank 0" in first + second
    assert torch.equal(codes, others)


# Frameworks ------------------------------------------------------------------------------------------------


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(8, DIM)
        # No random draws among tokens: they depend on the bits of tokens, and products of fewer rows round differently.
        self.vq = VectorQuantize(DIM, 24)
        self.decoder = nn.Linear(DIM, 8)

    def forward(self, x: Tensor) -> Tensor:
        quantized, _, loss = self.vq(self.encoder(x))
        return (self.decoder(quantized) - x).square().mean() + loss


def data_parallel(rank: int, size: int, how: dict[str, Any], accumulate: int) -> list[Tensor]:
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model = Autoencoder()
    parallel = DistributedDataParallel(model, **how)
    optimizer = torch.optim.SGD(parallel.parameters(), 0.1)
    for step in range(4):
        for part in range(accumulate):
            x = torch.randn(4, 16, 8, generator=torch.Generator().manual_seed(10 * step + part))
            mine = x.chunk(size)[rank]
            if part + 1 < accumulate:
                with parallel.no_sync():
                    parallel(mine).backward()
            else:
                parallel(mine).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [value.clone() for value in model.state_dict().values()]


@pytest.mark.parametrize(
    ("how", "accumulate"),
    [
        ({}, 1),
        ({"broadcast_buffers": False}, 1),
        ({"find_unused_parameters": True}, 1),
        ({"static_graph": True}, 1),
        ({}, 2),
    ],
)
def test_data_parallel_training_is_that_of_one_process(
    two: Ranks, how: dict[str, Any], accumulate: int
) -> None:
    answers = two.run(data_parallel, 2, how, accumulate)
    torch.manual_seed(0)
    model = Autoencoder()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(4):
        for part in range(accumulate):
            x = torch.randn(4, 16, 8, generator=torch.Generator().manual_seed(10 * step + part))
            model(x).backward()
        optimizer.step()
        optimizer.zero_grad()
    for states in answers:
        for first, mine, right in zip(answers[0], states, model.state_dict().values(), strict=True):
            assert torch.equal(first, mine)
            torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-5)


def compiled(
    rank: int, case: str, options: dict[str, Any], fullgraph: bool
) -> tuple[list[Tensor], list[Tensor]]:
    torch.compiler.reset()
    eager, module = build(case, 5, **options), build(case, 5, **options)
    step = torch.compile(module, fullgraph=fullgraph, backend="aot_eager")
    for number in range(3):
        x = torch.randn(1, 40, DIM, generator=torch.Generator().manual_seed(2 * number + rank))
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        eager(a)[0].sum().backward()
        step(b)[0].sum().backward()
        assert a.grad is not None and b.grad is not None and torch.equal(a.grad, b.grad)
    return list(eager.state_dict().values()), list(module.state_dict().values())


@pytest.mark.parametrize("case", ["default", "dead_codes", "residual"])
def test_compiled_ranks_are_eager_ranks(two: Ranks, case: str) -> None:
    for eager, traced in two.run(compiled, case, {}, True):
        assert all(torch.equal(a, b) for a, b in zip(eager, traced, strict=True))


def sgd(own: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(list(own), lr=0.1)


# A step of the codebook's own optimizer is a backward pass, which no graph holds.
@pytest.mark.parametrize("case", ["default", "residual"])
def test_compiled_ranks_average_the_gradients_of_own_optimizers(two: Ranks, case: str) -> None:
    options = dict(learnable_codebook=True, ema_update=False, in_place_codebook_optimizer=sgd)
    options |= dict(kmeans_init=False, threshold_ema_dead_code=0)
    for eager, traced in two.run(compiled, case, options, False):
        assert all(torch.equal(a, b) for a, b in zip(eager, traced, strict=True))


@pytest.mark.parametrize(
    ("case", "options"),
    [
        ("dead_codes", dict(learnable_codebook=True, ema_update=False)),
        ("orthogonal", dict(threshold_ema_dead_code=0.9)),
        ("orthogonal", dict(threshold_ema_dead_code=0.9, sync_every=2)),
    ],
    ids=str,
)
def test_own_optimizers_on_ranks_are_those_of_one_process(
    ranks: Ranks, case: str, options: dict[str, Any]
) -> None:
    """But for the rounding of the gradients' mean: averages and dead codes follow each step of the optimizer."""
    options = options | dict(in_place_codebook_optimizer=sgd)
    (first, _), *others = ranks.run(work, ranks.size, case, 4, options)
    expected, _ = states_of(None, ranks.size, case, 4, options | dict(sync_codebook=False))
    assert expected[-1]["_codebook.rng"][1] == 4
    # What ranks keep for a later reduction is their own.
    shared = [name for name in expected[0] if "kept_" not in name]
    for step, state in enumerate(first):
        for name in shared:
            torch.testing.assert_close(state[name], expected[step][name], rtol=0, atol=1e-5)
            assert all(torch.equal(other[step][name], state[name]) for other, _ in others)


def checkpointed(rank: int) -> tuple[list[Tensor], tuple[int, ...]]:
    module = build("dead_codes", 5)
    for number in range(3):
        x = torch.randn(1, 40, DIM, generator=torch.Generator().manual_seed(2 * number + rank))
        torch.ops.torchvq.reset_traffic()
        again = torch.utils.checkpoint.checkpoint(module, x.requires_grad_(), use_reentrant=False)
        before = torch.ops.torchvq.traffic()
        again[0].sum().backward()
        assert torch.ops.torchvq.traffic() == before
    return list(module.state_dict().values()), before


def test_recomputation_sends_nothing(two: Ranks) -> None:
    first, second = two.run(checkpointed)
    assert all(torch.equal(a, b) for a, b in zip(first[0], second[0], strict=True))


def subgroup(rank: int) -> list[Tensor]:
    import torch.distributed as dist

    groups = [dist.new_group([0, 1]), dist.new_group([2])]
    module = build("default", rank, process_group=groups[rank // 2])
    module(torch.randn(1, 30, DIM, generator=torch.Generator().manual_seed(rank)))
    return list(module.state_dict().values())


def test_a_subgroup_learns_by_itself(pool: Any) -> None:
    first, second, third = pool(3).run(subgroup)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, third, strict=True))


def draws_in_a_subgroup(rank: int, cache: str) -> tuple[Tensor, Tensor, int]:
    import torch.distributed as dist

    from torchvq._base.ranks import Ranks, noise_rng

    groups = [dist.new_group([0]), dist.new_group([1, 2])]
    ranks = Ranks(groups[min(rank, 1)].group_name)
    rng = torch.tensor([5, 7])
    compiled = torch.compile(lambda x: noise_rng(x, ranks), fullgraph=True)
    draws = rng
    # One after the other, so that the third rank loads the second's graph from the compiler's cache.
    counts = torch._dynamo.utils.counters["aot_autograd"]
    before = counts["autograd_cache_hit"]
    with mock.patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=cache):
        for turn in range(3):
            if turn == rank:
                draws = compiled(rng)
            dist.barrier()
    return noise_rng(rng, ranks), draws, counts["autograd_cache_hit"] - before


def test_noise_is_keyed_by_the_rank_in_the_group(pool: Any, tmp_path: Path) -> None:
    eager, compiled, hits = zip(*pool(3).run(draws_in_a_subgroup, str(tmp_path)), strict=True)
    first, second, third = eager
    assert first.tolist() == second.tolist() == [5, 7]
    assert third.tolist() == [5 + 1099511627689, 7]
    assert all(torch.equal(a, b) for a, b in zip(eager, compiled, strict=True))
    assert hits == (0, 0, 1)


def test_modules_know_their_group_by_name() -> None:
    assert VectorQuantize(DIM, 4, process_group="some group").process_group == "some group"
    with pytest.raises(
        ValueError, match="LFQ: expected process_group to be a group that this rank belongs to"
    ):
        torchvq.LFQ(dim=DIM, codebook_size=2**DIM, process_group=object())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected reduction to be exact or float"):
        VectorQuantize(DIM, 4, reduction="int8")
    assert (
        torchvq.ResidualVQ(dim=DIM, num_quantizers=2, codebook_size=4).levels[0].reduction
        == "exact"
    )
