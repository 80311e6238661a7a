"""torch.export of every class in evaluation: tokens and outputs equal those of eager execution, at all sizes."""

from __future__ import annotations

from pathlib import Path

import classes
import pytest
import torch
from cells import Cell
from classes import ROWS, Seen
from kinds import one_of_each
from torch import Tensor, nn

from support import assert_close_to_rounding

# Sizes of batch, length (height), width: none as exported, and one of a single vector.
SIZES = [(6, 11, 5), (1, 1, 1), (2, 13, 7)]
# Their output is not a function of indices.
NO_DECODE = {"binary_mapper", "random_projection"}
DYNAMIC = torch.export.Dim.DYNAMIC


class Encode(nn.Module):
    """Vectors to tokens."""

    def __init__(self, quantizer: nn.Module) -> None:
        super().__init__()
        self.quantizer = quantizer

    def forward(self, x: Tensor) -> Tensor:
        return classes.forward(self.quantizer, x).indices


class Decode(Encode):
    """Tokens to vectors."""

    def forward(self, x: Tensor) -> Tensor:
        decoded = classes.decode(self.quantizer, x)
        assert decoded is not None
        return decoded


def trained(row: str) -> nn.Module:
    """A module in evaluation that has done a training step, like modules that are exported."""
    module = classes.build(row)
    classes.forward(module, classes.data(row))
    return module.eval()


def sized(row: str, sizes: tuple[int, ...]) -> Tensor:
    """Input with the given sizes of all axes except the channels'."""
    left = list(sizes)
    axis = ROWS[row].channel_axis % len(ROWS[row].shape)
    shape = [size if at == axis else left.pop(0) for at, size in enumerate(ROWS[row].shape)]
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def exported(module: nn.Module, x: Tensor, fixed: set[int], path: Path) -> nn.Module:
    """A program loaded from a file; all axes of its input except the fixed ones are dynamic."""
    free = {axis: DYNAMIC for axis in range(x.dim()) if axis not in fixed}
    program = torch.export.export(module, (x,), dynamic_shapes=(free,))
    torch.export.save(program, path)
    return torch.export.load(path).module()


@pytest.mark.parametrize("row", one_of_each())
def test_export(row: str, cell: Cell, tmp_path: Path) -> None:
    cell("export", row, "export")
    module, x = trained(row), classes.data(row, 1)
    program = exported(module, x, {ROWS[row].channel_axis % x.dim()}, tmp_path / "module.pt2")
    before = classes.state(module)
    for sizes in SIZES:
        x = sized(row, sizes)
        for a, b in zip(classes.forward(program, x), classes.forward(module, x), strict=True):
            assert torch.equal(a, b)
    torch.testing.assert_close(classes.state(module), before, rtol=0, atol=0)


@pytest.mark.parametrize("row", one_of_each())
def test_encoders(row: str, cell: Cell, tmp_path: Path) -> None:
    cell("export", row, "encode")
    module, x = Encode(trained(row)), classes.data(row, 1)
    program = exported(module, x, {ROWS[row].channel_axis % x.dim()}, tmp_path / "encode.pt2")
    for sizes in SIZES:
        x = sized(row, sizes)
        assert torch.equal(program(x), module(x))


@pytest.mark.parametrize("row", one_of_each(row for row in ROWS if row not in NO_DECODE))
def test_decoders(row: str, cell: Cell, tmp_path: Path) -> None:
    cell("export", row, "decode")
    quantizer = trained(row)
    encode, decode = Encode(quantizer), Decode(quantizer)
    indices = encode(classes.data(row, 1))
    # Axes of levels and codebooks are fixed by the module: they are those that another batch does not change.
    other = encode(sized(row, SIZES[0]))
    fixed = {axis for axis in range(indices.dim()) if indices.shape[axis] == other.shape[axis]}
    program = exported(decode, indices, fixed, tmp_path / "decode.pt2")
    for sizes in SIZES:
        indices = encode(sized(row, sizes))
        assert torch.equal(program(indices), decode(indices))


@pytest.mark.parametrize("row", ["vq_image", "fsq_image", "lfq_image"])
def test_masks_of_images(row: str) -> None:
    """The mask of an image is never compared with a flat one, whose size is the same where images are a column."""
    module, x = trained(row), classes.data(row, 1)
    free = {"mask": {0: DYNAMIC, 1: DYNAMIC, 2: DYNAMIC}}
    name = "z" if row == "fsq_image" else "x"

    def masked(x: Tensor) -> Tensor:
        return (
            torch.rand(x.shape[0], *x.shape[2:], generator=torch.Generator().manual_seed(2)) < 0.5
        )

    program = torch.export.export(
        module,
        (x,),
        {"mask": masked(x)},
        dynamic_shapes={name: {0: DYNAMIC, 2: DYNAMIC, 3: DYNAMIC}} | free,
    ).module()
    for sizes in [*SIZES, (2, 4, 1), (2, 1, 4)]:
        x = sized(row, sizes)
        found = classes.forward(program, x, mask=masked(x))
        for a, b in zip(found, classes.forward(module, x, mask=masked(x)), strict=True):
            assert torch.equal(a, b)


class EncodeInHalf(Encode):
    """Vectors to tokens under autocast of its own."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x)


@pytest.mark.parametrize("row", ["grouped_residual_vq", "residual_vq_implicit", "residual_sim_vq"])
def test_encoders_that_enter_autocast(row: str, tmp_path: Path) -> None:
    module, x = EncodeInHalf(trained(row)), classes.data(row, 1)
    program = exported(module, x, {2}, tmp_path / "encode.pt2")
    for sizes in SIZES:
        x = sized(row, sizes)
        assert torch.equal(program(x), module(x))


class Together(nn.Module):
    """Many quantizers in one program, because compiling takes long: outputs, tokens, and decoded tokens."""

    def __init__(self, rows: list[str]) -> None:
        super().__init__()
        self.rows = rows
        self.quantizers = nn.ModuleList(trained(row) for row in rows)

    def forward(self, tokens: Tensor, images: Tensor) -> list[tuple[Tensor, ...]]:
        return [
            self.of(row, module, tokens if ROWS[row].shape == classes.TOKENS else images)
            for row, module in zip(self.rows, self.quantizers, strict=True)
        ]

    def of(self, row: str, module: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
        seen: Seen = classes.forward(module, x)
        decoded = seen.quantized if row in NO_DECODE else classes.decode(module, seen.indices)
        assert decoded is not None
        return seen.quantized, seen.indices, decoded


def close_to_rounding(actual: Tensor, expected: Tensor) -> bool:
    try:
        assert_close_to_rounding(actual, expected)
    except AssertionError:
        return False
    return True


LEARNED = [row for row in ROWS if "vq" in row]
FIXED = [row for row in ROWS if row not in LEARNED]


# Takes minutes if the compiler has to share the machine.
@pytest.mark.timeout(900)
@pytest.mark.exhaustive
@pytest.mark.parametrize("rows", [LEARNED, FIXED], ids=["learned", "fixed"])
def test_packages(rows: list[str], cell: Cell, tmp_path: Path) -> None:
    """Machine code by AOTInductor, loaded from a file; `make test` has a package in tests/python/test_serving.py."""
    for row in rows:
        cell("export", row, "AOTInductor")
    module = Together(rows)
    example = (torch.randn(classes.TOKENS), torch.randn(classes.IMAGES))
    free = ({0: DYNAMIC, 1: DYNAMIC}, {0: DYNAMIC, 2: DYNAMIC, 3: DYNAMIC})
    with torch.no_grad():
        program = torch.export.export(module, example, dynamic_shapes=free)
        path = torch._inductor.aoti_compile_and_package(
            program, package_path=str(tmp_path / "quantizers.pt2")
        )
    package = torch._inductor.aoti_load_package(path)
    failed = []
    for batch, first, second in SIZES:
        tokens = torch.randn(batch, first, classes.DIM)
        images = torch.randn(batch, classes.DIM, first, second)
        with torch.no_grad():
            pairs = zip(package(tokens, images), module(tokens, images), strict=True)
        for row, (actual, expected) in zip(rows, pairs, strict=True):
            # The compiler may lay out images channels-last, which torch's convolution rounds differently.
            near = all(map(close_to_rounding, actual, expected))
            failed += [] if near else [(row, batch, first, second)]
    assert not failed
