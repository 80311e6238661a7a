"""LFQ on ranks: entropies, and averaged gradients, are those of one process with the whole batch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from ranks import Ranks
from torch import Tensor, nn

from torchvq import LFQ

DIM = 6
# Tokens of each of three ranks; with two ranks, the last two are one. A share of 0 is an empty batch.
SHARES = {
    "even": (20, 20, 20),
    "ragged": (1, 40, 9),
    "one rank without tokens": (30, 0, 12),
    "one token": (0, 0, 1),
    "nobody has tokens": (0, 0, 0),
}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "codebooks": dict(codebook_size=8, num_codebooks=2),
    "spherical": dict(spherical=True),
    "projected": dict(codebook_size=32),
    "softplus": dict(experimental_softplus_entropy_loss=True, commitment_loss_weight=0.0),
}


class Encoded(nn.Module):
    def __init__(self, case: str = "plain", **options: Any) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.encoder = nn.Linear(DIM, DIM)
        own = dict(codebook_size=2**DIM, entropy_loss_weight=1.0, commitment_loss_weight=0.0)
        self.lfq = LFQ(dim=DIM, **{**own, **CASES[case], **options})
        self.double()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.lfq(self.encoder(x), inv_temperature=1.0, mask=mask)[2]


def shares_of(name: str, size: int) -> tuple[int, ...]:
    first, *others = SHARES[name]
    return (first, sum(others)) if size == 2 else (first, *others)


def whole(shares: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(1, sum(shares), DIM, generator=generator, dtype=torch.float64)
    return x, torch.rand(1, sum(shares), generator=generator) < 0.8


def gradient_of(
    rank: int | None,
    case: str,
    shares: tuple[int, ...],
    masked_rank: int | None,
    dtype: torch.dtype,
) -> Any:
    model = Encoded(case, sync_codebook=None if rank is not None else False).to(dtype)
    x, mask = whole(shares)
    x = x.to(dtype)
    if masked_rank is not None:
        mask.split(shares, 1)[masked_rank].fill_(False)
    if rank is not None:
        x, mask = x.split(shares, 1)[rank], mask.split(shares, 1)[rank]
    loss = model(x, mask)
    loss.backward()
    grads = {
        n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()
    }
    return loss.detach(), grads


def assert_same(
    ranks: Ranks, case: str, shares: str, masked: int | None, dtype: torch.dtype, tolerance: float
) -> None:
    parts = shares_of(shares, ranks.size)
    answers = ranks.run(gradient_of, case, parts, masked, dtype)
    loss, expected = gradient_of(None, case, parts, masked, dtype)
    for own, _ in answers:
        torch.testing.assert_close(own, loss, rtol=tolerance, atol=tolerance)
    for name, right in expected.items():
        average = sum(grads[name] for _, grads in answers) / ranks.size
        error = (average - right).abs().max()
        assert error <= tolerance * max(1e-3, float(right.abs().max())), name
    if shares == "even":
        assert expected["encoder.weight"].abs().max() > 1e-4


@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("case", CASES)
def test_averaged_gradients_are_those_of_one_process(ranks: Ranks, case: str, shares: str) -> None:
    assert_same(ranks, case, shares, None, torch.float64, 1e-10)


def test_a_rank_may_be_all_padding(ranks: Ranks) -> None:
    assert_same(ranks, "plain", "even", 1, torch.float64, 1e-10)


def test_float32(ranks: Ranks) -> None:
    assert_same(ranks, "plain", "ragged", None, torch.float32, 1e-6)


def data_parallel(rank: int, size: int) -> Tensor:
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(Encoded())
    shares = shares_of("ragged", size)
    x, mask = (part.split(shares, 1)[rank] for part in whole(shares))
    model(x, mask).backward()
    return model.module.encoder.weight.grad


def test_data_parallel_training_averages(ranks: Ranks) -> None:
    _, expected = gradient_of(None, "plain", shares_of("ragged", ranks.size), None, torch.float64)
    for weight in ranks.run(data_parallel, ranks.size):
        torch.testing.assert_close(weight, expected["encoder.weight"], rtol=1e-6, atol=1e-12)


def disjoint(rank: int) -> list[float]:
    """All tokens of a rank are certain of one code, which differs between ranks."""
    lfq = LFQ(dim=3, codebook_size=8, commitment_loss_weight=1.0)
    x = torch.full((1, 10, 3), 1.0 if rank == 0 else -1.0)
    return [float(term) for term in lfq(x, return_loss_breakdown=True)[1]]


def test_entropy_is_that_of_the_mixture(two: Ranks) -> None:
    for per_sample, batch, _ in two.run(disjoint):
        assert per_sample == pytest.approx(0, abs=1e-6)
        assert batch == pytest.approx(math.log(2), rel=1e-6)


def traffic(rank: int) -> list[tuple[int, ...]]:
    model = Encoded()
    x, mask = (part.split((20, 40), 1)[rank] for part in whole((20, 20, 20)))
    model(x, mask)
    counted = []
    torch.ops.torchvq.reset_traffic()
    loss = model(x, mask)
    loss.backward()
    counted.append(torch.ops.torchvq.traffic())
    torch.ops.torchvq.reset_traffic()
    model.eval()(x, mask)
    counted.append(torch.ops.torchvq.traffic())
    Encoded(sync_codebook=False)(x, mask)
    counted.append(torch.ops.torchvq.traffic())
    return counted


def test_one_all_reduce_per_step_and_none_in_evaluation(two: Ranks) -> None:
    for step, evaluation, alone in two.run(traffic):
        assert step[:3] == (1, 0, 0)
        assert evaluation == alone == (0, 0, 0, 0)


def recompute(rank: int) -> Any:
    plain, again = Encoded(), Encoded()
    x, mask = (part.split((20, 40), 1)[rank] for part in whole((20, 20, 20)))
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
    eager, module = Encoded(), Encoded()
    step = torch.compile(module, fullgraph=True, backend="aot_eager")
    x, mask = (part.split((20, 40), 1)[rank] for part in whole((20, 20, 20)))
    for _ in range(2):
        eager(x, mask).backward()
        step(x, mask).backward()
    return torch.equal(eager.encoder.weight.grad, module.encoder.weight.grad)


def test_compiled_ranks_are_eager_ranks(two: Ranks) -> None:
    assert two.run(compiled) == [True, True]


def subsets(rank: int) -> Any:
    torch.manual_seed(rank)
    lfq = LFQ(dim=4, codebook_size=16, frac_per_sample_entropy=0.5, commitment_loss_weight=1.0)
    losses = [lfq(torch.randn(1, 9, 4))[2].item() for _ in range(3)]
    return losses, lfq.rng.tolist()


def test_ranks_share_the_seed_and_the_loss_of_their_subsets(two: Ranks) -> None:
    (_, first), (_, second) = two.run(subsets)
    assert first == second and first[1] == 3


def own_group(rank: int) -> float:
    import torch.distributed as dist

    group = dist.new_group([0])
    model = Encoded(process_group=group) if rank == 0 else Encoded(sync_codebook=False)
    return float(model(whole((5,))[0]).detach())


def test_a_group_of_its_own(two: Ranks) -> None:
    first, second = two.run(own_group)
    assert first == pytest.approx(second, rel=1e-12)


# Stacks ----------------------------------------------------------------------------------------------------------


def stack_of(
    rank: int | None, shares: tuple[int, ...], options: dict[str, Any], again: str | None = None
) -> Any:
    from torchvq import GroupedResidualLFQ, ResidualLFQ

    torch.manual_seed(4)
    encoder = nn.Linear(DIM, DIM).double()
    torch.manual_seed(5 if rank is None else 5 + 7 * rank)
    options = dict(options)
    evaluating = options.pop("evaluating", None)
    groups = options.get("groups", 1)
    stack = (GroupedResidualLFQ if groups > 1 else ResidualLFQ)(
        dim=DIM,
        codebook_size=2 ** (DIM // groups),
        num_quantizers=4,
        commitment_loss_weight=0.25,
        sync_codebook=None if rank is not None else False,
        **options,
    )
    x, mask = whole(shares)
    if rank is not None:
        x, mask = x.split(shares, 1)[rank], mask.split(shares, 1)[rank]
    # The commitment loss is local to each rank; only the entropy is shared.
    for module in stack.modules():
        if isinstance(module, LFQ):
            module.commitment_loss_weight = 0.0
    if evaluating is not None:
        stack.get_submodule(evaluating).eval()
    stack(encoder(0.001 * x), mask)
    torch.ops.torchvq.reset_traffic()
    if again is not None:
        quantized, indices, losses = torch.utils.checkpoint.checkpoint(
            stack, encoder(0.001 * x), mask, use_reentrant=again == "reentrant"
        )
    else:
        quantized, indices, losses = stack(encoder(0.001 * x), mask)
    losses.sum().backward()
    return torch.ops.torchvq.traffic()[:3], losses.detach(), encoder.weight.grad, indices


STACKS: dict[str, dict[str, Any]] = {
    "stack": {},
    "dropout": dict(quantize_dropout=True),
    "rotated": dict(orthogonal_rotation=True),
    "groups": dict(groups=2),
    "groups with dropout": dict(groups=2, quantize_dropout=True),
    "first level evaluates": dict(evaluating="layers.0"),
    "first group evaluates": dict(groups=2, evaluating="rvqs.0"),
    "last group evaluates": dict(groups=2, evaluating="rvqs.1"),
}


@pytest.mark.parametrize("options", STACKS)
@pytest.mark.parametrize("shares", ["even", "ragged", "one rank without tokens"])
def test_stacks_send_once_for_all_levels(ranks: Ranks, shares: str, options: str) -> None:
    parts = shares_of(shares, ranks.size)
    _, loss, right, _ = stack_of(None, parts, STACKS[options])
    answers = ranks.run(stack_of, parts, STACKS[options])
    for sent, own, _, _ in answers:
        assert sent == (1, 0, 0)
        torch.testing.assert_close(own, loss, rtol=1e-10, atol=1e-12)
    average = sum(grad for _, _, grad, _ in answers) / ranks.size
    torch.testing.assert_close(average, right, rtol=1e-6, atol=1e-9 * right.abs().max().item())


@pytest.mark.parametrize("options", STACKS)
@pytest.mark.parametrize("kind", ["reentrant", "not reentrant"])
def test_recomputed_stacks_send_once_and_find_the_same(two: Ranks, kind: str, options: str) -> None:
    plain = two.run(stack_of, (20, 40), STACKS[options])
    again = two.run(stack_of, (20, 40), STACKS[options], kind)
    for (_, loss, grad, _), (sent, own, found, _) in zip(plain, again, strict=True):
        assert sent == (1, 0, 0)
        assert torch.equal(own, loss) and torch.equal(found, grad)


def by_itself(rank: int, level: int) -> tuple[Tensor, Tensor]:
    """The losses of a stack with one level that ranks do not share, and of one of which they share none."""
    from torchvq import ResidualLFQ

    found = []
    for own in ([level], range(3)):
        stack = ResidualLFQ(dim=3, codebook_size=8, num_quantizers=3, commitment_loss_weight=0.0)
        for index in own:
            stack.layers[index].sync_codebook = False
        found.append(stack(torch.randn(1, 9, 3, generator=torch.Generator().manual_seed(rank)))[2])
    return found[0].detach(), found[1].detach()


@pytest.mark.parametrize("level", [0, 1])
def test_a_level_that_learns_by_itself(two: Ranks, level: int) -> None:
    (first, first_alone), (second, second_alone) = two.run(by_itself, level)
    shared = [index for index in range(3) if index != level]
    assert torch.equal(first[shared], second[shared]) and first[shared].all()
    assert first[shared].ne(first_alone[shared]).all()
    torch.testing.assert_close(first[level], first_alone[level])
    torch.testing.assert_close(second[level], second_alone[level])
