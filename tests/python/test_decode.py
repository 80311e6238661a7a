"""Decoding of indices (include/torchvq/functional/decode.h): one pass over memory, and the operators it replaces."""

import pytest
import torch
from torch import Tensor

import torchvq
from support import bit_for_bit
from torchvq import ops

_ops = torch.ops.torchvq


def rand(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def indices_of(size: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(-1, size, shape, generator=generator)


def affine_state(heads: int, dim: int, dtype: torch.dtype) -> list[Tensor]:
    variance = rand(heads, 1, dim, dtype=dtype, seed=3).abs()
    variance[..., 0] = 0.0  # below the least variance of the map
    own = rand(heads, 1, dim, dtype=dtype, seed=4).abs()
    mean, own_mean = (rand(heads, 1, dim, dtype=dtype, seed=seed) for seed in (1, 2))
    return [mean, variance, own_mean, own]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize(
    ("shape", "heads", "separate"),
    [
        ((2, 9), 1, False),
        ((3, 4, 2), 2, False),
        ((3, 4, 2), 2, True),
        ((), 1, False),
        ((2,), 2, False),
        ((0, 3), 1, True),
    ],
)
def test_plain_decoding_has_the_bits_of_the_operators(shape, heads, separate, affine, dtype):
    codebook = rand(heads if separate else 1, 7, 5, dtype=dtype)
    state = affine_state(codebook.shape[0], 5, dtype) if affine else []
    indices = indices_of(7, *shape)
    codes = _ops.affine_codes(codebook, *state) if affine else codebook
    rows = _ops.split_indices(indices, heads, separate)
    looked_up = ops.lookup_codes(codes, rows)
    if separate:
        looked_up = looked_up.transpose(0, 1)
    positions = shape if heads == 1 else shape[:-1]
    expected = looked_up.reshape(*positions, heads * 5)
    for given in (codebook, codebook.clone().requires_grad_()):
        bit_for_bit(_ops.decode_indices(given, indices, state, heads, separate), expected)
    # Neither contiguous: through the operators.
    strided = codebook.transpose(1, 2).contiguous().transpose(1, 2)
    bit_for_bit(_ops.decode_indices(strided, indices, state, heads, separate), expected)


@pytest.mark.parametrize("tokens", [3, 40])
def test_the_affine_map_of_looked_up_codes_has_the_bits_of_that_of_all(tokens):
    codebook, state = rand(1, 12, 6), affine_state(1, 6, torch.float32)
    indices = indices_of(12, 1, tokens)
    mapped = _ops.affine_codes(codebook, *state)
    expected = ops.lookup_codes(mapped, indices)
    # A strided codebook is mapped by operators, before or after the lookup.
    strided = codebook.transpose(1, 2).contiguous().transpose(1, 2)
    bit_for_bit(_ops.decode_indices(strided, indices, state), expected)
    with torch.no_grad():
        bit_for_bit(_ops.decode_indices(strided.requires_grad_(), indices, state), expected)


def test_codes_learn_through_the_affine_map_as_before():
    state, indices = affine_state(1, 6, torch.float32), indices_of(12, 1, 5)
    first, second = rand(1, 12, 6).requires_grad_(), rand(1, 12, 6).requires_grad_()
    slope = rand(1, 5, 6, seed=9)
    _ops.decode_indices(first, indices, state).backward(slope)
    ops.lookup_codes(_ops.affine_codes(second, *state), indices).backward(slope)
    bit_for_bit(first.grad, second.grad)


@pytest.mark.parametrize("index", [-2, 7])
def test_an_index_outside_is_refused(index):
    with pytest.raises(IndexError, match=r"expected indices to be in \[-1, 7\)"):
        _ops.decode_indices(rand(1, 7, 5), torch.tensor([[0, index]]), [])


def test_no_heads_are_refused():
    with pytest.raises(ValueError, match="expected heads to be at least 1, but got 0"):
        _ops.decode_indices(rand(1, 7, 5), torch.zeros(3, 0, dtype=torch.long), [], heads=0)


def test_affine_tensors_are_counted():
    codebook, indices = rand(1, 7, 5), torch.zeros(1, 2, dtype=torch.long)
    with pytest.raises(ValueError, match="decode_indices: expected affine to be 4 tensors"):
        _ops.decode_indices(codebook, indices, [codebook])
    with pytest.raises(
        ValueError, match="decode_residual: expected affine to be 4 tensors for each level"
    ):
        _ops.decode_residual(indices, [codebook] * 2, [codebook])


@pytest.mark.parametrize(("heads", "separate"), [(1, False), (2, False), (2, True)])
@pytest.mark.parametrize("affine", [False, True])
def test_the_sum_of_levels(heads, separate, affine):
    codebooks = [rand(heads if separate else 1, 7, 5, seed=seed) for seed in range(3)]
    state = affine_state(codebooks[0].shape[0], 5, torch.float32) if affine else []
    indices = indices_of(7, 2, 4, *([heads] if heads > 1 else []), 3)
    expected = 0
    for level, codebook in enumerate(codebooks):
        expected = expected + _ops.decode_indices(
            codebook, indices[..., level], state, heads, separate
        )
    bit_for_bit(_ops.decode_residual(indices, codebooks, state * 3, heads, separate), expected)


def test_absent_rows_are_zero_and_others_are_not_copied():
    output = rand(2, 3, 4)
    present = torch.zeros(2, 3, dtype=torch.long)
    assert _ops.zero_absent(output, present).data_ptr() == output.data_ptr()
    absent = present.clone()
    absent[1, 2] = -1
    expected = output.clone()
    expected[1, 2] = 0
    bit_for_bit(_ops.zero_absent(output, absent), expected)
    # Of several codes, all must be absent.
    several = torch.stack([absent, present], -1)
    bit_for_bit(_ops.zero_absent(output, several), output)
    bit_for_bit(_ops.zero_absent(output, several.fill_(-1)), torch.zeros_like(output))
    with pytest.raises(ValueError, match="zero_absent: expected indices to have the positions"):
        _ops.zero_absent(output, absent[0])


def test_graphs_do_not_depend_on_the_indices_they_were_made_with():
    present, absent = torch.zeros(1, 4, dtype=torch.long), torch.full((1, 4), -1)
    with torch.no_grad():
        traced = torch.jit.trace(_ops.zero_absent, (rand(1, 4, 3), present), check_trace=False)
    assert not traced(rand(1, 4, 3), absent).any()
    graph = torch.fx.experimental.proxy_tensor.make_fx(lambda x, i: _ops.zero_absent(x, i))(
        rand(1, 4, 3), present
    )
    assert not graph(rand(1, 4, 3), absent).any()
    mapped = torch.func.vmap(_ops.zero_absent)(rand(2, 4, 3), torch.cat([present, absent]))
    assert mapped[0].all() and not mapped[1].any()
    tangent = torch.func.jvp(
        lambda x: _ops.zero_absent(x, present), (rand(1, 4, 3),), (rand(1, 4, 3, seed=1),)
    )[1]
    bit_for_bit(tangent, rand(1, 4, 3, seed=1))


def test_masked_tokens_are_filled_by_rows():
    tokens, mask = rand(2, 5, 3), torch.tensor([[True, False, True, True, False]] * 2)
    tokens[~mask] = torch.nan
    expected = tokens.masked_fill(~mask.unsqueeze(-1), 0)
    for given in (tokens, tokens.clone().requires_grad_(), tokens.mT.contiguous().mT):
        bit_for_bit(_ops.fill_masked(given, mask), expected)
        bit_for_bit(_ops.fill_padding(given, mask), expected)
    bit_for_bit(_ops.fill_masked(tokens.half(), mask), expected.half())
    assert _ops.fill_masked(tokens, torch.ones_like(mask)).data_ptr() == tokens.data_ptr()


def test_latent_values_in_one_pass():
    values = [torch.linspace(-1, 1, count) for count in (5, 4, 3)]
    learnt = [own.clone().requires_grad_() for own in values]
    indices = indices_of(60, 3, 7)
    bit_for_bit(_ops.latent_decode(indices, values), _ops.latent_decode(indices, learnt).detach())
    for index in (-2, 60):
        with pytest.raises(IndexError, match=r"in \[-1, 60\)"):
            _ops.latent_decode(torch.tensor([index]), values)


@pytest.mark.parametrize("dim", [8, 5])
def test_outputs_of_affine_stacks(dim):
    rvq = torchvq.ResidualVQ(
        dim=dim, codebook_dim=8, num_quantizers=3, codebook_size=16, affine_param=True
    )
    for _ in range(3):
        rvq(rand(2, 30, dim) * 2 + 1)
    rvq.eval()
    quantized, indices, _ = rvq(rand(1, 6, dim, seed=3))
    decoded = rvq.get_output_from_indices(indices)
    torch.testing.assert_close(decoded, quantized)
    each = rvq.get_codes_from_indices(indices)
    torch.testing.assert_close(rvq.project_out(each.sum(0)), quantized)
