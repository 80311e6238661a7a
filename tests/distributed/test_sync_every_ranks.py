"""`sync_every`: learning from several steps together equals, bit for bit, one step of one process with all tokens."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import Ranks, outcome
from test_modules import CASES, DIM, batch, build, shares_of
from torch import Tensor, nn

from torchvq import HierarchicalVQ, VectorQuantize, verify_replicas

EVERY = 3
ALONE = {"sync_codebook": False}
DEAD = dict(kmeans_init=False, threshold_ema_dead_code=1)
State = dict[str, Tensor]


def state_of(module: nn.Module, *, rng: bool = True) -> State:
    """The state that ranks share; without `rng` for the oracle, which has fewer steps."""
    return {
        name: value.clone()
        for name, value in module.state_dict().items()
        if ".kept_" not in name and (rng or not name.endswith(".rng"))
    }


def assert_equal(found: State, right: State, where: Any = None) -> None:
    assert found.keys() == right.keys()
    for name, value in right.items():
        assert torch.equal(found[name], value), (where, name)


def mine(rank: int | None, parts: list[Tensor]) -> Tensor:
    return torch.cat(parts, 1) if rank is None else parts[rank]


# One process, step by step ----------------------------------------------------------------------------------


def step_by_step(
    rank: int | None,
    size: int,
    case: str,
    steps: int,
    options: dict[str, Any],
    scale: float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> list[State]:
    module = build(case, 100 + (rank or 0), **options)
    states = []
    for step in range(steps):
        x, mask = batch(step, shares_of(step, size))
        module(scale * mine(rank, x).to(dtype), mask=mine(rank, mask))
        states.append(state_of(module))
    return states


# k-means on rank 0's tokens alone has no equivalent in one process.
STEP_CASES = [case for case in CASES if case != "kmeans_of_rank_0"]


@pytest.mark.parametrize("case", STEP_CASES)
def test_ranks_learn_what_one_process_learns(ranks: Ranks, case: str) -> None:
    """K-means, dead codes, dropout, ranks without tokens and masked ones; rng counts the same steps, too."""
    options = {"sync_every": EVERY}
    expected = step_by_step(None, ranks.size, case, 4 * EVERY, options | ALONE)
    for states in ranks.run(step_by_step, ranks.size, case, 4 * EVERY, options):
        for step, (state, right) in enumerate(zip(states, expected, strict=True)):
            assert_equal(state, right, step)


@pytest.mark.parametrize("scale", [1e3, 1e10])
def test_tokens_that_outgrow_the_codes(ranks: Ranks, scale: float) -> None:
    """At 1e3, about 2^10, one word still holds the sums of a code; at 1e10, about 2^33, both words are sent."""
    options = {"sync_every": EVERY}
    arguments = (ranks.size, "default", 2 * EVERY)
    expected = step_by_step(None, *arguments, options | ALONE, scale)
    for states in ranks.run(step_by_step, *arguments, options, scale):
        for step, (state, right) in enumerate(zip(states, expected, strict=True)):
            assert_equal(state, right, step)


def test_tokens_of_float64_replace_the_same_codes(ranks: Ranks) -> None:
    """They are kept in float32, in which the tokens of all ranks are compared."""
    arguments = (ranks.size, "dead_codes", 4 * EVERY, DEAD | {"sync_every": EVERY})
    wide = (math.pi, torch.float64)  # numbers that float32 does not hold
    case, options = arguments[:3], arguments[3]
    expected = step_by_step(None, *case, options | ALONE, *wide)
    for states in ranks.run(step_by_step, *arguments, *wide):
        for step, (state, right) in enumerate(zip(states, expected, strict=True)):
            assert_equal(state, right, step)


# One process, one step --------------------------------------------------------------------------------------

ONE_STEP: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("default", {}),
    "dead codes": ("dead_codes", DEAD),
    "dead fraction": ("dead_fraction", dict(kmeans_init=False)),
    "cosine": ("cosine", DEAD),
    "heads": ("heads", DEAD),
    "separate heads": ("separate_heads", DEAD),
    "orthogonal": ("orthogonal", {}),
    "manual": ("manual", {}),
    "residual": ("residual", DEAD),
    "residual sizes": ("residual_sizes", DEAD),
    "residual shared": ("residual_shared", DEAD),
    "grouped": ("grouped", DEAD),
}


def at_once(size: int, name: str, every: int, windows: int) -> list[State]:
    """The oracle: one process, whose batch contains the tokens of all ranks and of several steps."""
    case, own = ONE_STEP[name]
    module = build(case, 100, **own, **ALONE)
    states = []
    for window in range(windows):
        numbers = range(window * every, (window + 1) * every)
        steps = [batch(step, shares_of(step, size)) for step in numbers]
        x = torch.cat([mine(None, x) for x, _ in steps], 1)
        mask = torch.cat([mine(None, mask) for _, mask in steps], 1)
        module(x, mask=mask)
        states.append(state_of(module, rng=False))
    return states


def in_windows(rank: int | None, size: int, name: str, every: int, windows: int) -> list[State]:
    """The states after the last step of each window; within a window nothing moves."""
    case, own = ONE_STEP[name]
    alone = ALONE if rank is None else {}
    module = build(case, 100 + (rank or 0), **own, sync_every=every, **alone)
    states: list[State] = []
    for step in range(windows * every):
        x, mask = batch(step, shares_of(step, size))
        module(mine(rank, x), mask=mine(rank, mask))
        if (step + 1) % every == 0:
            states.append(state_of(module, rng=False))
        elif states:
            assert_equal(state_of(module, rng=False), states[-1], step)
    return states


@pytest.mark.parametrize("every", [2, 5])
@pytest.mark.parametrize("name", ONE_STEP)
def test_steps_together_are_one_step(ranks: Ranks, name: str, every: int) -> None:
    windows = 4
    expected = at_once(ranks.size, name, every, windows)
    alone = in_windows(None, ranks.size, name, every, windows)
    for states in [alone, *ranks.run(in_windows, ranks.size, name, every, windows)]:
        for window, (state, right) in enumerate(zip(states, expected, strict=True)):
            assert_equal(state, right, window)


def hierarchical(rank: int | None, every: int) -> list[State]:
    torch.manual_seed(0)
    alone = ALONE if rank is None else {}
    module = HierarchicalVQ(
        dim=4, codebook_size=16, scales=(1, 2, 4), kmeans_init=False, sync_every=every, **alone
    )
    states = []
    for window in range(3):
        x = torch.randn(2, 2 * 2, 4, 4, generator=torch.Generator().manual_seed(window))
        if every == 1:
            module(x.flatten(0, 1))
        else:
            for part in x:
                module(part if rank is None else part.chunk(2)[rank])
        states.append(state_of(module, rng=False))
    return states


def test_scales_too(two: Ranks) -> None:
    expected = hierarchical(None, 1)
    for states in [hierarchical(None, 2), *two.run(hierarchical, 2)]:
        for window, (state, right) in enumerate(zip(states, expected, strict=True)):
            assert_equal(state, right, window)


def in_float(rank: int | None, dtype: torch.dtype, reduction: str) -> list[State]:
    torch.manual_seed(0)
    options = ALONE if rank is None else {"reduction": reduction}
    module = VectorQuantize(DIM, 24, threshold_ema_dead_code=1, sync_every=2, **options).to(dtype)
    states = []
    for step in range(6):
        x, mask = batch(step, shares_of(step, 2))
        module(mine(rank, x).to(dtype), mask=mine(rank, mask))
        states.append(state_of(module))
    return states


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_dtypes_of_tokens(two: Ranks, dtype: torch.dtype) -> None:
    expected = in_float(None, dtype, "exact")
    for states in two.run(in_float, dtype, "exact"):
        for step, (state, right) in enumerate(zip(states, expected, strict=True)):
            assert_equal(state, right, step)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_float_reduction_is_close_and_equal_on_all_ranks(two: Ranks, dtype: torch.dtype) -> None:
    expected = in_float(None, dtype, "float")
    first, second = two.run(in_float, dtype, "float")
    for a, b, right in zip(first, second, expected, strict=True):
        assert_equal(a, b)
        for name, value in right.items():
            torch.testing.assert_close(a[name], value, rtol=1e-5, atol=1e-6)


# Messages ---------------------------------------------------------------------------------------------------


def traffic(rank: int, case: str) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Messages of steps without and with `sync_every`, after the first window."""
    found = []
    for every in (1, EVERY):
        module = build(case, 7, kmeans_init=False, sync_every=every)
        counted = []
        for step in range(2 * EVERY):
            x = torch.randn(1, 50, DIM, generator=torch.Generator().manual_seed(2 * step + rank))
            torch.ops.torchvq.reset_traffic()
            module(x)
            counted.append(tuple(torch.ops.torchvq.traffic()))
        found.append(counted[EVERY:])
    return found[0], found[1]


@pytest.mark.parametrize("case", ["default", "dead_codes", "residual", "grouped"])
def test_only_the_last_step_sends_and_no_more_than_one(two: Ranks, case: str) -> None:
    for each, last in two.run(traffic, case):
        assert last[:-1] == [(0, 0, 0, 0)] * (EVERY - 1)
        assert last[-1][:3] == (1, 0, 0) and last[-1][3] == each[-1][3]


def disagree(rank: int) -> str:
    module = VectorQuantize(DIM, 24, sync_every=2 + rank)
    return outcome(module, torch.randn(1, 10, DIM))


def test_ranks_that_disagree_are_told(two: Ranks) -> None:
    for message in two.run(disagree):
        assert message.startswith("ValueError: ")
        assert "every 2 steps" in message and "every 3 steps" in message


# Checkpoints ------------------------------------------------------------------------------------------------

SAVED = 2 * EVERY + 2


def run_on(module: nn.Module, rank: int | None, size: int, steps: range) -> State:
    for step in steps:
        x, mask = (mine(None, parts) for parts in batch(step, shares_of(step, 3)))
        if rank is not None:
            x, mask = (whole.split(shares_of(step, size), 1)[rank] for whole in (x, mask))
        module(x, mask=mask)
    return state_of(module)


def save(rank: int, case: str, folder: str, saved: int) -> State:
    module = build(case, 100 + rank, kmeans_init=False, sync_every=EVERY)
    run_on(module, rank, 2, range(saved))
    torch.save(module.state_dict(), f"{folder}/{rank}.pt")
    return run_on(module, rank, 2, range(saved, 5 * EVERY))


def resume(rank: int | None, size: int, case: str, files: list[str], saved: int) -> State:
    alone = ALONE if rank is None else {}
    module = build(case, 200 + (rank or 0), kmeans_init=False, sync_every=EVERY, **alone)
    module.load_state_dict(torch.load(files[(rank or 0) % len(files)]))
    return run_on(module, rank, size, range(saved, 5 * EVERY))


@pytest.mark.parametrize("case", ["dead_codes", "residual"])
def test_each_rank_resumes_in_the_middle(two: Ranks, tmp_path: Path, case: str) -> None:
    without_a_stop = two.run(save, case, str(tmp_path), SAVED)
    files = [str(tmp_path / f"{rank}.pt") for rank in range(2)]
    for state in two.run(resume, 2, case, files, SAVED):
        assert_equal(state, without_a_stop[0])


@pytest.mark.parametrize("case", ["dead_codes", "residual"])
def test_after_a_last_step_any_number_of_ranks_resumes(
    pool: Any, tmp_path: Path, case: str
) -> None:
    expected, _ = pool(2).run(save, case, str(tmp_path), 2 * EVERY)
    files = [str(tmp_path / "0.pt")]
    answers = [
        resume(None, 3, case, files, 2 * EVERY),
        *pool(2).run(resume, 2, case, files, 2 * EVERY),
        *pool(3).run(resume, 3, case, files, 2 * EVERY),
    ]
    for state in answers:
        assert_equal(state, expected)


def test_of_rank_0s_file_only_rank_0_takes_what_it_kept(two: Ranks, tmp_path: Path) -> None:
    """Its tokens are not counted twice, and those that the other ranks had kept are lost."""
    two.run(save, "default", str(tmp_path), SAVED)
    files = [str(tmp_path / "0.pt")]
    first, second = two.run(resume, 2, "default", files, SAVED)
    assert_equal(first, second)
    oracle = build("default", 0, sync_every=EVERY, **ALONE)
    oracle.load_state_dict(torch.load(files[0]))
    assert_equal(run_on(oracle, None, 3, range(SAVED, 5 * EVERY)), first)


# Frameworks -------------------------------------------------------------------------------------------------


def compiled(rank: int, case: str) -> tuple[State, State]:
    torch.compiler.reset()
    eager, module = (build(case, 5, kmeans_init=False, sync_every=EVERY) for _ in range(2))
    step = torch.compile(module, fullgraph=True, backend="aot_eager")
    for number in range(2 * EVERY + 1):
        x = torch.randn(1, 40, DIM, generator=torch.Generator().manual_seed(2 * number + rank))
        # One graph serves the steps that keep their statistics and those that learn.
        with torch._dynamo.config.patch(error_on_recompile=number > 1):
            eager(x)
            step(x)
    return dict(eager.state_dict()), dict(module.state_dict())


@pytest.mark.parametrize("case", ["default", "dead_codes", "residual"])
def test_compiled_steps_are_eager_steps(two: Ranks, case: str) -> None:
    for eager, traced in two.run(compiled, case):
        for name, value in eager.items():
            torch.testing.assert_close(traced[name], value, rtol=0, atol=0, equal_nan=True)


def checkpointed(rank: int) -> tuple[State, State]:
    plain, module = (build("dead_codes", 5, sync_every=EVERY) for _ in range(2))
    for number in range(2 * EVERY):
        x = torch.randn(1, 40, DIM, generator=torch.Generator().manual_seed(2 * number + rank))
        plain(x)
        result = torch.utils.checkpoint.checkpoint(module, x.requires_grad_(), use_reentrant=False)
        torch.ops.torchvq.reset_traffic()
        result[0].sum().backward()
        assert tuple(torch.ops.torchvq.traffic()) == (0, 0, 0, 0)
    return state_of(plain), state_of(module)


def test_recomputed_steps_are_kept_once(two: Ranks) -> None:
    for plain, again in two.run(checkpointed):
        assert_equal(again, plain)


class Scaled(nn.Module):
    """A model whose quantizer gets the input itself."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.vq = VectorQuantize(DIM, 24, threshold_ema_dead_code=1, sync_every=EVERY, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.vq(x)[0]


def data_parallel(rank: int | None) -> State:
    torch.manual_seed(0)
    model = Scaled(**(ALONE if rank is None else {}))
    wrapped = model if rank is None else nn.parallel.DistributedDataParallel(model)
    for step in range(2 * EVERY):
        x, _ = batch(step, (20, 40))
        wrapped(mine(rank, x)).sum().backward()
        # Between the steps, one rank or the other evaluates.
        if rank == step % 2:
            model.eval()
            model(mine(rank, x))
            model.train()
    return state_of(model.vq)


def test_wrappers_that_broadcast_buffers_leave_alone_what_ranks_keep(two: Ranks) -> None:
    expected = data_parallel(None)
    for state in two.run(data_parallel):
        assert_equal(state, expected)


def watched(rank: int) -> list[Any]:
    module = build("dead_codes", 5, sync_every=EVERY)
    for step in range(EVERY + 1):
        module(mine(rank, batch(step, (20, 40))[0]))
    return verify_replicas(module)


def test_replicas_are_equal_in_the_middle(two: Ranks) -> None:
    assert two.run(watched) == [[], []]
