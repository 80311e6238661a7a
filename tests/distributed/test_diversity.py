"""The codebook diversity loss over ranks and its averaged gradient equal those of one process with the whole batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import Ranks
from torch import Tensor, nn

from torchvq import ResidualVQ, VectorQuantize

DIM = 6
# Tokens of each of three ranks; with two ranks, the last two are one. A share of 0 is an empty or a fully masked batch.
SHARES = {
    "even": (20, 20, 20),
    "ragged": (1, 40, 9),
    "one rank without tokens": (30, 0, 12),
    "one token": (0, 0, 1),
    "nobody has tokens": (0, 0, 0),
}
OPTIONS = dict(commitment_weight=0.0, codebook_diversity_loss_weight=1.0)
CASES: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "vq": (VectorQuantize, dict(codebook_size=12, codebook_diversity_temperature=3.0)),
    "sharp": (VectorQuantize, dict(codebook_size=12, codebook_diversity_temperature=2000.0)),
    "cosine": (VectorQuantize, dict(codebook_size=12, use_cosine_sim=True)),
    "heads": (
        VectorQuantize,
        dict(codebook_size=12, heads=2, codebook_dim=3, separate_codebook_per_head=True),
    ),
    "learnable": (
        VectorQuantize,
        dict(codebook_size=12, learnable_codebook=True, ema_update=False),
    ),
    "residual": (ResidualVQ, dict(codebook_size=(12, 8, 5))),
    "residual_shared": (ResidualVQ, dict(codebook_size=8, num_quantizers=3, shared_codebook=True)),
    "residual_dropout": (
        ResidualVQ,
        dict(codebook_size=8, num_quantizers=4, quantize_dropout=True),
    ),
    "residual_temperatures": (ResidualVQ, dict(codebook_size=8, num_quantizers=3)),
    # Each token has codes of its own.
    "implicit": (
        ResidualVQ,
        dict(codebook_size=6, num_quantizers=3, implicit_neural_codebook=True),
    ),
}


def shares_of(name: str, size: int) -> tuple[int, ...]:
    first, *others = SHARES[name]
    return (first, sum(others)) if size == 2 else (first, *others)


def build(case: str, **options: Any) -> nn.Module:
    torch.manual_seed(3)
    kind, own = CASES[case]
    module = kind(dim=DIM, **{**OPTIONS, **own, **options}).double()
    if case == "residual_temperatures":
        for level, temperature in zip(module.layers, (2.0, 30.0, 0.5), strict=True):
            level.codebook_diversity_temperature = temperature
    return module


class Encoded(nn.Module):
    def __init__(self, case: str, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.encoder = nn.Linear(DIM, DIM).double()
        self.vq = build(case, **options)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.vq(self.encoder(x), mask=mask)[2].sum()


def whole(shares: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(1, sum(shares), DIM, generator=generator, dtype=torch.float64)
    return x, torch.rand(1, sum(shares), generator=generator) < 0.8


def gradient_of(rank: int | None, size: int, case: str, shares: tuple[int, ...]) -> Any:
    model = Encoded(case, sync_codebook=None if rank is not None else False)
    x, mask = whole(shares)
    if rank is not None:
        x, mask = x.split(shares, 1)[rank], mask.split(shares, 1)[rank]
    torch.ops.torchvq.reset_traffic()
    loss = model(x, mask)
    loss.backward()
    gradients = {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in model.named_parameters()
    }
    return loss.detach(), gradients


@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("case", CASES)
def test_averaged_gradients_are_those_of_one_process(ranks: Ranks, case: str, shares: str) -> None:
    parts = shares_of(shares, ranks.size)
    answers = ranks.run(gradient_of, ranks.size, case, parts)
    loss, expected = gradient_of(None, ranks.size, case, parts)
    for own, _ in answers:
        # Sums of float64 in another order.
        torch.testing.assert_close(own, loss, rtol=1e-10, atol=1e-12)
    for name, right in expected.items():
        average = sum(gradients[name] for _, gradients in answers) / ranks.size
        torch.testing.assert_close(average, right, rtol=1e-8, atol=1e-11, msg=name)
    if shares == "even":
        assert any(value.abs().max() > 1e-6 for value in expected.values()) or case == "sharp"


def data_parallel(rank: int, size: int) -> tuple[Tensor, Tensor]:
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(Encoded("residual"))
    x, mask = (
        t.split(shares_of("ragged", size), 1)[rank] for t in whole(shares_of("ragged", size))
    )
    model(x, mask).backward()
    return model.module.encoder.weight.grad, model.module.encoder.bias.grad


def test_data_parallel_training_averages(ranks: Ranks) -> None:
    _, expected = gradient_of(None, ranks.size, "residual", shares_of("ragged", ranks.size))
    for weight, bias in ranks.run(data_parallel, ranks.size):
        torch.testing.assert_close(weight, expected["encoder.weight"], rtol=1e-8, atol=1e-11)
        torch.testing.assert_close(bias, expected["encoder.bias"], rtol=1e-8, atol=1e-11)


# Collectives -----------------------------------------------------------------------------------------------------


def traffic(rank: int, case: str) -> dict[str, tuple[int, ...]]:
    model = Encoded(case)
    x, mask = (t.split((20, 40), 1)[rank] for t in whole((20, 20, 20)))
    model(x, mask)
    counted = {}
    torch.ops.torchvq.reset_traffic()
    loss = model(x, mask)
    counted["forward"] = torch.ops.torchvq.traffic()
    loss.backward()
    counted["with backward"] = torch.ops.torchvq.traffic()
    torch.ops.torchvq.reset_traffic()
    model.eval()(x, mask)
    counted["evaluation"] = torch.ops.torchvq.traffic()
    return counted


@pytest.mark.parametrize(
    ("case", "messages"),
    [
        # One all-reduce for the statistics, one for the totals of all levels.
        ("vq", 2),
        ("residual", 2),
        ("residual_dropout", 2),
        # No statistics, because codes learn by gradient.
        ("implicit", 1),
    ],
)
def test_one_more_all_reduce_and_none_in_backward(two: Ranks, case: str, messages: int) -> None:
    for counted in two.run(traffic, case):
        assert counted["forward"][:3] == counted["with backward"][:3] == (messages, 0, 0)
        assert counted["evaluation"] == (0, 0, 0, 0)


def recompute(rank: int) -> Any:
    plain, again = Encoded("residual"), Encoded("residual")
    x, mask = (t.split((20, 40), 1)[rank] for t in whole((20, 20, 20)))
    plain(x, mask).backward()
    loss = torch.utils.checkpoint.checkpoint(again, x, mask, use_reentrant=False)
    torch.ops.torchvq.reset_traffic()
    loss.backward()
    sent = torch.ops.torchvq.traffic()
    return sent, torch.equal(plain.encoder.weight.grad, again.encoder.weight.grad)


def test_recomputation_sends_nothing_and_finds_the_same(two: Ranks) -> None:
    assert two.run(recompute) == [((0, 0, 0, 0), True)] * 2


def compiled(rank: int) -> bool:
    torch._dynamo.reset()
    eager, module = Encoded("residual"), Encoded("residual")
    step = torch.compile(module, fullgraph=True, backend="aot_eager")
    x, mask = (t.split((20, 40), 1)[rank] for t in whole((20, 20, 20)))
    for _ in range(2):
        eager(x, mask).backward()
        step(x, mask).backward()
    return torch.equal(eager.encoder.weight.grad, module.encoder.weight.grad)


def test_compiled_ranks_are_eager_ranks(two: Ranks) -> None:
    assert two.run(compiled) == [True, True]


# Operators -------------------------------------------------------------------------------------------------------

ops = torch.ops.torchvq


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_totals_are_sums_of_probabilities(metric: str) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 30, DIM, generator=generator)
    codes = torch.randn(2, 7, DIM, generator=generator)
    mask = torch.rand(2, 30, generator=generator) < 0.7
    totals = ops.codebook_diversity_totals(x, codes, temperature=2.0, metric=metric, mask=mask)
    a, b = x.double(), codes.double()
    scores = -torch.cdist(a, b)
    if metric == "cosine":
        scores = nn.functional.normalize(a, dim=-1) @ nn.functional.normalize(b, dim=-1).mT
    right = ((2 * scores).softmax(-1) * mask.unsqueeze(-1)).sum(1)
    # Distances by expansion lose half of the digits of float64.
    torch.testing.assert_close(totals[:, :7], right, rtol=1e-7, atol=1e-9)
    assert totals[:, 7:].tolist() == [[mask[0].sum(), 1], [mask[1].sum(), 1]]


def test_totals_are_checked() -> None:
    x, codes = torch.randn(1, 4, DIM), torch.randn(1, 5, DIM)
    options = {"temperature": 1.0, "metric": "euclidean"}
    for totals, error, message in (
        (torch.ones(1, 6), ValueError, "expected totals to have size 7"),
        (torch.ones(2, 7), ValueError, "expected totals to have size 1"),
        (torch.ones(7), ValueError, "expected totals to have 2 dimensions"),
        (torch.ones(1, 7, dtype=torch.long), TypeError, "expected totals to be floating"),
    ):
        with pytest.raises(error, match=message):
            ops.codebook_diversity_loss(x, codes, totals=totals, **options)
