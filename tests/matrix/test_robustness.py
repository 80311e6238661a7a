"""Every class on hostile input: the documented result, or an error that says what is wrong and changes no state."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable

import pytest
import torch
from cells import Cell
from classes import BATCH, DIM, ROWS, build, data, decode, forward, positions, state
from torch import Tensor, nn

import torchvq

TABLE = "robustness"
ERRORS = (ValueError, TypeError, IndexError, RuntimeError)
FORM = re.compile(r"^[\w.]+: expected .+, but got .+", re.DOTALL)
NON_FINITE = [float("nan"), float("inf"), -float("inf")]
MODES = [True, False]
# Rows that pass their input unchecked to the user's encoder.
OWN_ENCODER = ("evo_lfq",)
# Rows that quantize parts of the features: heads, codebooks, groups. Only the non-finite parts of a token are NaN.
IN_PARTS = (
    "vq_heads",
    "fsq_image",
    "lfq_soft_clamp",
    "grouped_residual_vq",
    "grouped_residual_fsq",
    "grouped_residual_lfq",
    "residual_sim_vq_heads",
)
# Rows whose tokens are averages over positions, so a non-finite value affects its whole sample.
BY_SAMPLE = ("hierarchical_vq", "hierarchical_vq_dropout")
BY_TOKEN = [row for row in ROWS if row not in BY_SAMPLE]
# Losses with a term that does not depend on tokens: similarity of codes, softplus of an offset.
CONSTANT_LOSS = ("vq_orthogonal", "lfq_softplus")
# The generator and counters of a training step, which move even if nothing is learnt.
COUNTERS = ("rng", "step_counts")


def same_state(module: nn.Module, before: dict[str, Tensor], besides: tuple[str, ...] = ()) -> bool:
    """Bitwise comparison."""
    return all(
        torch.equal(tensor, before[name]) or name.rpartition(".")[2] in besides
        for name, tensor in state(module).items()
    )


def raises(module: nn.Module, call: Callable[[], object], *kinds: type[Exception]) -> None:
    """The call raises one of the kinds, with a message in the package's format, and the state does not change."""
    before = state(module)
    with pytest.raises(kinds or ERRORS) as found:
        call()
    assert FORM.match(str(found.value)), str(found.value)
    assert same_state(module, before)


def tokens_last(row: str, x: Tensor) -> Tensor:
    """(B, *, features), the features last in every layout."""
    return x if ROWS[row].channel_axis == -1 else x.movedim(1, -1)


def token_of(row: str, x: Tensor, *index: int) -> Tensor:
    """A view of one token."""
    return tokens_last(row, x)[index]


def nested(x: Tensor) -> Tensor:
    """The samples of a batch as a nested tensor whose layout is that of dense ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its nested tensors a prototype
        return torch.nested.nested_tensor(list(x.unbind()))


@pytest.mark.parametrize("training", MODES, ids=["train", "eval"])
@pytest.mark.parametrize("row", ROWS)
def test_wrong_arguments(row: str, training: bool, cell: Cell) -> None:
    cell(TABLE, row, "wrong rank, size, dtype, mask", "error, state untouched")
    module, x = build(row).train(training), data(row)
    if row not in OWN_ENCODER:
        layouts = x.to_sparse(), x.to_mkldnn(), nested(x)
        others = x.long(), x > 0, x.cfloat(), x.to(torch.float8_e4m3fn)
        for wrong in (*others, *layouts, None, 3.5):
            raises(module, lambda wrong=wrong: module(wrong), TypeError)
        axis = ROWS[row].channel_axis
        narrow, empty = x.narrow(axis, 0, DIM - 1), x.narrow(axis, 0, 0)
        for wrong in (narrow, torch.cat([x, x], axis), empty, x.new_zeros(())):
            raises(module, lambda wrong=wrong: module(wrong), ValueError)
        raises(module, lambda: module(x[0].flatten()), ValueError)
        deep = x.reshape(*x.shape, *[1] * 4)
        if x.dim() == 4 and "accept_image_fmap" not in ROWS[row].options:
            # Features on axis 1, with any number of positions after them.
            assert module(deep)[0].shape == deep.shape
        else:
            raises(module, lambda: module(deep), ValueError)
    shape = positions(row)
    mask = torch.ones(shape, dtype=torch.bool)
    for wrong in (mask[..., :-1], mask.unsqueeze(-1), mask[:-1], mask.new_ones(())):
        raises(module, lambda wrong=wrong: module(x, mask=wrong), ValueError)
    for wrong in (mask.float(), mask.long(), mask.to_sparse(), nested(mask)):
        raises(module, lambda wrong=wrong: module(x, mask=wrong), TypeError)


@pytest.mark.parametrize("row", BY_TOKEN)
def test_non_finite_tokens_stay_alone(row: str, cell: Cell) -> None:
    cell(TABLE, row, "NaN and infinity", "that token alone")
    where = (1, 2) if len(ROWS[row].shape) == 3 else (1, 2, 3)
    for value in NON_FINITE:
        x, clean = data(row), data(row)
        token_of(row, x, *where)[0] = value
        token_of(row, clean, *where)[0] = 0.0
        for training in MODES:
            module, other = build(row).train(training), build(row).train(training)
            found, expected = forward(module, x), forward(other, clean)
            assert all(tensor.isfinite().all() for tensor in state(module).values())
            missing = found.quantized.isnan()
            mine = token_of(row, missing, *where)
            assert mine[0] and (row in IN_PARTS or mine.all()), "its output is NaN"
            mine.fill_(False)
            assert not missing.any(), "no other output is NaN"
            own = index_of(module, found.indices, *where)
            assert (own.flatten()[0] if row in IN_PARTS else own).le(0).all(), "its index is 0"
            if not training:
                keep = found.quantized.isfinite()
                assert torch.equal(found.quantized[keep], expected.quantized[keep])


def index_of(module: nn.Module, indices: Tensor, *index: int) -> Tensor:
    """The indices of one token; grouped stacks have a first axis of groups."""
    return indices[(slice(None), *index)] if hasattr(module, "rvqs") else indices[index]


@pytest.mark.parametrize("row", BY_SAMPLE)
def test_non_finite_samples_stay_alone(row: str, cell: Cell) -> None:
    cell(TABLE, row, "NaN and infinity", "that sample alone")
    for value in NON_FINITE:
        x, clean = data(row), data(row)
        x[1].flatten()[2] = value
        for training in MODES:
            module, other = build(row).train(training), build(row).train(training)
            found, expected = forward(module, x), forward(other, clean)
            assert all(tensor.isfinite().all() for tensor in state(module).values())
            assert found.quantized[1].isnan().all() and found.indices[1].le(0).all()
            others = [0, 2]
            assert found.quantized[others].isfinite().all()
            if not training:
                assert torch.equal(found.quantized[others], expected.quantized[others])


@pytest.mark.parametrize("row", ROWS)
def test_non_finite_tokens_count_as_masked(row: str, cell: Cell) -> None:
    """The state after a training step equals that of the same step with the token masked."""
    for value in NON_FINITE:
        x = data(row)
        tokens_last(row, x)[1].flatten(0, -2)[2] = value
        mask = tokens_last(row, x).isfinite().all(-1)
        if row in BY_SAMPLE:
            mask[1] = False
        module, other = build(row), build(row)
        forward(module, x)
        forward(other, x, mask=mask)
        theirs = state(other)
        for name, tensor in state(module).items():
            torch.testing.assert_close(tensor, theirs[name], rtol=1e-5, atol=1e-6, msg=name)
    cell(TABLE, row, "state with NaN", "as masked")


@pytest.mark.parametrize("row", ROWS)
def test_extreme_numbers(row: str, cell: Cell) -> None:
    """No error, valid indices, finite state; outputs of codes are finite if no projection overflows."""
    cell(TABLE, row, "5e-324 to 1e300", "finite state")
    half = torch.finfo(torch.float16).max
    extremes = [
        (1e30, torch.float32), (-1e38, torch.float32), (1e-40, torch.float32), (half, torch.float16),
        (1e300, torch.float64), (5e-324, torch.float64), (1e36, torch.float64), (1e38, torch.bfloat16),
        (6e-8, torch.float16),
    ]  # fmt: skip
    for value, dtype in extremes:
        module = build(row)
        for _ in range(2):
            found = forward(module, torch.sign(data(row)).to(dtype) * value)
            assert all(tensor.isfinite().all() for tensor in state(module).values()), value
            assert (found.indices >= -1).all()
            if abs(value) < 1e5:  # beyond this, squares may overflow
                assert found.loss.isfinite().all(), value
        if abs(value) < 1e200:  # sums of codes near the end of the range may overflow
            after = forward(module.eval(), data(row))
            assert after.quantized.isfinite().all(), value


@pytest.mark.parametrize("training", MODES, ids=["train", "eval"])
@pytest.mark.parametrize("row", ROWS)
def test_no_tokens(row: str, training: bool, cell: Cell) -> None:
    """No samples, no positions, or all of them masked: loss 0, and nothing is learnt."""
    cell(TABLE, row, "no tokens", "loss 0, state untouched")
    x = data(row)
    padding = torch.full_like(x, 0.0 if row in OWN_ENCODER else float("nan"))
    rank = 1 if ROWS[row].channel_axis == -1 else 2
    for given, mask in [
        (x[:0], None),
        (x.narrow(rank, 0, 0), None),
        (x, torch.zeros(positions(row), dtype=torch.bool)),
        (padding, torch.zeros(positions(row), dtype=torch.bool)),
    ]:
        module = build(row).train(training)
        before = state(module)
        found = forward(module, given, **({} if mask is None else {"mask": mask}))
        assert found.loss.isfinite().all() if row in CONSTANT_LOSS else (found.loss == 0).all()
        assert found.quantized.shape[:1] == given.shape[:1]
        assert found.quantized.isfinite().all()
        if not isinstance(module, torchvq.BinaryMapper):  # whose index is computed from zeros here
            assert (found.indices == -1).all()
        assert same_state(module, before, COUNTERS)
        if training and found.quantized.requires_grad:
            (found.quantized.sum() + found.loss.sum()).backward()
            for parameter in module.parameters():
                assert parameter.grad is None or parameter.grad.isfinite().all()


def reached(row: str, x: Tensor, part: str) -> set[str]:
    """What backward from the output alone, or from the loss alone, gives a gradient."""
    module, x = build(row), x.clone().requires_grad_()
    result = getattr(forward(module, x), part)
    if result.requires_grad:
        result.sum().backward()
    leaves = {"x": x} | dict(module.named_parameters())
    return {name for name, leaf in leaves.items() if leaf.grad is not None}


@pytest.mark.parametrize("part", ["quantized", "loss"])
@pytest.mark.parametrize("row", ROWS)
def test_backward_reaches_as_much_without_tokens(row: str, part: str) -> None:
    """DistributedDataParallel waits for a gradient of every parameter, of the encoder's, too."""
    x = data(row)
    assert reached(row, x[:0], part) == reached(row, x, part)


@pytest.mark.parametrize("training", MODES, ids=["train", "eval"])
@pytest.mark.parametrize("row", ROWS)
def test_one_token(row: str, training: bool, cell: Cell) -> None:
    cell(TABLE, row, "one token", "yes")
    module = build(row).train(training)
    x = data(row, batch=1)
    for axis in range(1, x.dim()):
        if axis != ROWS[row].channel_axis % x.dim():
            x = x.narrow(axis, 0, 1)
    found = forward(module, x)
    assert found.quantized.shape[0] == 1 and found.quantized.isfinite().all()
    assert found.loss.isfinite().all()
    assert all(tensor.isfinite().all() for tensor in state(module).values())


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "every other": lambda x: torch.stack([x, x.neg()], -1).flatten(-2)[..., ::2],
    "expanded": lambda x: x[:1].expand(x.shape),
    "one number": lambda x: x.flatten()[:1].expand(x.shape),
    "overlapping": lambda x: x.flatten().as_strided(x.shape, [5, *[3] * (x.dim() - 2), 1]),
    "flipped": lambda x: x.flip(0, -1),
    "offset": lambda x: torch.cat([x.flatten()[:3], x.flatten()])[3:].view(x.shape),
    "channels last": lambda x: x.to(memory_format=torch.channels_last) if x.dim() == 4 else x.mT.contiguous().mT,
}  # fmt: skip


@pytest.mark.parametrize("training", MODES, ids=["train", "eval"])
@pytest.mark.parametrize("row", ROWS)
def test_strides_do_not_matter(row: str, training: bool, cell: Cell) -> None:
    cell(
        TABLE,
        row,
        "strides",
        "same bits" if next(build(row).parameters(), None) is None else "within 1e-6",
    )
    for name, layout in LAYOUTS.items():
        x = layout(data(row))
        module, other = build(row).train(training), build(row).train(training)
        found, expected = forward(module, x), forward(other, x.contiguous().clone())
        assert torch.equal(found.indices, expected.indices), name
        # A matrix product of torch may differ in the last bit with the address of its argument.
        near = 1e-6 if next(module.parameters(), None) is not None else 0.0
        torch.testing.assert_close(found.quantized, expected.quantized, rtol=near, atol=near)
        torch.testing.assert_close(found.loss, expected.loss, rtol=near, atol=near)
        theirs = state(other)
        for key, tensor in state(module).items():
            torch.testing.assert_close(
                tensor, theirs[key], rtol=near, atol=near, msg=f"{name} {key}"
            )


@pytest.mark.parametrize("row", ROWS)
def test_wrong_indices(row: str, cell: Cell) -> None:
    module, x = build(row).eval(), data(row)
    indices = forward(module, x).indices
    if decode(module, indices) is None:
        return
    cell(TABLE, row, "wrong indices", "error")
    for wrong in (indices.clone().fill_(-2), indices.clone().fill_(2**40), indices + 2**62):
        raises(module, lambda wrong=wrong: decode(module, wrong), IndexError)
    one = indices.clone(memory_format=torch.contiguous_format)
    one.view(-1)[-1] = 2**31
    raises(module, lambda: decode(module, one), IndexError)
    for wrong in (indices.double(), indices > 0, indices.cfloat()):
        raises(module, lambda wrong=wrong: decode(module, wrong), TypeError)
    if indices.dim() > len(positions(row)):
        extra = torch.cat([indices, indices, indices], -1)
        raises(module, lambda: decode(module, extra), ValueError)
        raises(module, lambda: decode(module, indices[..., :0]), ValueError)
    absent = decode(module, indices.clone().fill_(-1))
    if row not in OWN_ENCODER:
        assert (absent == 0).all()
    assert decode(module, indices[:, :0] if hasattr(module, "rvqs") else indices[:0]).numel() == 0


@pytest.mark.parametrize("row", ROWS)
def test_more_elements_than_32_bits_count(row: str, cell: Cell) -> None:
    """Shapes of 2^32 tokens and more, on the meta device, which computes shapes only."""
    cell(TABLE, row, "2^32 tokens", "shapes")
    module = build(row).to("meta").eval()
    shape = list(ROWS[row].shape)
    axes = [axis for axis in range(len(shape)) if axis != ROWS[row].channel_axis % len(shape)]
    small = forward(module, torch.empty(shape, device="meta"))
    # On every device, codes of an implicit level are computed for a block of tokens at a time, which limits the size.
    most = (2**20, 2**2) if row.startswith("residual_vq_implicit") else (2**20, 2**12, 3)
    for axis, size in zip(axes, most, strict=False):
        shape[axis] = size
    found = forward(module, torch.empty(shape, device="meta"))
    assert found.quantized.shape[0] == 2**20
    assert found.quantized.dim() == small.quantized.dim()
    if row in BY_SAMPLE:
        assert found.indices.shape == (2**20, *small.indices.shape[1:])
        assert list(found.quantized.shape) == shape
        return
    tokens = torch.Size(shape).numel() // DIM
    per_token = small.indices.numel() // (torch.Size(ROWS[row].shape).numel() // DIM)
    assert found.indices.numel() == tokens * per_token
    if not isinstance(module, torchvq.BinaryMapper):
        assert list(found.quantized.shape) == shape
        decoded = decode(module, found.indices)
        assert decoded is None or decoded.shape == found.quantized.shape


def test_rows_have_what_these_tests_take_for_granted() -> None:
    assert all(
        row.shape[0] == BATCH and row.shape[row.channel_axis] == DIM for row in ROWS.values()
    )
