"""stats(synced=True) equals that of one process with the whole batch; verify_replicas names the tensors that differ."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import Ranks, outcome
from test_modules import DIM, batch, build, shares_of

import torchvq
from torchvq import (
    LFQ,
    GroupedResidualVQ,
    LatentQuantize,
    ResidualLFQ,
    ResidualSimVQ,
    ResidualVQ,
    SimVQ,
    VectorQuantize,
    verify_replicas,
)
from torchvq.monitor import read_json_lines

STEPS = 8
CASES = ["default", "dead_codes", "separate_heads", "residual_sizes", "residual_shared", "grouped"]


def flatten(stats: Any) -> list[torchvq.CodebookStats]:
    if isinstance(stats, torchvq.CodebookStats):
        return [stats]
    return [entry for part in stats for entry in flatten(part)]


def read(rank: int | None, size: int, case: str) -> Any:
    module = build(
        case, 100 + (rank or 0), **({} if rank is not None else {"sync_codebook": False})
    )
    found = []
    for step in range(STEPS):
        x, mask = batch(step, shares_of(step, size))
        mine = torch.cat(x, 1) if rank is None else x[rank]
        real = torch.cat(mask, 1) if rank is None else mask[rank]
        module(mine, mask=real)
        torch.ops.torchvq.reset_traffic()
        local = flatten(module.stats())
        assert torch.ops.torchvq.traffic() == (0, 0, 0, 0)
        together = flatten(module.stats(synced=True))
        found.append((local, together, torch.ops.torchvq.traffic()[:3]))
    return found


@pytest.mark.parametrize("case", CASES)
def test_synced_stats_are_those_of_one_process(ranks: Ranks, case: str) -> None:
    answers = ranks.run(read, ranks.size, case)
    expected = read(None, ranks.size, case)
    for step, (right, _, _) in enumerate(expected):
        counted = [answer[step] for answer in answers]
        for local, together, traffic in counted:
            assert together == right, step
            assert traffic == (1, 1, 0)
            assert [entry[2:4] for entry in local] == [entry[2:4] for entry in right]
        for level, entry in enumerate(right):
            assert entry.tokens == sum(local[level].tokens for local, _, _ in counted)
    assert any(entry.replaced for right, _, _ in expected for entry in right) == (case != "default")


def unsynced(rank: int) -> Any:
    module = build("default", 3, sync_codebook=False)
    module(torch.randn(1, 10 + rank, DIM))
    torch.ops.torchvq.reset_traffic()
    return module.stats(synced=True).tokens, torch.ops.torchvq.traffic()


def test_a_codebook_of_its_own_has_no_other_ranks(two: Ranks) -> None:
    assert two.run(unsynced) == [(10, (0, 0, 0, 0)), (11, (0, 0, 0, 0))]


def by_gradient(rank: int) -> Any:
    module = VectorQuantize(DIM, 8, learnable_codebook=True, ema_update=False)
    module(torch.randn(1, 10 + rank, DIM))
    return module.stats(synced=True).tokens, module.stats().tokens


def test_codebooks_that_learn_by_gradient_are_counted(two: Ranks) -> None:
    assert two.run(by_gradient) == [(21, 10), (21, 11)]


def unlike(rank: int) -> str:
    return outcome(lambda: VectorQuantize(DIM, 8 + rank).stats(synced=True))


def test_codebooks_of_other_sizes_are_refused(two: Ranks) -> None:
    """Gloo would end a process whose message is of another size."""
    for message in two.run(unlike):
        assert message.startswith(
            "DistError: stats: expected the number of codes to be equal on all"
        )
        assert "ranks, but got 8, 9" in message


# Replicas ------------------------------------------------------------------------------------------------------


class Model(torch.nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.encoder = torch.nn.Linear(DIM, DIM)
        self.vq = VectorQuantize(DIM, 16, **options)
        self.stack = ResidualVQ(dim=DIM, num_quantizers=2, codebook_size=8, shared_codebook=True)
        self.groups = GroupedResidualVQ(dim=DIM, groups=2, num_quantizers=2, codebook_size=8)
        self.own = VectorQuantize(DIM, 4, sync_codebook=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.own(self.encoder(x))[0]
        return self.groups(self.stack(self.vq(x)[0])[0])[0]


def compare(rank: int, meddle: bool) -> Any:
    torch.manual_seed(rank)  # `encoder` and `own` differ, which must not matter
    model = Model()
    for step in range(3):
        model(torch.randn(1, 20, DIM, generator=torch.Generator().manual_seed(10 * step + rank)))
    if meddle and rank == 1:
        model.vq._codebook.embed[0, 3, 2] += 1e-6
        model.groups.rvqs[1].layers[0]._codebook.rng[1] += 1
    if meddle and rank == 2:
        model.groups.rvqs[1].layers[0]._codebook.rng[1] += 2
    before = [value.clone() for value in model.state_dict().values()]
    torch.ops.torchvq.reset_traffic()
    found = verify_replicas(model, raise_on_difference=False)
    traffic = torch.ops.torchvq.traffic()
    message = outcome(verify_replicas, model.eval())
    same = all(map(torch.equal, before, model.state_dict().values()))
    return found, traffic, message, same


def test_equal_replicas_are_no_difference(ranks: Ranks) -> None:
    for found, traffic, message, same in ranks.run(compare, False):
        assert found == [] and message == "nothing" and same
        # 8 bytes for the kind of the quantizers, and 8 for each of five tensors of six codebooks.
        assert traffic == (0, 2, 0, 8 + 8 * 5 * 6)


def test_differences_name_quantizer_tensor_and_ranks(ranks: Ranks) -> None:
    for found, _, message, same in ranks.run(compare, True):
        assert same
        rest = ((0,), (1,)) if ranks.size == 2 else ((0, 2), (1,))
        every = ((0,), (1,)) if ranks.size == 2 else ((0,), (1,), (2,))
        assert found == [
            ("vq", "_codebook.embed", rest),
            ("groups.rvqs.1.layers.0", "_codebook.rng", every),
        ]
        assert message.startswith("DistError: verify_replicas: expected the quantizers to be equal")
        for difference in found:
            assert f"\n  {difference}\n" in message
    assert str(found[0]) == f"vq._codebook.embed: ranks {'0, 2' if ranks.size == 3 else '0'} | 1"


def latent() -> LatentQuantize:
    sgd = partial(torch.optim.SGD, lr=0.1)
    return LatentQuantize([4, 4], DIM, channel_first=False, in_place_codebook_optimizer=sgd)


DROPOUT = dict(dim=DIM, num_quantizers=2, codebook_size=16, quantize_dropout=True)
SHARED: list[tuple[Callable[[], torch.nn.Module], str]] = [
    (partial(SimVQ, dim=DIM, codebook_size=16), "frozen_codebook"),
    (partial(ResidualSimVQ, **DROPOUT), "rng"),
    (partial(ResidualSimVQ, **DROPOUT), "layers.1.frozen_codebook"),
    (partial(LFQ, dim=DIM, codebook_size=16, frac_per_sample_entropy=0.5), "rng"),
    (partial(ResidualLFQ, **DROPOUT), "rng"),
    (latent, "values_per_latent.1"),
]


def meddle(rank: int, make: Callable[[], torch.nn.Module], name: str) -> tuple[Any, Any]:
    torch.manual_seed(rank)
    module = make()
    for _ in range(2):
        module(torch.randn(1, 20, DIM))
    before = verify_replicas(module)
    if rank == 1:
        module.state_dict()[name][1] += 1
    return before, verify_replicas(module, raise_on_difference=False)


@pytest.mark.parametrize(("make", "name"), SHARED)
def test_whatever_ranks_share_is_compared(
    two: Ranks, make: Callable[[], torch.nn.Module], name: str
) -> None:
    for before, (found,) in two.run(meddle, make, name):
        assert before == [] and found.parties == ((0,), (1,))
        assert ".".join(filter(None, found[:2])) == name


def compare_unlike(rank: int) -> str:
    return outcome(verify_replicas, VectorQuantize(DIM, 8 + 8 * (rank == 1)))


def test_other_quantizers_on_some_ranks_are_a_sentence(ranks: Ranks) -> None:
    for rank, message in enumerate(ranks.run(compare_unlike)):
        assert message.startswith(
            "ValueError: verify_replicas: expected all ranks to have the same"
        )
        assert f"_codebook.embed torch.float32 [1, {8 + 8 * (rank == 1)}, {DIM}]" in message


def compare_subgroup(rank: int) -> Any:
    import torch.distributed as dist

    groups = [dist.new_group([0, 1]), dist.new_group([2])]
    torch.manual_seed(rank // 2)
    module = VectorQuantize(DIM, 8, process_group=groups[rank // 2])
    return verify_replicas(module), len(
        verify_replicas(module, dist.group.WORLD, raise_on_difference=False)
    )


def test_a_group_may_be_given(pool: Any) -> None:
    for own, whole in pool(3).run(compare_subgroup):
        assert own == [] and whole > 0


def test_one_process_has_no_replicas() -> None:
    assert verify_replicas(torch.nn.Linear(2, 2)) == [] == verify_replicas(VectorQuantize(DIM, 8))


# Monitor -------------------------------------------------------------------------------------------------------


def observe(rank: int, folder: str, synced: bool) -> Any:
    model = Model()
    file = f"{folder}/run.jsonl"
    monitor = torchvq.Monitor(model, json_lines=file, synced=synced, every=2)
    found, traffic = [], []
    for step in range(4):
        model(torch.randn(1, 20 + rank, DIM))
        torch.ops.torchvq.reset_traffic()
        found.append(monitor.step(step))
        traffic.append(torch.ops.torchvq.traffic()[:3])
    monitor.close()
    return found, traffic


@pytest.mark.parametrize("synced", [False, True])
def test_rank_0_writes_what_all_know(ranks: Ranks, tmp_path: Path, synced: bool) -> None:
    answers = ranks.run(observe, str(tmp_path), synced)
    records = read_json_lines(tmp_path / "run.jsonl")
    first = answers[0][0]
    assert [(r["step"], r["quantizer"]) for r in records] == [
        (step, name) for step in (0, 2) for name in first[0]
    ]
    for record in records:
        fields = [record[field] for field in torchvq.CodebookStats._fields]
        assert first[record["step"]][record["quantizer"]] == tuple(fields)
    for rank, (found, traffic) in enumerate(answers):
        # One all-reduce for six levels, none for the quantizer that is local to each rank.
        assert traffic == [(1, 1, 0) if synced else (0, 0, 0), (0, 0, 0)] * 2
        assert found[1] == {}
        total = sum(20 + r for r in range(ranks.size)) if synced else 20 + rank
        assert found[0]["vq"].tokens == total and found[0]["own"].tokens == 20 + rank
