"""The synchronised operators under torch.compile and torch.library.opcheck."""

from __future__ import annotations

import pytest
import torch
from kinds import exhaustive
from ranks import Ranks
from shards import codebook, concatenated, group_name, make_shard
from torch import Tensor

import torchvq

ops = torch.ops.torchvq


class Step(torch.nn.Module):
    """A training step of two levels, made of operators."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.handle = ops.new_handle()
        for level in range(2):
            self.register_buffer(f"embed{level}", codebook(seed=level))
            self.register_buffer(f"embed_avg{level}", codebook(seed=level))
            self.register_buffer(f"cluster_size{level}", torch.full((2, 7), 0.5))
        self.register_buffer("rng", torch.tensor([5, 0]))

    def both(self, name: str) -> list[Tensor]:
        return [getattr(self, f"{name}{level}") for level in range(2)]

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        names = ("embed", "embed_avg", "cluster_size")
        state = [tensor for name in names for tensor in self.both(name)]
        ops.handshake_([*state, self.rng], handle=self.handle, group_name=self.name, label="step")
        indices = [ops.nearest_code(x, embed)[0] for embed in self.both("embed")]
        quantized = sum(
            ops.lookup_codes(embed, i) for embed, i in zip(self.both("embed"), indices, strict=True)
        )
        exponents = [ops.code_exponents(embed) for embed in self.both("embed")]
        counts, sums, used = ops.synced_code_statistics(
            [x.detach(), x.detach()],
            indices,
            exponents,
            mask=[mask],
            state=state,
            rng=self.rng,
            group_name=self.name,
        )
        for level in range(2):
            ops.ema_update_(
                self.both("cluster_size")[level],
                self.both("embed_avg")[level],
                self.both("embed")[level],
                counts[level],
                sums[level],
                used[level],
                decay=0.8,
                eps=1e-5,
            )
        ops.synced_replace_dead_codes_(
            self.both("embed"),
            self.both("embed_avg"),
            self.both("cluster_size"),
            [x.detach(), x.detach()],
            counts,
            [self.rng, self.rng + 1],
            mask=[mask],
            threshold=2.0,
            reset_cluster_size=2.0,
            group_name=self.name,
        )
        ops.advance_rng_(self.rng, counts[0] > 0)
        return ((quantized - x) * mask.unsqueeze(-1)).nan_to_num().square().sum()


def train(rank: int, size: int, backend: str | None):
    torch._dynamo.reset()
    step = Step(group_name() if size == 2 else "")
    call = step if backend is None else torch.compile(step, fullgraph=True, backend=backend)
    gradients = []
    for seed in range(3):
        shard = concatenated(
            [make_shard("ragged", r, 2, seed=seed) for r in ([rank] if size == 2 else [0, 1])]
        )
        x = shard.x.nan_to_num().requires_grad_()
        call(x, shard.mask).backward()
        gradients.append(x.grad)
    return {name: buffer.clone() for name, buffer in step.named_buffers()}, gradients


@pytest.mark.parametrize("backend", ["aot_eager", exhaustive("inductor")])
def test_compiled_steps_on_two_ranks_are_the_eager_steps_of_one_process(two: Ranks, backend: str):
    wanted, _ = train(0, 1, None)
    eager = two.run(train, 2, None)
    for (state, gradients), (_, plain) in zip(two.run(train, 2, backend), eager, strict=True):
        for name, tensor in wanted.items():
            assert torch.equal(state[name], tensor), name
        for got, expected in zip(gradients, plain, strict=True):
            torch.testing.assert_close(got, expected)
    for state, _ in eager:
        for name, tensor in wanted.items():
            assert torch.equal(state[name], tensor), name


# Numbers among the options, which a graph with free sizes has as inputs, are part of the text that ranks compare.
FREE: dict[str, dict[str, object]] = {
    "VectorQuantize": dict(dim=6, codebook_size=8, affine_param=True, sync_affine_param=True),
    "ResidualVQ": dict(dim=6, codebook_size=8, num_quantizers=2, dead_code_threshold_fraction=0.1),
    "HierarchicalVQ": dict(
        dim=6,
        codebook_size=8,
        scales=(1, 2),
        nested_dropout=0.5,
        channel_first=False,
        kmeans_init=False,
    ),
    "LFQ": dict(dim=6, codebook_size=16, frac_per_sample_entropy=0.5, commitment_loss_weight=0.25),
    "FSP": dict(dim=6, levels=[5, 5, 3]),
}


def with_free_sizes(rank: int, name: str) -> list[bool]:
    """Whether outputs, gradients and state of an eager module are those of a compiled one."""
    torch.compiler.reset()
    pairs, modules = [], []
    for _ in range(2):
        torch.manual_seed(3)
        modules.append(getattr(torchvq, name)(**FREE[name]))
    call = torch.compile(modules[1], fullgraph=True, dynamic=True, backend="aot_eager")
    for number, batch in enumerate((3, 4, 2)):
        x = torch.randn(
            batch + rank, 7, 6, generator=torch.Generator().manual_seed(2 * number + rank)
        )
        inputs = [x.clone().requires_grad_() for _ in modules]
        outputs = [step(own)[0] for step, own in zip((modules[0], call), inputs, strict=True)]
        for output in outputs:
            output.square().sum().backward()
        pairs += [tuple(outputs), (inputs[0].grad, inputs[1].grad)]
        for module in modules:
            for part in module.modules():
                if isinstance(part, torchvq.codebook.Codebook):
                    part.decay = 0.9  # the text changes with it
    states = [module.state_dict() for module in modules]
    pairs += [(tensor, states[1][key]) for key, tensor in states[0].items()]
    return [torch.equal(eager, compiled) for eager, compiled in pairs]


@pytest.mark.parametrize("name", FREE)
def test_ranks_with_free_sizes_are_one_graph(two: Ranks, name: str) -> None:
    for equal in two.run(with_free_sizes, name):
        assert all(equal)


def cases() -> dict[str, tuple[tuple[object, ...], dict[str, object]]]:
    shard, embed = make_shard("even", 0, 3), codebook()
    size, counts, rng = (
        torch.full((2, 7), 0.5),
        torch.zeros(2, 7, dtype=torch.long),
        torch.tensor([1, 2]),
    )
    statistics = {"mask": [shard.mask], "state": [embed], "rng": rng}
    dead = {"mask": [], "threshold": 2.0, "reset_cluster_size": 2.0}
    return {
        "synced_code_statistics": (
            ([shard.x], [shard.indices], [ops.code_exponents(embed)]),
            statistics,
        ),
        "synced_replace_dead_codes_": (
            (
                [embed.clone()],
                [embed.clone()],
                [size],
                [shard.x],
                [counts],
                [rng],
            ),
            dead,
        ),
        "synced_kmeans": ((shard.x, 3, rng), {"mask": shard.mask}),
        "all_reduce_statistics": ((shard.x.nan_to_num(),), {}),
        "all_reduce_differentiable": ((shard.x.nan_to_num().requires_grad_(),), {}),
        "codebook_diversity_totals": (
            (shard.x.nan_to_num(), embed),
            {"temperature": 2.0, "metric": "cosine", "mask": shard.mask},
        ),
        "state_hash": (([embed, rng],), {}),
        "replica_hashes": (([embed, rng],), {}),
        "broadcast_state_": (([embed.clone(), rng.clone()],), {}),
        "handshake_": (([embed.clone(), rng.clone()],), {"handle": 3}),
    }


@pytest.mark.parametrize("op", cases())
def test_opcheck(op: str):
    arguments, options = cases()[op]
    torch.library.opcheck(getattr(ops, op).default, arguments, options)
