"""Joint refinement of residual codebooks. Oracles: numpy's least squares on one-hot designs, a module's forward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from cli_support import run_cpp_module
from residual_vq_cases import STACKS, build, data, layers_of, layout_of, mask_of, state
from test_residual_vq_cpp import options_of, words_of
from torch import Tensor, nn
from vector_quantize_cases import same

import torchvq
from torchvq import GroupedResidualVQ, ResidualVQ

ops = torch.ops.torchvq
Array = npt.NDArray[Any]
SIZES = (8, 6, 4)
# Cases of the residual stacks whose codes are the summands of the output and may be changed.
CASES = [
    case
    for case, options in STACKS.items()
    if not {"use_cosine_sim", "affine_param", "implicit_neural_codebook", "vq_bridge"} & {*options}
    and not options.get("kmeans_init")
]


def tokens(count: int = 700, dim: int = 5, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, dim, generator=generator) * torch.linspace(0.5, 2, dim)


def stack_of(sizes: tuple[int, ...] = SIZES, dim: int = 5, **options: Any) -> ResidualVQ:
    torch.manual_seed(3)
    stack = ResidualVQ(dim=dim, codebook_size=sizes, **options).eval()
    for level, layer in enumerate(stack.levels):
        layer._codebook.set_codes(torch.randn_like(layer._codebook.embed) * 0.6**level)
    return stack


def codes_of(stack: ResidualVQ) -> list[Array]:
    return [layer._codebook.embed.detach()[0].double().numpy() for layer in stack.levels]


def one_hot(indices: Array, sizes: tuple[int, ...]) -> Array:
    rows, first = np.arange(len(indices)), 0
    design = np.zeros((len(indices), sum(sizes)))
    for level, size in enumerate(sizes):
        design[rows, first + indices[:, level]] += 1
        first += size
    return design


def least_squares(design: Array, x: Array, present: Array, ridge: float) -> Array:
    """argmin ||x - design C||^2 + ridge ||C - present||^2, as one overdetermined system."""
    rows = np.vstack([design, np.sqrt(ridge) * np.eye(len(present))])
    return np.linalg.lstsq(rows, np.vstack([x, np.sqrt(ridge) * present]), rcond=None)[0]


def measured(stack: nn.Module, x: Tensor, beam: int) -> float:
    with torch.no_grad():
        return float((stack.eval()(x, beam_size=beam)[0] - x).double().square().mean())


@pytest.mark.parametrize("ridge", [1e-6, 1.0, 50.0])
def test_a_refit_is_the_least_squares_solution(ridge: float) -> None:
    stack, x = stack_of(), tokens()
    present = np.concatenate(codes_of(stack))
    indices = stack(x[None], beam_size=4)[1][0].numpy()
    wanted = least_squares(one_hot(indices, SIZES), x.double().numpy(), present, ridge)
    torchvq.refine(stack, x[None], iterations=1, beam_size=4, noise=0.0, ridge=ridge)
    np.testing.assert_allclose(np.concatenate(codes_of(stack)), wanted, rtol=1e-5, atol=1e-5)


def test_a_shared_codebook_is_refitted_as_one() -> None:
    stack, x = stack_of((7, 7, 7), shared_codebook=True), tokens()
    (present, *_) = codes_of(stack)
    indices = stack(x[None], beam_size=3)[1][0].numpy()
    design = sum(one_hot(indices[:, level : level + 1], (7,)) for level in range(3))
    wanted = least_squares(np.asarray(design), x.double().numpy(), present, 2.0)
    refined = torchvq.refine(stack, x[None], iterations=1, beam_size=3, noise=0.0, ridge=2.0)
    assert refined.error_after < refined.error_before
    for codes in codes_of(stack):
        np.testing.assert_allclose(codes, wanted, rtol=1e-5, atol=1e-5)


def test_without_room_for_the_system_levels_are_refitted_in_turn() -> None:
    stack, x = stack_of(), tokens()
    present = codes_of(stack)
    indices = stack(x[None], beam_size=4)[1][0].numpy()
    wide, wanted = x.double().numpy(), [codes.copy() for codes in present]
    for turn in range(3 * len(SIZES)):
        level = turn % len(SIZES)
        others = sum(wanted[q][indices[:, q]] for q in range(len(SIZES)) if q != level)
        design = one_hot(indices[:, level : level + 1], SIZES[level : level + 1])
        wanted[level] = least_squares(design, wide - others, wanted[level], 2.0)
    codebooks = [layer._codebook.embed for layer in stack.levels]
    options = dict(iterations=1, beam=4, noise=0.0, ridge=2.0)
    found = ops.refine_codebooks(x[None], codebooks, memory=0, **options)[0]
    for codes, right in zip(found, wanted, strict=True):
        np.testing.assert_allclose(codes[0].numpy(), right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("memory", [0, 2**30])
@pytest.mark.parametrize("noise", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("beam", [1, 5])
def test_the_error_never_rises(beam: int, noise: float, memory: int) -> None:
    x = tokens(300)
    codebooks = [layer._codebook.embed for layer in stack_of().levels]
    last = None
    for iterations in (0, 1, 3, 8):
        errors = ops.refine_codebooks(
            x[None],
            codebooks,
            beam=beam,
            noise=noise,
            iterations=iterations,
            tolerance=0.0,
            memory=memory,
        )[1]
        before, after = errors[0].tolist()
        assert after <= before
        last = before if last is None else last
        assert before == last
    assert after < before


@pytest.mark.parametrize("beam", [1, 4])
def test_the_errors_are_those_of_the_forward(beam: int) -> None:
    stack, x = stack_of(), tokens()[None]
    before = measured(stack, x, beam)
    refined = torchvq.refine(stack, x, beam_size=beam)
    assert refined.error_before == pytest.approx(before, rel=1e-6)
    assert refined.error_after == pytest.approx(measured(stack, x, beam), rel=1e-6)
    assert refined.error_after < 0.8 * before


def test_weights_of_the_search_are_the_modules_own() -> None:
    stack = stack_of(beam_score_quantizer_weights=[1.0, 0.5, 0.0])
    x = tokens()[None]
    before = measured(stack, x, 4)
    assert torchvq.refine(stack, x, beam_size=4).error_before == pytest.approx(before, rel=1e-6)


@pytest.mark.parametrize("groups", [0, 2])
def test_levels_that_were_removed_have_no_weight(groups: int) -> None:
    options = dict(dim=5, num_quantizers=3, codebook_size=8)
    options |= dict(beam_score_quantizer_weights=[1.0, 0.5, 0.25])
    if groups:
        module = GroupedResidualVQ(groups=groups, **options | dict(dim=5 * groups)).eval()
    else:
        module = ResidualVQ(**options).eval()
    for stack in module.stacks if groups else [module]:
        stack.layers = stack.layers[:2]
    x = tokens(dim=module.dim)[None]
    before = measured(module, x, 4)
    assert torchvq.refine(module, x, beam_size=4).error_before == pytest.approx(before, rel=1e-6)


def test_codes_that_nobody_chooses_stay() -> None:
    stack, x = stack_of(), tokens()
    far = stack.levels[1]._codebook
    far.set_codes(torch.cat([far.embed[:, :-1], torch.full((1, 1, 5), 1e3)], 1))
    torchvq.refine(stack, x[None])
    np.testing.assert_allclose(codes_of(stack)[1][-1], 1e3, rtol=1e-6)


def test_masked_and_non_finite_tokens_are_left_out() -> None:
    x, mask = tokens()[None].clone(), torch.ones(1, 700, dtype=torch.bool)
    mask[:, 600:] = False
    x[:, 50, 2], x[:, 60, 0], x[:, 650] = float("nan"), float("inf"), 1e9
    kept = torch.cat([x[:, :50], x[:, 51:60], x[:, 61:600]], 1)
    stack, alone = stack_of(), stack_of()
    assert torchvq.refine(stack, x, mask=mask) == torchvq.refine(alone, kept)
    assert all(map(torch.equal, stack.state_dict().values(), alone.state_dict().values()))


def test_bits_depend_on_neither_order_nor_threads() -> None:
    x = tokens(40_000)
    codebooks = [layer._codebook.embed for layer in stack_of((64, 64, 64)).levels]
    threads, results = torch.get_num_threads(), []
    try:
        for count, order in ((1, 0), (4, 1), (2, 2)):
            torch.set_num_threads(count)
            generator = torch.Generator().manual_seed(order)
            rows = torch.randperm(len(x), generator=generator)
            results.append(ops.refine_codebooks(x[rows][None], codebooks, iterations=4, noise=0.3))
    finally:
        torch.set_num_threads(threads)
    for codes, errors, counts in results[1:]:
        assert all(map(torch.equal, codes, results[0][0]))
        assert torch.equal(errors, results[0][1]) and torch.equal(counts, results[0][2])


def test_a_slice_is_a_codebook_of_its_own() -> None:
    x, codes = tokens()[None], torch.randn(1, 16, 5)
    # The same memory; but a transposed view begins there too.
    for first, second in ((codes, codes[:, :9]), (codes[:, :5], codes[:, :5].mT)):
        found = ops.refine_codebooks(x, [first, second], iterations=2)
        alone = ops.refine_codebooks(x, [first, second.clone()], iterations=2)
        assert [code.shape for code in found[0]] == [first.shape, second.shape]
        assert all(map(torch.equal, [*found[0], *found[1:]], [*alone[0], *alone[1:]]))


@pytest.mark.parametrize("case", CASES)
def test_every_stack(case: str) -> None:
    stack = build(case)
    x = torch.cat([data(stack, step) for step in range(4)])
    mask = None if layout_of(stack).map_rank else torch.cat([mask_of(stack, s) for s in range(4)])
    refined = torchvq.refine(stack, x, mask=mask, beam_size=3, iterations=4)
    assert 0 < refined.error_after < refined.error_before
    # The codes in use are those that refinement set, and the averages reproduce them.
    for layer in layers_of(stack):
        codebook = layer._codebook
        codes = codebook.embed.detach().clone()
        if not isinstance(codebook.embed, nn.Parameter):
            codebook.update_ema()
            torch.testing.assert_close(codebook.embed, codes, rtol=1e-6, atol=1e-7)


def test_the_next_step_starts_from_the_new_codes() -> None:
    """A step moves codes by 1 - decay of the way to the mean of their tokens, whatever the training before."""
    stack, x = stack_of(decay=0.9, threshold_ema_dead_code=0.5), tokens()
    stack.train()
    for _ in range(20):
        stack(x[None])
    sizes = [layer._codebook.cluster_size.clone() for layer in stack.levels]
    torchvq.refine(stack, x[None])
    for layer, size in zip(stack.levels, sizes, strict=True):
        assert torch.equal(layer._codebook.cluster_size, size)
    codebook = stack.levels[0]._codebook
    before = codebook.embed[0].double().numpy()
    used = stack(x[None])[1][0, :, 0].numpy()
    for code in range(SIZES[0]):
        mine, old = x.double().numpy()[used == code], float(sizes[0][0, code])
        wanted = (0.9 * old * before[code] + 0.1 * mine.sum(0)) / (0.9 * old + 0.1 * len(mine))
        np.testing.assert_allclose(codebook.embed[0, code].numpy(), wanted, rtol=2e-4, atol=1e-4)


def test_parameters_are_written_in_place() -> None:
    stack, x = stack_of(learnable_codebook=True, ema_update=False), tokens()[None]
    parameters = list(stack.parameters())
    assert torchvq.refine(stack, x.requires_grad_()).iterations > 0
    assert all(a is b for a, b in zip(parameters, stack.parameters(), strict=True))
    assert all(p.requires_grad and p.is_leaf and p.grad is None for p in parameters)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_tokens_of_any_dtype_are_compared_in_float32(dtype: torch.dtype) -> None:
    one, other, x = stack_of(), stack_of(), tokens()[None].to(dtype)
    assert torchvq.refine(one, x) == torchvq.refine(other, x.float())
    assert all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "cosine": (dict(use_cosine_sim=True), "without cosine codebooks"),
    "affine": (dict(affine_param=True), "without an affine map of the codes"),
    "bridge": (dict(vq_bridge=nn.Linear(5, 5)), "without a bridge behind the codes"),
    "implicit": (dict(implicit_neural_codebook=True), "without implicit neural codebooks"),
    "unset": (dict(kmeans_init=True), "without codes that are not set"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_stacks_that_cannot_be_refined_are_refused(case: str) -> None:
    options, message = REFUSED[case]
    stack = ResidualVQ(dim=5, num_quantizers=2, codebook_size=4, **options)
    with pytest.raises(ValueError, match=f"refine: expected module to be {message}, but got them"):
        torchvq.refine(stack, tokens()[None])


ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "iterations": (dict(iterations=-1), "iterations to be at least 0, but got -1"),
    "beam": (dict(beam_size=0), "beam_size to be at least 1, but got 0"),
    "tolerance": (dict(tolerance=-0.5), "tolerance to be finite and non-negative, but got -0.5"),
    "noise": (dict(noise=float("nan")), "noise to be finite and non-negative, but got nan"),
    "ridge": (dict(ridge=0.0), "ridge to be finite and positive, but got 0"),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_bad_options(case: str) -> None:
    options, message = ARGUMENTS[case]
    with pytest.raises(ValueError, match=f"refine: expected {message}"):
        torchvq.refine(stack_of(), tokens()[None], **options)


@pytest.mark.parametrize("count", [0, 7])
def test_too_few_tokens(count: int) -> None:
    with pytest.raises(ValueError, match=f"at least 8 finite vectors.*, but got {count}"):
        torchvq.refine(stack_of(), tokens(count)[None])


def test_other_modules_and_shapes() -> None:
    with pytest.raises(ValueError, match="a ResidualVQ or GroupedResidualVQ, but got Linear"):
        torchvq.refine(nn.Linear(2, 2), tokens())
    with pytest.raises(ValueError, match="ResidualVQ: expected x to have 5 features"):
        torchvq.refine(stack_of(), tokens(dim=6)[None])
    with pytest.raises(TypeError, match="ResidualVQ: expected x to be a floating-point tensor"):
        torchvq.refine(stack_of(), torch.zeros(1, 9, 5, dtype=torch.long))
    grouped = GroupedResidualVQ(dim=10, groups=2, num_quantizers=2, codebook_size=4)
    with pytest.raises(ValueError, match="GroupedResidualVQ: expected x to have 10 features"):
        torchvq.refine(grouped, tokens()[None])


def test_an_error_changes_nothing() -> None:
    grouped = GroupedResidualVQ(dim=10, groups=2, num_quantizers=2, codebook_size=4)
    before = {name: value.clone() for name, value in grouped.state_dict().items()}
    x = torch.cat([tokens(), torch.full((700, 5), float("nan"))], 1)[None]
    # The second group has no finite token.
    with pytest.raises(ValueError, match="finite vectors"):
        torchvq.refine(grouped, x)
    assert all(torch.equal(value, before[name]) for name, value in grouped.state_dict().items())


@pytest.mark.parametrize("case", [*CASES, "mask"])
def test_cpp_is_python(case: str, tmp_path: Path) -> None:
    masked, case = case == "mask", "default" if case == "mask" else case
    stack = build(case)
    x = torch.cat([data(stack, step) for step in range(4)])
    given = {f"state.{name}": value for name, value in state(stack).items()}
    given |= {"refine.x": x, "eval.x": x}
    mask = torch.cat([mask_of(stack, step) for step in range(4)]) if masked else None
    if mask is not None:
        given["refine.mask"] = mask
    words = [*words_of(options_of(case)), "refine=4"]
    found = run_cpp_module("residual_vq", given, words, tmp_path)
    refined = torchvq.refine(stack, x, mask=mask, iterations=4)
    assert found["refine.errors"].tolist() == [refined.error_before, refined.error_after]
    assert found["refine.iterations"].item() == refined.iterations
    for name, value in state(stack).items():
        assert same(found[f"state.{name}"], value), name


def test_opcheck() -> None:
    codebooks = [layer._codebook.embed for layer in stack_of().levels]
    torch.library.opcheck(ops.refine_codebooks, (tokens(50)[None], codebooks), dict(iterations=1))
    sizes = torch.rand(2, 7)
    torch.library.opcheck(ops.averages_of_codes, (torch.randn(2, 7, 3), sizes))
