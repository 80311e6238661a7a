"""DistributedDataParallel in all its modes, and FSDP2 with mixed precision: quantizers learn like one process."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from ranks import Ranks
from torch import Tensor, nn
from wrapped import DIM, Inputs, Model, check_states, data, state_of

from torchvq import VectorQuantize, verify_replicas

STEPS = 5


def data_parallel(
    rank: int, how: dict[str, Any], accumulate: int, forwards_per_backward: int
) -> Any:
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model = Model(unused=how.get("find_unused_parameters", False))
    inputs = Inputs(model)
    parallel = DistributedDataParallel(model, **how)
    optimizer = torch.optim.SGD(parallel.parameters(), 0.05)
    for step in range(STEPS):
        for part in range(accumulate):
            last = part + 1 == accumulate
            with nullcontext() if last else parallel.no_sync():
                loss = sum(
                    parallel(data(50 * step + 10 * part + i, rank))
                    for i in range(forwards_per_backward)
                )
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        # Rank 0 validates alone, without calling the wrapper.
        if rank == 0:
            model.eval()(data(999, 0))
            model.train()
    assert verify_replicas(parallel) == []
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return (state_of(model), inputs.given), weights


@pytest.mark.parametrize(
    ("how", "accumulate", "forwards"),
    [
        ({}, 1, 1),
        ({"broadcast_buffers": False}, 1, 1),
        ({"find_unused_parameters": True}, 1, 1),
        ({"static_graph": True}, 1, 1),
        ({"gradient_as_bucket_view": True, "broadcast_buffers": False}, 3, 1),
        ({"find_unused_parameters": True, "broadcast_buffers": False}, 2, 1),
        ({}, 3, 1),
        ({"broadcast_buffers": False}, 1, 2),
    ],
    ids=[
        "plain",
        "no broadcast",
        "unused",
        "static",
        "no_sync, no broadcast",
        "no_sync, unused",
        "no_sync",
        "two forwards",
    ],
)
def test_data_parallel(ranks: Ranks, how: dict[str, Any], accumulate: int, forwards: int) -> None:
    answers = ranks.run(data_parallel, how, accumulate, forwards)
    check_states([answer for answer, _ in answers], seed=0)
    for _, weights in answers:
        assert torch.equal(weights, answers[0][1])


def average_gradient(rank: int, size: int) -> Tensor:
    # No random draws among tokens: they depend on the bits of tokens, and products of fewer rows round differently.
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model = DistributedDataParallel(Model(dead=False).double())
    torch.manual_seed(1)
    model(torch.randn(size * 4, 16, 8, dtype=torch.float64).chunk(size)[rank]).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_the_gradient_is_that_of_one_process(ranks: Ranks) -> None:
    answers = ranks.run(average_gradient, ranks.size)
    torch.manual_seed(0)
    model = Model(dead=False).double()
    torch.manual_seed(1)
    model(torch.randn(ranks.size * 4, 16, 8, dtype=torch.float64)).backward()
    right = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    for gradient in answers:
        # float64 sums in another order.
        torch.testing.assert_close(gradient, right, rtol=1e-9, atol=1e-12)


# FSDP2 -------------------------------------------------------------------------------------------------------------


def fully_sharded(rank: int, size: int, wrap_quantizers: bool, reshard: bool) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.manual_seed(0)
    model = Model()
    inputs = Inputs(model)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    how = {
        "mesh": init_device_mesh("cpu", (size,)),
        "mp_policy": policy,
        "reshard_after_forward": reshard,
    }
    parts: list[nn.Module] = [model.encoder, model.decoder]
    if wrap_quantizers:
        parts += [model.vq, model.stack]
    for part in parts:
        fully_shard(part, **how)
    fully_shard(model, **how)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for step in range(STEPS):
        loss = model(data(step, rank))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    assert verify_replicas(model) == []
    assert all(calls[-1].dtype == torch.bfloat16 for calls in inputs.given.values())
    state = state_of(model)
    assert all(type(value) is Tensor for value in state.values())
    assert all(torch.isfinite(torch.tensor(losses)))
    return state, inputs.given


@pytest.mark.parametrize("wrap", [False, True], ids=["inside the root", "wrapped"])
@pytest.mark.parametrize("reshard", [False, True], ids=["keep", "reshard"])
def test_fsdp2_in_bfloat16(two: Ranks, wrap: bool, reshard: bool) -> None:
    """Buffers stay float32, replicated, and bit-identical."""
    answers = two.run(fully_sharded, 2, wrap, reshard)
    check_states(answers, seed=0)
    floats = [value.dtype for value in answers[0][0].values() if value.is_floating_point()]
    assert set(floats) == {torch.float32}


def sharded_codebook(rank: int, size: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.manual_seed(0)
    vq = VectorQuantize(
        DIM, 24, learnable_codebook=True, ema_update=False, threshold_ema_dead_code=0
    )
    start = vq.codebook.detach().clone()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(vq, mesh=init_device_mesh("cpu", (size,)), mp_policy=policy)
    optimizer = torch.optim.SGD(vq.parameters(), 0.5)
    for step in range(3):
        x = torch.randn(1, 40, DIM, generator=torch.Generator().manual_seed(10 * step + rank))
        quantized, indices, loss = vq(x)
        assert indices.shape == (1, 40) and quantized.isfinite().all()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    # This parameter is split over the ranks, so it has no replicas to compare.
    assert verify_replicas(vq) == []
    return vq._codebook.embed.full_tensor().detach(), start


def test_fsdp2_splits_a_codebook_that_learns_by_gradient(two: Ranks) -> None:
    (first, start), (second, _) = two.run(sharded_codebook, 2)
    assert torch.equal(first, second) and not torch.equal(first.reshape(start.shape), start)
