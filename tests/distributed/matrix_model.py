"""A model around one row of the matrix, and its training steps in wrappers; runs on a rank."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import torch
from classes import DIM, ROWS, build, data, forward
from torch import Tensor, nn

import torchvq

# Batch sizes of the two ranks, step by step: unequal, and one of them empty.
BATCHES = [(3, 4), (2, 1), (0, 3), (4, 4)]


class Around(nn.Module):
    """Encoder, quantizer, decoder; records the dtype of the output."""

    def __init__(self, row: str, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.axis = ROWS[row].channel_axis
        self.encoder = nn.Linear(DIM, DIM)
        # By default, statistics of the affine map are local to a rank.
        more = {"sync_affine_param": True} if row == "vq_affine" else {}
        self.quantizer = build(row, seed, **more)
        width = 2**DIM if ROWS[row].name == "BinaryMapper" else DIM
        self.decoder = nn.Linear(width, DIM)
        self.given = self.output = torch.float32
        self.wide = (
            False  # whether the quantizer's input is float32, whatever the encoder computes in
        )

    def forward(self, x: Tensor) -> Tensor:
        latent = self.encoder(x.movedim(self.axis, -1)).movedim(-1, self.axis)
        seen = forward(self.quantizer, latent.float() if self.wide else latent)
        self.output = seen.quantized.dtype
        decoded = self.decoder(seen.quantized.to(latent.dtype).movedim(self.axis, -1))
        return decoded.float().square().mean(-1).sum() / 50 + seen.loss.float().sum()


def batch(row: str, step: int, rank: int) -> Tensor:
    return data(row, 10 * step + rank, BATCHES[step % len(BATCHES)][rank])


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """The content of a checkpoint, gathered if it is split over ranks."""
    return {
        name: (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().clone()
        for name, value in model.state_dict().items()
    }


def every_row(function: Callable[..., Any], rank: int, *args: Any) -> dict[str, Any]:
    """The result, or the traceback, of a function of (rank, row, ...) for every row."""

    def answer(row: str) -> Any:
        try:
            return function(rank, row, *args)
        except Exception:
            return traceback.format_exc()

    return {row: answer(row) for row in ROWS}


def data_parallel(rank: int, row: str) -> dict[str, Any]:
    from torch.nn.parallel import DistributedDataParallel

    model = Around(row, seed=rank)
    # Rotations and projections are drawn at construction, and these classes exchange nothing: DDP must broadcast them.
    # Values that have their own optimizer get no gradient from outside.
    unused = row == "latent_in_place"
    parallel = DistributedDataParallel(
        model,
        broadcast_buffers=row in ("fsq_rotation", "random_projection"),
        find_unused_parameters=unused,
    )
    optimizer = torch.optim.SGD(parallel.parameters(), 0.02)
    gradients = []
    for step in range(4):
        parallel(batch(row, step, rank)).backward()
        gradients += [p.grad.clone() for p in parallel.parameters() if p.grad is not None]
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            torch.ops.torchvq.reset_traffic()
            model.eval()(data(row, 99))
            model.train()
            assert torch.ops.torchvq.traffic() == (0, 0, 0, 0)
    found = torchvq.verify_replicas(parallel, raise_on_difference=False)
    assert found == [], found
    return {"state": state_of(model), "gradients": gradients}


def two_forwards(rank: int, row: str) -> list[Tensor]:
    """The gradients of two forwards with one backward; the second must leave what the first has saved."""
    model = Around(row, seed=rank)
    for step in (1, 3):
        losses = [model(batch(row, own, rank)) for own in (step, 3)]
        (losses[0] + losses[1]).backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def fully_sharded(rank: int, row: str, cast: bool) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_model_state_dict,
        set_model_state_dict,
    )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = Around(row, seed=0)
    # EvoLFQ passes its input to the user's encoder, which has its own dtype.
    model.wide = ROWS[row].name != "EvoLFQ"
    mesh = init_device_mesh("cpu", (2,))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    own = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=cast)
    fully_shard(model.encoder, mesh=mesh, mp_policy=policy)
    fully_shard(model.quantizer, mesh=mesh, mp_policy=own)
    fully_shard(model.decoder, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for step in range(4):
        loss = model(batch(row, step, rank))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert torchvq.verify_replicas(model) == []
    options = StateDictOptions(full_state_dict=True)
    whole = {
        name: value.clone() for name, value in get_model_state_dict(model, options=options).items()
    }
    set_model_state_dict(model, dict(whole), options=options)
    model.eval()
    with torch.no_grad():
        evaluated = model(data(row, 99))
    return {
        "state": state_of(model),
        "whole": whole,
        "losses": losses,
        "output": model.output,
        "evaluated": evaluated,
    }


def rotations_differ(rank: int) -> list[str]:
    """Ranks that drew different rotations, without exchanging them."""
    found = torchvq.verify_replicas(build("fsq_rotation", rank), raise_on_difference=False)
    return [str(difference) for difference in found]


def on_rank(rank: int, name: str, *args: Any) -> dict[str, Any]:
    functions = (data_parallel, two_forwards, fully_sharded)
    return every_row({own.__name__: own for own in functions}[name], rank, *args)
