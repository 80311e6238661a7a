"""stats(): the usage of codebooks in the last training forward, against numpy."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import support
from torchvq import CodebookStats, GroupedResidualVQ, ResidualVQ, VectorQuantize

ops = torch.ops.torchvq
DIM = 6


def oracle(indices: Tensor, codes: int, heads: int = 1) -> tuple[float, float, float, int]:
    """Usage, perplexity, entropy and tokens of indices whose first axis are separate codebooks."""
    used, entropies, tokens = 0, [], 0
    for row in indices.reshape(heads, -1).numpy():
        counts = np.bincount(row[row >= 0], minlength=codes).astype(np.float64)
        p = counts[counts > 0] / max(counts.sum(), 1)
        entropies.append(-(p * np.log2(p)).sum())
        used += int((counts > 0).sum())
        tokens += int(counts.sum())
    entropy = float(np.mean(entropies))
    return used / (codes * heads), 2**entropy if tokens else 0.0, entropy, tokens


def check(stats: CodebookStats, indices: Tensor, codes: int, heads: int = 1) -> None:
    usage, perplexity, entropy, tokens = oracle(indices, codes, heads)
    assert stats.usage == usage and stats.tokens == tokens
    # float64 sums of a few terms in another order.
    assert stats.perplexity == pytest.approx(perplexity, rel=1e-13)
    assert stats.entropy_bits == pytest.approx(entropy, rel=1e-13, abs=1e-15)


def tokens(seed: int = 0, size: tuple[int, ...] = (2, 40)) -> Tensor:
    return torch.randn(*size, DIM, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_vector_quantize_counts_what_it_returned(masked: bool) -> None:
    support.seed_everything()
    vq = VectorQuantize(DIM, 12)
    mask = torch.rand(2, 40) < 0.6 if masked else None
    for step in range(3):
        indices = vq(tokens(step), mask=mask)[1]
        check(vq.stats(), indices, 12)
    assert vq.stats().tokens == (80 if mask is None else int(mask.sum()))


def test_separate_codebooks_are_averaged_over_heads() -> None:
    support.seed_everything()
    vq = VectorQuantize(DIM, 9, heads=2, codebook_dim=3, separate_codebook_per_head=True)
    indices = vq(tokens())[1]
    check(vq.stats(), indices.movedim(-1, 0), 9, heads=2)


@pytest.mark.parametrize("way", ["update_ema_indices", "expire_codes_"])
def test_learning_outside_of_forward_counts_its_own_replacements_and_draws_anew(way: str) -> None:
    support.seed_everything()
    vq = VectorQuantize(DIM, 12, threshold_ema_dead_code=0.5, decay=0.1)
    state, x = copy.deepcopy(vq.state_dict()), tokens()
    drawn = []
    for _ in range(3):
        with torch.no_grad():
            for name in ("embed", "embed_avg", "cluster_size"):
                getattr(vq._codebook, name).copy_(state[f"_codebook.{name}"])
        if way == "expire_codes_":
            vq._codebook.cluster_size[:, 1:] = 0
            vq.expire_codes_(x)
        else:
            vq.update_ema_indices(x, torch.zeros(2, 40, dtype=torch.long))
        assert vq.stats().replaced == 11
        drawn.append(vq.codebook[1:].clone())
    assert not torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[1], drawn[2])
    # Evaluation replaces nothing, and tells what training replaced.
    before = copy.deepcopy(vq.eval()._codebook.rng)
    if way == "expire_codes_":
        vq.expire_codes_(x)
    else:
        vq.update_ema_indices(x, torch.zeros(2, 40, dtype=torch.long))
    assert vq.stats().replaced == 11 and torch.equal(vq._codebook.rng, before)


def test_no_tokens_are_zero() -> None:
    support.seed_everything()
    vq = VectorQuantize(DIM, 12)
    assert vq.stats()[:2] == (0.0, 0.0) and vq.stats().tokens == 0
    vq(tokens())
    vq(tokens(), mask=torch.zeros(2, 40, dtype=torch.bool))
    assert vq.stats() == CodebookStats(0.0, 0.0, 0, 0, 0.0, 0)


def test_residual_levels_are_counted_each() -> None:
    support.seed_everything()
    rvq = ResidualVQ(dim=DIM, codebook_size=(4, 8, 5))
    indices = rvq(tokens())[1]
    assert len(rvq.stats()) == 3
    for level, stats in enumerate(rvq.stats()):
        check(stats, indices[..., level], rvq.codebook_sizes[level])


def test_levels_that_share_a_codebook_are_counted_each() -> None:
    support.seed_everything()
    rvq = ResidualVQ(
        dim=DIM,
        num_quantizers=3,
        codebook_size=8,
        shared_codebook=True,
        threshold_ema_dead_code=3,
    )
    for step in range(4):
        indices = rvq(tokens(step))[1]
        for level, stats in enumerate(rvq.stats()):
            check(stats, indices[..., level], 8)
    assert len({(stats.dead, stats.replaced) for stats in rvq.stats()}) == 1


@pytest.mark.parametrize("seed", [None, 5], ids=["drawn", "seeded"])
def test_dropped_levels_have_no_tokens(seed: int | None) -> None:
    support.seed_everything()
    rvq = ResidualVQ(dim=DIM, num_quantizers=4, codebook_size=8, quantize_dropout=True)
    dropped = 0
    for step in range(8):
        fixed = None if seed is None else seed + step
        indices = rvq(tokens(step), rand_quantize_dropout_fixed_seed=fixed)[1]
        for level, stats in enumerate(rvq.stats()):
            check(stats, indices[..., level], 8)
            dropped += stats.tokens == 0
    assert dropped > 0


def test_groups_have_their_levels_each() -> None:
    support.seed_everything()
    rvq = GroupedResidualVQ(dim=DIM, groups=2, num_quantizers=3, codebook_size=8)
    indices = rvq(tokens())[1]
    for group, levels in enumerate(rvq.stats()):
        for level, stats in enumerate(levels):
            check(stats, indices[group, ..., level], 8)


def test_beam_search_is_counted() -> None:
    support.seed_everything()
    rvq = ResidualVQ(dim=DIM, num_quantizers=3, codebook_size=8, beam_size=3)
    indices = rvq(tokens())[1]
    for level, stats in enumerate(rvq.stats()):
        check(stats, indices[..., level], 8)


# Dead and replaced codes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{"threshold_ema_dead_code": 3}, {"dead_code_threshold_fraction": 0.7}, {}],
    ids=["threshold", "fraction", "none"],
)
def test_dead_and_replaced_codes(options: dict[str, Any]) -> None:
    """The replaced codes are those whose row is now a token of the batch."""
    support.seed_everything()
    vq = VectorQuantize(DIM, 24, decay=0.5, **options)
    replaced_ever = 0
    for step in range(10):
        x = tokens(step)
        vq(x)
        state, stats = vq._codebook, vq.stats()
        sizes = state.cluster_size.double().numpy()
        limit = options.get("threshold_ema_dead_code", 0.01)
        if "dead_code_threshold_fraction" in options:
            limit = 0.7 * sizes.mean()
        assert stats.dead == int((sizes < limit).sum())
        rows = {row.tobytes() for row in x.reshape(-1, DIM).numpy()}
        taken = sum(code.tobytes() in rows for code in state.embed[0].numpy())
        assert stats.replaced == taken
        replaced_ever += stats.replaced
    assert (replaced_ever > 0) == bool(options)


def test_replaced_codes_are_those_of_the_last_forward() -> None:
    support.seed_everything()
    vq = VectorQuantize(DIM, 24, threshold_ema_dead_code=3)
    while vq.stats().replaced == 0:
        vq(tokens())
    vq(tokens(), freeze_codebook=True)
    assert vq.stats().replaced == 0 and vq.stats().tokens == 80


# What stats must not disturb ---------------------------------------------------------------------------------


def test_evaluation_and_topk_count_nothing() -> None:
    support.seed_everything()
    vq = VectorQuantize(DIM, 12)
    vq(tokens())
    before = vq.stats()
    vq.eval()(tokens(1))
    vq(tokens(1), topk=2)
    assert vq.stats() == before
    vq.train()(tokens(1), topk=2)
    assert vq.stats().tokens == 0


def test_checkpoints_copies_and_casts() -> None:
    support.seed_everything()
    vq = VectorQuantize(DIM, 12, threshold_ema_dead_code=2)
    keys = set(vq.state_dict())
    assert keys == {
        f"_codebook.{n}" for n in ("initted", "cluster_size", "embed_avg", "embed", "rng")
    }
    vq(tokens())
    before = vq.stats()
    assert copy.deepcopy(vq).stats() == before == pickle.loads(pickle.dumps(vq)).stats()
    assert vq.half().stats() == before
    vq.float().load_state_dict(vq.state_dict())
    assert vq.stats().tokens == 0 and vq.stats().replaced == 0


def test_a_module_from_the_meta_device_starts_without_counts() -> None:
    support.seed_everything()
    state = VectorQuantize(DIM, 12).state_dict()
    with torch.device("meta"):
        vq = VectorQuantize(DIM, 12)
    vq.to_empty(device="cpu")
    vq.step_counts.fill_(77)
    vq.load_state_dict(state)
    assert vq.stats().tokens == 0 == vq.stats().replaced
    with torch.device("meta"):
        vq = VectorQuantize(DIM, 12)
    vq.load_state_dict(state, assign=True)
    assert vq.stats().tokens == 0
    indices = vq(tokens())[1]
    check(vq.stats(), indices, 12)


@pytest.mark.parametrize("kind", ["vq", "rvq"])
def test_compiled_steps_count_as_eager_steps(kind: str) -> None:
    options = {"dim": DIM, "codebook_size": 16, "threshold_ema_dead_code": 2}
    support.seed_everything()
    module = VectorQuantize(**options) if kind == "vq" else ResidualVQ(num_quantizers=3, **options)
    eager = copy.deepcopy(module)
    step = torch.compile(module, fullgraph=True, backend="aot_eager")
    for number in range(3):
        step(tokens(number))
        eager(tokens(number))
        assert module.stats() == eager.stats()


def test_a_load_leaves_compiled_steps_as_they_are() -> None:
    torch.compiler.reset()
    vq = VectorQuantize(DIM, 16, threshold_ema_dead_code=2)
    step = torch.compile(vq, fullgraph=True, backend="aot_eager")
    step(tokens())
    vq.load_state_dict(vq.state_dict())
    with torch.compiler.set_stance("fail_on_recompile"):
        step(tokens())


def test_exported_training_steps_count() -> None:
    support.seed_everything()
    vq = VectorQuantize(DIM, 16)
    program = torch.export.export(vq, (tokens(),)).run_decompositions()
    step = program.module()
    indices = step(tokens(3))[1]
    counts = dict(step.named_buffers())["step_counts"]
    assert torch.equal(counts[0], torch.bincount(indices.flatten(), minlength=16))
    torch.export.save(program, io.BytesIO())


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_counts_nothing(reentrant: bool) -> None:
    support.seed_everything()
    rvq = ResidualVQ(dim=DIM, num_quantizers=2, codebook_size=16, threshold_ema_dead_code=3)
    replaced = 0
    for step in range(4):
        first = torch.utils.checkpoint.checkpoint(
            rvq, tokens(step).requires_grad_(), use_reentrant=reentrant
        )
        before = rvq.stats()
        first[0].sum().backward()
        assert rvq.stats() == before
        replaced += before[0].replaced
    assert replaced > 0


# Operators -----------------------------------------------------------------------------------------------------


def count_cases() -> tuple[list[Tensor], list[Tensor]]:
    counts = [torch.full((2, 5), 9), torch.full((1, 3), 9), torch.full((1, 2), 9)]
    indices = [torch.tensor([[0, 4, 4, -1], [1, 1, 1, 3]]), torch.tensor([[2, -1, -1, 2, 0]])]
    return counts, indices


def test_count_codes_on_every_path() -> None:
    expected = [[[1, 0, 0, 0, 2], [0, 3, 0, 1, 0]], [[1, 0, 2]], [[0, 0]]]
    for run in (ops.count_codes_, support.any_path("count_codes_")):
        counts, indices = count_cases()
        run(counts, [indices[0].t().contiguous().t(), indices[1]])
        assert [c.tolist() for c in counts] == expected


@pytest.mark.parametrize("run", [ops.count_codes_, support.any_path("count_codes_")])
def test_count_codes_checks_before_it_writes(run: Callable[..., None]) -> None:
    counts, indices = count_cases()
    for bad, error, message in (
        ([torch.tensor([[0, 5], [0, 0]])], IndexError, r"in \[-1, 5\), but got 5"),
        ([torch.tensor([[0, -2], [0, 0]])], IndexError, r"in \[-1, 5\), but got -2"),
        ([indices[0], indices[1] + 9], IndexError, r"count_codes_: .* in \[-1, 3\), but got"),
        ([indices[0].int()], TypeError, "expected indices to be Long"),
        ([indices[0][0]], ValueError, "expected indices to have 2 dimensions"),
        ([indices[1]], ValueError, "expected indices to have size 2"),
        ([*indices, *indices], ValueError, "expected indices to hold at most 3 tensors"),
    ):
        with pytest.raises(error, match=message):
            run(counts, bad)
        assert all((tensor == 9).all() for tensor in counts)
    with pytest.raises(TypeError, match="expected counts to be Long"):
        ops.count_codes_([torch.zeros(2, 5)], [indices[0]])
    with pytest.raises(ValueError, match="expected counts to be contiguous"):
        ops.count_codes_([torch.zeros(5, 2, dtype=torch.long).t()], [indices[0]])


def test_synced_usage_checks_its_arguments() -> None:
    counts, sizes, replaced = (
        torch.ones(1, 3, dtype=torch.long),
        torch.ones(1, 3),
        torch.tensor([1]),
    )
    limits = {"threshold": [0.0], "threshold_fraction": [0.0]}
    good = ([counts], [sizes], [replaced])
    assert ops.synced_usage(*good, **limits)[0].tolist() == pytest.approx(
        [1, 3, 0, 1, np.log2(3), 3]
    )
    for bad, error, message in (
        (([counts], [sizes, sizes], [replaced]), ValueError, "one entry per level each"),
        (([], [], []), ValueError, "one entry per level each"),
        (([counts.int()], [sizes], [replaced]), TypeError, "expected counts to be Long"),
        (([counts], [counts], [replaced]), TypeError, "expected cluster_size to be floating"),
        (
            ([counts], [sizes[:, :2]], [replaced]),
            ValueError,
            "expected cluster_size to have size 3",
        ),
        (([counts], [sizes], [sizes[0]]), TypeError, "expected replaced to be Long"),
    ):
        with pytest.raises(error, match=message):
            ops.synced_usage(*bad, **limits)


@pytest.mark.parametrize("codes", [5, 24])
@pytest.mark.parametrize(
    "options",
    [
        dict(learnable_codebook=True, ema_update=False),
        dict(freeze_codebook=True, threshold_ema_dead_code=2),
        dict(freeze_codebook=True, dead_code_threshold_fraction=0.5),
    ],
    ids=["learnable", "threshold", "fraction"],
)
def test_codes_that_were_given_alone_in_another_number(options: dict[str, Any], codes: int) -> None:
    """They follow no averages, so none is dead."""
    vq = VectorQuantize(DIM, 16, **options).train()
    kind = torch.nn.Parameter if "learnable_codebook" in options else torch.nn.Buffer
    for number in (codes, 16, codes):
        vq._codebook.embed = kind(torch.randn(1, number, DIM))
        indices = vq(torch.randn(1, 40, DIM))[1]
        check(vq.stats(), indices, number)
        if number != 16:
            assert vq.stats().dead == vq.stats().replaced == 0


@pytest.mark.parametrize("codes", [5, 24])
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_codes_given_in_another_number_learn_before_a_forward(codes: int, training: bool) -> None:
    vq, like = (VectorQuantize(DIM, size, threshold_ema_dead_code=2) for size in (16, codes))
    for name in ("embed", "embed_avg", "cluster_size"):
        setattr(vq._codebook, name, getattr(like._codebook, name).clone())
    vq._codebook.rng.copy_(like._codebook.rng)
    x, indices = tokens(1), torch.arange(80).view(2, 40) % codes
    for module in (vq.train(training), like.train(training)):
        module.expire_codes_(x)
        module.update_ema_indices(x, indices)
    for name in ("embed", "embed_avg", "cluster_size"):
        assert torch.equal(getattr(vq._codebook, name), getattr(like._codebook, name)), name
    assert vq.stats() == like.stats()


def test_opcheck() -> None:
    counts, indices = count_cases()
    torch.library.opcheck(ops.count_codes_.default, (counts, indices))
    args = ([torch.ones(1, 3, dtype=torch.long)], [torch.ones(1, 3)], [torch.tensor([1])])
    torch.library.opcheck(
        ops.synced_usage.default, args, {"threshold": [1.0], "threshold_fraction": [0.0]}
    )
