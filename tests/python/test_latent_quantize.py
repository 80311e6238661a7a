"""latent_quantize and the LatentQuantize module."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from support import any_path
from torchvq import LatentQuantize
from torchvq.latent_quantization import LatentQuantize as ByPath

ops = torch.ops.torchvq
LEVELS = [4, 3, 6]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


def problem(generator, dtype=torch.float32, shape=(5, 41)):
    x = torch.randn(*shape, 3, generator=generator).to(dtype)
    return x, torch.randn(sum(LEVELS), generator=generator).to(
        torch.float64 if dtype == torch.float64 else torch.float32
    )


def brute_force(x, values):
    """Float64 distances to every value; the first of equal ones wins."""
    columns, indices, basis, start = [], 0, 1, 0
    for j, count in enumerate(LEVELS):
        own = values[start : start + count].double()
        level = torch.tensor(
            [
                min(range(count), key=lambda i: (abs(v - own[i].item()), i))
                for v in x[..., j].double().flatten().tolist()
            ]
        ).view(x.shape[:-1])
        columns.append(own[level])
        indices = indices + level * basis
        basis, start = basis * count, start + count
    return torch.stack(columns, -1), indices


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str
)
def test_latent_quantize_takes_the_nearest_value(dtype, generator):
    x, values = problem(generator, dtype)
    codes, indices, loss = ops.latent_quantize(x, values, LEVELS, commitment=0.3, quantization=0.2)
    expected, numbers = brute_force(x, values)
    assert torch.equal(indices, numbers) and torch.equal(codes.double(), expected)
    assert codes.dtype == loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(
        loss.double(), 0.5 * (x.double() - expected).square().mean(), rtol=1e-6, atol=0
    )


def test_latent_quantize_ties_take_the_lowest_level():
    values = torch.tensor([1.0, -1.0, 1.0, 3.0, 0.0, 0.0, 2.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0])
    x = torch.tensor([[0.0, 1.0, 2.5], [2.0, 0.0, 0.5], [1.0, 9.0, 9.0]])
    for call in (ops.latent_quantize, any_path("latent_quantize")):
        assert call(x, values, LEVELS)[1].tolist() == [2 * 12 + 0, 4 * 12 + 0, 0 + 2 * 4 + 0]


def test_latent_quantize_never_takes_a_nan():
    values = torch.tensor([math.nan, 0.0, 1.0, 0.5, -0.25, math.nan, 0.25])
    x = torch.tensor([[0.9, -1e-20]])
    for call in (ops.latent_quantize, any_path("latent_quantize")):
        codes, indices, _ = call(x, values, [3, 4])
        assert codes.tolist() == [[1.0, -0.25]] and indices.tolist() == [2 + 3 * 1]


def test_latent_quantize_paths_agree(generator):
    x, values = problem(generator)
    mask = torch.rand(x.shape[:-1], generator=generator) < 0.7
    x[0, 0, 1], x[1, 2, 0] = math.nan, math.inf
    for tokens in (x, x.half(), x.transpose(0, 1), x[:, :1].expand(-1, 9, -1)):
        real = mask if tokens is x else None
        args = (tokens, values, LEVELS)
        kw = dict(commitment=0.5, quantization=0.25, mask=real)
        for a, b in zip(
            ops.latent_quantize(*args, **kw), any_path("latent_quantize")(*args, **kw), strict=True
        ):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=0, equal_nan=True)
    codes, indices, _ = ops.latent_quantize(x, values, LEVELS, mask=mask)
    grad = torch.randn(codes.shape, generator=generator)
    args = (grad, torch.tensor(1.5), x, codes, indices, LEVELS, 0.5, 0.25)
    for a, b in zip(
        ops.latent_quantize_backward(*args),
        any_path("latent_quantize_backward")(*args),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7, equal_nan=True)
        assert a is not None
    assert ops.latent_quantize_backward(*args)[1].isfinite().all()


@pytest.mark.parametrize("masked", [False, True])
def test_latent_quantize_gradient_is_the_formula_s(masked, generator):
    x, values = problem(generator, torch.float64)
    x.requires_grad_(), values.requires_grad_()
    mask = torch.rand(x.shape[:-1], generator=generator) < 0.6 if masked else None
    weight = torch.randn(x.shape, generator=generator).double()
    codes, indices, loss = ops.latent_quantize(
        x, values, LEVELS, commitment=0.7, quantization=1.3, mask=mask
    )
    ((codes * weight).sum() + 2 * loss).backward()
    twin, table = x.detach().requires_grad_(), values.detach().requires_grad_()
    digits = ops.scalar_level_indices(indices.clamp_min(0), LEVELS)
    chosen = table[digits + torch.tensor([0, 4, 7])]
    real = torch.ones(x.shape[:-1], dtype=torch.bool) if mask is None else mask
    terms = 0.7 * (twin - chosen.detach())[real].square().mean()
    terms = terms + 1.3 * (twin.detach() - chosen)[real].square().mean()
    ((twin * weight)[real].sum() + 2 * terms).backward()
    torch.testing.assert_close(x.grad, twin.grad)
    torch.testing.assert_close(values.grad, table.grad)


def test_latent_quantize_bits_do_not_depend_on_threads(generator):
    x, values = problem(generator, shape=(9000,))
    results = []
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        codes, indices, loss = ops.latent_quantize(x, values, LEVELS, commitment=1.0)
        results.append(
            (
                codes,
                indices,
                loss,
                *ops.latent_quantize_backward(x, loss, x, codes, indices, LEVELS, 1.0, 1.0),
            )
        )
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_latent_quantize_opcheck(generator):
    x, values = problem(generator, shape=(7,))
    torch.library.opcheck(
        ops.latent_quantize.default,
        (x.requires_grad_(), values.requires_grad_(), LEVELS),
        dict(commitment=0.1, quantization=0.2),
    )


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (dict(x=torch.zeros(3, 2)), ValueError, "features"),
        (dict(x=torch.zeros(3, 3).long()), TypeError, "x"),
        (dict(values=torch.zeros(12)), ValueError, "values"),
        (dict(levels=[4, 3, 1]), ValueError, "levels"),
        (dict(levels=[]), ValueError, "levels"),
        (dict(commitment=-1.0), ValueError, "commitment"),
        (dict(quantization=math.nan), ValueError, "quantization"),
        (dict(mask=torch.ones(2).bool()), ValueError, "mask"),
        (dict(mask=torch.ones(3)), TypeError, "mask"),
    ],
)
def test_latent_quantize_refuses(change, error, words):
    args = dict(x=torch.zeros(3, 3), values=torch.zeros(13), levels=LEVELS) | change
    with pytest.raises(error, match=words):
        ops.latent_quantize(**args)


# --- module -------------------------------------------------------------------------------------------------------

CONFIGURATIONS = {
    "plain": dict(levels=LEVELS, dim=3),
    "projections": dict(levels=LEVELS, dim=7),
    "codebooks": dict(levels=LEVELS, dim=6, num_codebooks=2),
    "codebooks_projections": dict(levels=LEVELS, dim=5, num_codebooks=3),
    "channel_last": dict(levels=LEVELS, dim=7, channel_first=False),
    "fixed": dict(levels=LEVELS, dim=3, optimize_values=False),
}
SHAPES = [(2,), (2, 5), (2, 3, 4), (2, 2, 3, 4)]


def input_for(module, positions, generator):
    batch, *rest = positions
    dims = [module.dim, *rest] if module.channel_first else [*rest, module.dim]
    return torch.randn(batch, *dims, generator=generator)


@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.parametrize("positions", SHAPES, ids=str)
def test_decoding_gives_the_output(name, positions, generator):
    module = LatentQuantize(**CONFIGURATIONS[name])
    x = input_for(module, positions, generator)
    quantized, indices, loss = module(x)
    codebooks = (module.num_codebooks,) if module.keep_num_codebooks_dim else ()
    assert quantized.shape == x.shape and indices.shape == positions + codebooks
    assert indices.dtype == torch.int64 and loss.shape == ()
    assert indices.min() >= 0 and indices.max() < module.codebook_size
    torch.testing.assert_close(module.indices_to_codes(indices), quantized, rtol=1e-5, atol=1e-6)
    inside = module.indices_to_codes(indices.int(), project_out=False)
    inside = inside.movedim(1, -1) if module.channel_first else inside
    again = module.codes_to_indices(inside.unflatten(-1, (module.num_codebooks, 3)))
    assert torch.equal(again if codebooks else again.squeeze(-1), indices)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_mask_is_the_real_tokens_alone(name, generator):
    module = LatentQuantize(**CONFIGURATIONS[name])
    x = input_for(module, (3, 8), generator)
    mask = torch.rand(3, 8, generator=generator) < 0.6
    last = x.movedim(1, -1) if module.channel_first else x
    alone = last[mask].clone().requires_grad_()
    padded = last.masked_fill(~mask[..., None], math.nan)
    padded = (padded.movedim(-1, 1) if module.channel_first else padded).clone().requires_grad_()
    out, expected = module(padded, mask=mask), module(alone)
    quantized = out.quantized.movedim(1, -1) if module.channel_first else out.quantized
    torch.testing.assert_close(quantized[mask], expected.quantized)
    assert torch.equal(out.indices[mask], expected.indices)
    assert (quantized[~mask] == 0).all() and (out.indices[~mask] == -1).all()
    torch.testing.assert_close(out.loss, expected.loss)
    (decoded := module.indices_to_codes(out.indices)).sum()
    torch.testing.assert_close(decoded, out.quantized, rtol=1e-5, atol=1e-6)
    grads = []
    for result, x_in in ((out, padded), (expected, alone)):
        module.zero_grad()
        (result.quantized.square().sum() + result.loss).backward()
        grads.append([x_in.grad, *(p.grad for p in module.parameters())])
    grad = grads[0][0].movedim(1, -1) if module.channel_first else grads[0][0]
    assert (grad[~mask] == 0).all()
    torch.testing.assert_close([grad[mask], *grads[0][1:]], grads[1])
    none = module(padded, mask=torch.zeros_like(mask))
    assert none.loss == 0 and (none.quantized == 0).all() and (none.indices == -1).all()


@pytest.mark.parametrize("name", ["plain", "projections", "codebooks_projections"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_precision(name, dtype, generator):
    module = LatentQuantize(**CONFIGURATIONS[name])
    x = input_for(module, (2, 9), generator).to(dtype)
    if not module.has_projections:
        assert torch.equal(module(x).indices, module(x.float()).indices)
    for m in (module, copy.deepcopy(module).to(dtype)):
        for autocast in (False, True):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                out = m(x.clone().requires_grad_())
            assert out.quantized.dtype == dtype and out.indices.dtype == torch.int64
            assert out.loss.dtype in (torch.float32, torch.float64) and out.loss.isfinite()
            out.loss.backward()
            decoded = m.indices_to_codes(out.indices)
            assert decoded.isfinite().all()


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_compiled_is_eager(name, generator):
    eager = LatentQuantize(**CONFIGURATIONS[name])
    module = copy.deepcopy(eager)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = input_for(eager, (2, 6), generator)
    mask = torch.rand(2, 6, generator=generator) < 0.7
    results = []
    for call, owner in ((eager, eager), (compiled, module)):
        tokens = x.clone().requires_grad_()
        out = call(tokens, mask=mask)
        (out.quantized.square().sum() + out.loss).backward()
        results.append([*out, tokens.grad, *(p.grad for p in owner.parameters())])
    torch.testing.assert_close(*results)


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.4, momentum=0.9)


@pytest.mark.parametrize("name", ["plain", "codebooks_projections"])
def test_compiled_in_place_steps_are_eager_ones(name, generator):
    options = dict(CONFIGURATIONS[name], in_place_codebook_optimizer=momentum)
    torch.manual_seed(0)
    eager = LatentQuantize(**options)
    torch.manual_seed(0)
    module = LatentQuantize(**options)
    compiled = torch.compile(module, backend="aot_eager")
    first = copy.deepcopy(eager.state_dict())
    for _ in range(3):
        x = input_for(eager, (2, 6), generator)
        mask = torch.rand(2, 6, generator=generator) < 0.7
        results = []
        for call in (eager, compiled):
            tokens = x.clone().requires_grad_()
            out = call(tokens, mask=mask)
            (out.quantized.square().sum() + out.loss).backward()
            results.append([*out, tokens.grad])
        torch.testing.assert_close(*results, rtol=0, atol=0)
    for key, value in eager.state_dict().items():
        assert torch.equal(module.state_dict()[key], value)
    assert not torch.equal(first["values_per_latent.0"], eager.values_per_latent[0])


def test_one_graph_with_an_in_place_optimizer_is_refused_in_training_alone(generator):
    module = LatentQuantize(LEVELS, 3, in_place_codebook_optimizer=momentum)
    before = copy.deepcopy(module.state_dict())
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 3, 9, generator=generator)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="in_place_codebook_optimizer"):
        compiled(x)
    torch.testing.assert_close(module.state_dict(), before, rtol=0, atol=0)
    module.eval()
    torch.testing.assert_close(compiled(x)[:], module(x)[:], rtol=0, atol=0)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_steps_the_optimizer_once(reentrant, generator):
    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=0.7)

    torch.manual_seed(0)
    module = LatentQuantize(LEVELS, 3, in_place_codebook_optimizer=sgd)
    torch.manual_seed(0)
    twin = LatentQuantize(LEVELS, 3, in_place_codebook_optimizer=sgd)
    inputs = [torch.randn(2, 3, 9, generator=generator) for _ in range(2)]

    def region(m, x):
        out = m(x * 2)
        return out.quantized.square().sum() + out.loss

    grads = []
    for m, run in ((module, True), (twin, False)):
        xs = [x.clone().requires_grad_() for x in inputs]
        parts = [
            checkpoint(region, m, x, use_reentrant=reentrant) if run else region(m, x) for x in xs
        ]
        sum(parts).backward()
        grads.append([x.grad for x in xs])
    torch.testing.assert_close(*grads)
    torch.testing.assert_close(module.state_dict(), twin.state_dict())


def test_in_place_optimizer_step_is_that_of_the_quantization_loss(generator):
    module = LatentQuantize(
        LEVELS, 3, in_place_codebook_optimizer=lambda p: torch.optim.SGD(p, lr=0.4)
    )
    twin = LatentQuantize(LEVELS, 3, quantization_loss_weight=1.0)
    x = torch.randn(2, 3, 50, generator=generator)
    twin(x).loss.backward()
    out = module(x)
    for own, other in zip(module.values_per_latent, twin.values_per_latent, strict=True):
        torch.testing.assert_close(own, other - 0.4 * other.grad)
    out.loss.backward() if out.loss.requires_grad else None
    assert all(own.grad is None for own in module.values_per_latent)
    assert torch.equal(module.indices_to_codes(out.indices), out.quantized)


def test_in_place_optimizer_s_state_is_in_the_checkpoint(generator):
    def adam(parameters):
        return torch.optim.Adam(parameters, lr=0.1)

    modules = [LatentQuantize(LEVELS, 3, in_place_codebook_optimizer=adam) for _ in range(2)]
    x = torch.randn(2, 3, 50, generator=generator)
    modules[0](x)
    modules[1].load_state_dict(modules[0].state_dict())
    for module in modules:
        module(x)
    torch.testing.assert_close(modules[0].state_dict(), modules[1].state_dict())


def test_evaluation_changes_nothing_and_has_no_loss(generator):
    module = LatentQuantize(
        LEVELS, 3, in_place_codebook_optimizer=lambda p: torch.optim.SGD(p, lr=0.4)
    ).eval()
    before = copy.deepcopy(module.state_dict())
    out = module(torch.randn(2, 3, 9, generator=generator, requires_grad=True))
    assert out.loss == 0 and not out.loss.requires_grad
    torch.testing.assert_close(module.state_dict(), before, rtol=0, atol=0)


def test_not_finite_tokens_do_not_reach_the_values(generator):
    module = LatentQuantize(LEVELS, 3)
    x = torch.randn(2, 3, 9, generator=generator)
    x[0, 1, 2], x[1, 0, 4] = math.nan, math.inf
    quantized, indices, loss = module(x)
    assert quantized[0, :, 2].isnan().all() and indices[0, 2] == 0 and indices[1, 4] == 0
    assert quantized.isfinite().sum() == 54 - 6 and loss.isnan()
    quantized.nan_to_num().sum().backward()
    assert all(p.grad.isfinite().all() for p in module.parameters())


def test_defaults_learn_and_stay_finite():
    """An autoencoder in which latents diverge if the values never move, as in the reference."""
    torch.manual_seed(0)
    encoder, decoder = torch.nn.Linear(6, 3), torch.nn.Linear(3, 6)
    quantizer = LatentQuantize([8, 8, 8], 3)
    parameters = [p for m in (encoder, decoder, quantizer) for p in m.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-2)
    basis, first = torch.randn(3, 6), None
    for _ in range(500):
        x = torch.randn(128, 3) @ basis
        quantized, _, loss = quantizer(encoder(x))
        error = (decoder(quantized) - x).square().mean()
        first = error.item() if first is None else first
        optimizer.zero_grad()
        (error + loss).backward()
        optimizer.step()
    assert error.item() < first / 4
    start = torch.ops.torchvq.latent_values([8, 8, 8])
    moved = [(a - b).abs().max() for a, b in zip(quantizer.values_per_latent, start, strict=True)]
    assert min(moved) > 0.1


def test_copies_pickles_and_paths(generator):
    module = LatentQuantize(LEVELS, 7)
    x = torch.randn(2, 7, 9, generator=generator)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(twin(x).quantized, module(x).quantized)
    assert ByPath is LatentQuantize and "levels=[4, 3, 6]" in repr(module)
    fixed = LatentQuantize(LEVELS, 3, optimize_values=False)
    assert not fixed.state_dict() and len(fixed.values_per_latent) == 3
    assert fixed.implicit_codebook.shape == (72, 3)


def test_buffers_of_other_code_are_no_values(generator):
    """Counters of operations give every module a buffer."""
    fixed = LatentQuantize(LEVELS, 3, optimize_values=False)
    x = torch.randn(2, 3, 5, generator=generator)
    quantized, indices, _ = fixed(x)
    for part in fixed.modules():
        part.register_buffer("total_ops", torch.zeros(1, dtype=torch.float64))
    assert torch.equal(fixed(x)[0], quantized)
    assert torch.equal(fixed.indices_to_codes(indices), quantized)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: LatentQuantize([], 3), ValueError),
        (lambda: LatentQuantize([1, 3], 3), ValueError),
        (lambda: LatentQuantize([65536] * 4, 3), ValueError),
        (lambda: LatentQuantize(LEVELS, 0), ValueError),
        (lambda: LatentQuantize(LEVELS, 3, num_codebooks=0), ValueError),
        (lambda: LatentQuantize(LEVELS, 3, codebook_dim=2), ValueError),
        (lambda: LatentQuantize(4, 3, codebook_dim=0), ValueError),
        (lambda: LatentQuantize(4, 3), RuntimeError),
        (lambda: LatentQuantize(None, 3), TypeError),
        (lambda: LatentQuantize(1.5, 3), TypeError),
        (lambda: LatentQuantize(LEVELS, 3, commitment_loss_weight=-1), ValueError),
        (lambda: LatentQuantize(LEVELS, 3, quantization_loss_weight=math.nan), ValueError),
        (
            lambda: LatentQuantize(
                LEVELS, 3, optimize_values=False, in_place_codebook_optimizer=torch.optim.SGD
            ),
            ValueError,
        ),
        (lambda: LatentQuantize(LEVELS, 3)(torch.zeros(2, 4, 5)), ValueError),
        (lambda: LatentQuantize(LEVELS, 3)(torch.zeros(3)), ValueError),
        (lambda: LatentQuantize(LEVELS, 3)(torch.zeros(2, 3).long()), TypeError),
        (lambda: LatentQuantize(LEVELS, 3)(torch.zeros(2, 3), mask=torch.ones(2)), TypeError),
        (
            lambda: LatentQuantize(LEVELS, 3)(torch.zeros(2, 3, 4), mask=torch.ones(2).bool()),
            ValueError,
        ),
        (lambda: LatentQuantize(LEVELS, 3).indices_to_codes(torch.tensor([72])), IndexError),
        (
            lambda: LatentQuantize(LEVELS, 3).indices_to_codes(
                torch.tensor([2**64 - 1], dtype=torch.uint64)
            ),
            IndexError,
        ),
        (lambda: LatentQuantize(LEVELS, 3).indices_to_codes(torch.tensor([1.0])), TypeError),
        (lambda: LatentQuantize(LEVELS, 3).indices_to_codes(torch.tensor(1)), ValueError),
        (
            lambda: LatentQuantize(LEVELS, 3).commitment_loss(torch.zeros(2), torch.zeros(3)),
            ValueError,
        ),
    ],
)
def test_bad_arguments_are_refused(call, error):
    with pytest.raises(error, match="expected"):
        call()
