"""FSP, BinaryMapper, LatentQuantize and own optimizers on several ranks."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from ranks import Ranks
from torch import Tensor

from torchvq import FSP, BinaryMapper, LatentQuantize, VectorQuantize

SHARES = [(20, 12), (1, 30), (0, 17), (0, 0)]


def data() -> Tensor:
    return torch.randn(64, 3, generator=torch.Generator().manual_seed(5)).double() * 1.5 + 0.3


def share_of(rank: int, shares: tuple[int, ...]) -> Tensor:
    start = sum(shares[:rank])
    return data()[start : start + shares[rank]]


def fsp() -> FSP:
    torch.manual_seed(1)
    return FSP([8, 5, 4], vector_norm="kurt")


def norm_of_rank(rank: int, shares: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    x = share_of(rank, shares).requires_grad_()
    out = fsp()(x)
    out.norm_loss.backward()
    return out.norm_loss.detach(), x.grad, out.other_info["norm_info"]["kurtosis"]


@pytest.mark.parametrize("shares", SHARES, ids=str)
def test_moments_are_those_of_all_tokens(two: Ranks, shares: tuple[int, ...]) -> None:
    answers = two.run(norm_of_rank, shares)
    whole = data()[: sum(shares)].requires_grad_()
    expected = fsp()(whole)
    expected.norm_loss.backward()
    for loss, _, kurtosis in answers:
        torch.testing.assert_close(loss, expected.norm_loss.detach())
        torch.testing.assert_close(kurtosis, expected.other_info["norm_info"]["kurtosis"])
    # Data-parallel wrappers average the gradients of parameters, hence the division of the sum by 2.
    torch.testing.assert_close(torch.cat([grad for _, grad, _ in answers]) / 2, whole.grad)


def noise_of_rank(rank: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    logits = torch.zeros(50, 4)
    return fsp()(torch.zeros(50, 3)).quantized, BinaryMapper(4)(logits, return_indices=True).indices


def test_ranks_draw_different_noise(two: Ranks) -> None:
    (first, bits), (second, other) = two.run(noise_of_rank)
    assert not torch.equal(first, second) and not torch.equal(bits, other)


def evaluate_alone(rank: int) -> bool:
    if rank == 1:
        return True
    module = fsp().eval()
    module(torch.zeros(5, 3))
    LatentQuantize([4, 4], 2).eval()(torch.zeros(5, 2))
    return True


def test_evaluation_never_communicates(two: Ranks) -> None:
    assert two.run(evaluate_alone) == [True, True]


def values_of_rank(rank: int, shares: tuple[int, ...]) -> list[Tensor]:
    module = latent()
    module(share_of(rank, shares))
    return [values.detach() for values in module.values_per_latent]


def latent() -> LatentQuantize:
    return LatentQuantize(
        [4, 3, 5], 3, in_place_codebook_optimizer=lambda p: torch.optim.SGD(p, lr=0.5)
    ).double()


@pytest.mark.parametrize("shares", SHARES, ids=str)
def test_in_place_step_is_that_of_all_tokens(two: Ranks, shares: tuple[int, ...]) -> None:
    module = latent()
    module(data()[: sum(shares)])
    for values in two.run(values_of_rank, shares):
        torch.testing.assert_close(values, [v.detach() for v in module.values_per_latent])


def with_moments(kind: str) -> LatentQuantize | VectorQuantize:
    torch.manual_seed(1)
    adam = partial(torch.optim.Adam, lr=0.1)
    if kind == "LatentQuantize":
        return LatentQuantize([4, 3, 5], 3, channel_first=False, in_place_codebook_optimizer=adam)
    by_gradient = dict(learnable_codebook=True, ema_update=False)
    return VectorQuantize(3, 8, **by_gradient, in_place_codebook_optimizer=adam)


def steps_of_rank(
    rank: int, kind: str, steps: list[tuple[int, ...]], masked: bool
) -> list[dict[str, Tensor]]:
    """The state after each step, without the generator, which advances in each."""
    module, states = with_moments(kind), []
    for shares in steps:
        x, mask = share_of(rank, shares).float()[None], None
        if masked:
            mask = (torch.arange(30) < shares[rank])[None]
            x = torch.nn.functional.pad(x, (0, 0, 0, 30 - shares[rank]))
        module(x, mask=mask)
        state = module.state_dict().items()
        states.append({key: value.clone() for key, value in state if not key.endswith("rng")})
    return states


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", ["LatentQuantize", "VectorQuantize"])
def test_an_own_optimizer_steps_where_any_rank_has_a_token(
    two: Ranks, kind: str, masked: bool
) -> None:
    steps = [(20, 12), (0, 0), (0, 17), (9, 0)]
    answers = two.run(steps_of_rank, kind, steps, masked)
    for own, other in zip(*answers, strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=0)
    first, without, second, third = answers[0]
    torch.testing.assert_close(without, first, rtol=0, atol=0)
    step = "in_place_codebook_optimizer.0.step"
    assert [state[step].item() for state in (first, second, third)] == [1, 2, 3]
