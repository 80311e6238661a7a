"""lookup_codes: indices back to code vectors (include/torchvq/ops/lookup_codes.h)."""

from __future__ import annotations

import pytest
import torch

from support import any_path

HEADS, CODES, DIM, TOKENS = 2, 5, 3, 17
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
PATHS = {"dispatched": torch.ops.torchvq.lookup_codes, "any": any_path("lookup_codes")}


def make_arguments(generator, dtype=torch.float32, tokens=TOKENS):
    codebook = torch.randn(HEADS, CODES, DIM, generator=generator).to(dtype)
    indices = torch.randint(-1, CODES, (HEADS, tokens), generator=generator)
    return codebook, indices


def expected_codes(codebook, indices):
    """Oracle: Python lists, one token at a time."""
    rows = codebook.tolist()
    return [
        [rows[h][i] if i >= 0 else [0.0] * DIM for i in head]
        for h, head in enumerate(indices.tolist())
    ]


@pytest.fixture(params=PATHS.values(), ids=PATHS.keys())
def lookup_codes(request):
    return request.param


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_lookup_codes_returns_the_row_of_each_index(lookup_codes, device, dtype, generator):
    codebook, indices = make_arguments(generator, dtype)
    codes = lookup_codes(codebook.to(device), indices.to(device))
    assert codes.dtype == dtype and codes.device.type == device.type
    assert codes.tolist() == expected_codes(codebook, indices)


def test_lookup_codes_ignores_strides(lookup_codes, generator):
    codebook, indices = make_arguments(generator)
    strided = lookup_codes(codebook.mT.contiguous().mT, indices.repeat_interleave(2, 1)[:, ::2])
    assert torch.equal(strided, lookup_codes(codebook, indices))


@pytest.mark.parametrize("tokens", [0, 1])
def test_lookup_codes_of_few_tokens(lookup_codes, tokens, generator):
    codebook, indices = make_arguments(generator, tokens=tokens)
    codes = lookup_codes(codebook, indices)
    assert codes.shape == (HEADS, tokens, DIM)
    assert codes.tolist() == expected_codes(codebook, indices)


def test_lookup_codes_keeps_non_finite_codes_apart(lookup_codes):
    codebook = torch.tensor([[[float("nan")], [float("inf")], [1.0]]])
    codes = lookup_codes(codebook, torch.tensor([[2, -1, 1, 0]]))
    assert codes[0, :3, 0].tolist() == [1.0, 0.0, float("inf")]
    assert codes[0, 3].isnan().all()


def test_lookup_codes_gradient_matches_finite_differences(generator):
    codebook, indices = make_arguments(generator, torch.float64)
    codebook.requires_grad_()
    assert torch.autograd.gradcheck(lambda c: torch.ops.torchvq.lookup_codes(c, indices), codebook)


def test_lookup_codes_gradient_survives_writes_to_codebook_and_indices(generator):
    codebook, indices = make_arguments(generator)
    leaf = codebook.clone().requires_grad_()
    given = indices.clone()
    codes = torch.ops.torchvq.lookup_codes(leaf, given)
    given.fill_(-1)
    with torch.no_grad():
        leaf.add_(1)
    codes.sum().backward()
    counts = torch.stack([torch.bincount(head[head >= 0], minlength=CODES) for head in indices])
    assert torch.equal(leaf.grad, counts.unsqueeze(-1).expand_as(leaf).float())


def test_lookup_codes_passes_opcheck(generator):
    codebook, indices = make_arguments(generator)
    torch.library.opcheck(
        torch.ops.torchvq.lookup_codes.default, (codebook.requires_grad_(), indices)
    )


@pytest.mark.parametrize("tokens", [0, 1, TOKENS])
def test_lookup_codes_compiles_without_graph_breaks(tokens, generator):
    codebook, indices = make_arguments(generator, tokens=tokens)
    compiled = torch.compile(torch.ops.torchvq.lookup_codes, fullgraph=True, backend="aot_eager")
    assert torch.equal(
        compiled(codebook, indices), torch.ops.torchvq.lookup_codes(codebook, indices)
    )


@pytest.mark.parametrize(
    ("change", "error", "fragment"),
    [
        (lambda c, i: (c[0], i), ValueError, "expected codebook to have 3 dimensions"),
        (lambda c, i: (c[0, 0], i), ValueError, "expected codebook to have 3 dimensions"),
        (lambda c, i: (c, i[0]), ValueError, "expected indices to have 2 dimensions"),
        (lambda c, i: (c, i[:1]), ValueError, "expected indices to have size 2"),
        (lambda c, i: (c[:, :0], i), ValueError, "expected codebook to have at least 1 code"),
        (lambda c, i: (c, i.int()), TypeError, "expected indices to be Long"),
        (lambda c, i: (c.long(), i), TypeError, "expected codebook to be floating point"),
    ],
)
def test_lookup_codes_names_bad_arguments(lookup_codes, change, error, fragment, generator):
    with pytest.raises(error, match=f"lookup_codes: {fragment}"):
        lookup_codes(*change(*make_arguments(generator)))


@pytest.mark.parametrize("index", [-2, CODES])
def test_lookup_codes_rejects_indices_out_of_range(lookup_codes, index, generator):
    codebook, indices = make_arguments(generator)
    indices[1, 3] = index
    with pytest.raises(
        IndexError,
        match=rf"lookup_codes: expected indices to be in \[-1, {CODES}\), but got {index}",
    ):
        lookup_codes(codebook, indices)
