"""row_products: rows times a matrix, no row depends on the others (include/torchvq/ops/row_products.h)."""

from __future__ import annotations

import pytest
import torch

from support import any_path

op = torch.ops.torchvq.row_products
PATHS = {"dispatched": op, "any": any_path("row_products")}
# Rows, features, columns: around the tiles of all instruction sets, and more than one task.
SHAPES = [
    (1, 1, 1),
    (1, 64, 192),
    (7, 3, 5),
    (13, 33, 70),
    (100, 16, 129),
    (250, 8, 17),
    (5, 300, 64),
]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


@pytest.fixture(params=PATHS.values(), ids=PATHS.keys())
def product(request):
    return request.param


def operands(shape, dtype=torch.float32):
    rows, features, columns = shape
    generator = torch.Generator().manual_seed(rows)
    shapes = ((rows, features), (features, columns), (columns,))
    return tuple(
        torch.randn(own, generator=generator, dtype=torch.float64).to(dtype) for own in shapes
    )


@every_shape
@every_dtype
def test_is_the_product(product, shape, dtype):
    x, matrix, offset = operands(shape, dtype)
    expected = x.double() @ matrix.double() + offset.double()
    bound = (x.double().abs() @ matrix.double().abs() + offset.double().abs()) * (shape[1] + 1)
    error = (product(x, matrix, offset).double() - expected).abs()
    assert (error <= bound * torch.finfo(dtype).eps).all()


@every_shape
@every_dtype
def test_no_row_depends_on_the_others(shape, dtype):
    x, matrix, offset = operands((257, *shape[1:]), dtype)
    whole = op(x, matrix, offset)
    for count in (1, 2, 3, 5, 6, 7, 16, 100):
        for first in (0, 50):
            some = op(x[first : first + count], matrix, offset)
            assert torch.equal(some, whole[first : first + count])
    assert torch.equal(op(x.mT.contiguous().mT, matrix.mT.contiguous().mT, offset), whole)


@every_dtype
def test_no_column_depends_on_the_others(dtype):
    x, matrix, offset = operands((20, 30, 133), dtype)
    whole = op(x, matrix, offset)
    for columns in (slice(0, 1), slice(5, 70), slice(100, 133)):
        assert torch.equal(op(x, matrix[:, columns], offset[columns]), whole[:, columns])


def test_threads_give_the_same_bits():
    x, matrix, offset = operands((500, 64, 600))
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(op(x, matrix, offset))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_gradients_are_finite_differences():
    inputs = tuple(own.requires_grad_() for own in operands((4, 3, 5), torch.float64))
    assert torch.autograd.gradcheck(op, inputs)
    assert torch.autograd.gradgradcheck(op, inputs)


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_nothing_gives_nothing(product, shape):
    x, matrix, offset = operands(shape)
    found = product(x, matrix, offset)
    assert found.shape == (shape[0], shape[2])
    if shape[1] == 0:
        assert torch.equal(found, offset.expand(2, 4))


def test_not_finite_stays_in_its_row():
    x, matrix, offset = operands((9, 5, 70))
    x[4, 2] = torch.nan
    found = op(x, matrix, offset)
    assert found[4].isnan().all() and found[[0, 1, 2, 3, 5, 6, 7, 8]].isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ((torch.ones(2, 3).half(), torch.ones(3, 4), torch.ones(4)), TypeError, "x to be float32"),
        ((torch.ones(2, 3), torch.ones(3, 4).double(), torch.ones(4)), TypeError, "matrix to be"),
        ((torch.ones(2, 3), torch.ones(3, 4), torch.ones(4).half()), TypeError, "offset to be"),
        ((torch.ones(3), torch.ones(3, 4), torch.ones(4)), ValueError, "x to have"),
        ((torch.ones(2, 3), torch.ones(4, 4), torch.ones(4)), ValueError, "features of x"),
        ((torch.ones(2, 3), torch.ones(3, 4), torch.ones(1)), ValueError, "columns of matrix"),
    ],
)
def test_bad_arguments_are_named(product, arguments, kind, message):
    with pytest.raises(kind, match=f"row_products: .*{message}"):
        product(*arguments)


def test_opcheck_compile_and_vmap():
    x, matrix, offset = (own.requires_grad_() for own in operands((4, 3, 5)))
    torch.library.opcheck(op.default, (x, matrix, offset))
    compiled = torch.compile(op, fullgraph=True, backend="aot_eager", dynamic=True)
    assert torch.equal(compiled(x, matrix, offset), op(x, matrix, offset))
    stacked = torch.stack([x, 2 * x]).detach()
    mapped = torch.vmap(lambda x: op(x, matrix.detach(), offset.detach()))(stacked)
    assert torch.equal(mapped[1], op(2 * x, matrix, offset))
