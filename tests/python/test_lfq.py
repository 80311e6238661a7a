"""LFQ (python/torchvq/lookup_free_quantization.py) beyond parity: masks, layouts, precision, compilers, checkpoints."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from lookup_free_oracle import all_bits, assert_near, entropies
from torch import nn
from torch.utils.checkpoint import checkpoint

from support import assert_close_to_rounding, bit_for_bit
from torchvq import LFQ
from torchvq.lookup_free_quantization import CosineSimLinear, LossBreakdown, Return

SIZE, BITS = 64, 6
CASES = {
    "plain": {},
    "codebooks": dict(codebook_size=8, num_codebooks=2),
    "spherical": dict(spherical=True, codebook_scale=1.5),
    "projected": dict(dim=10, codebook_size=SIZE),
    "projected_codebooks": dict(
        dim=10, codebook_size=8, num_codebooks=2, soft_clamp_input_value=2.0
    ),
    "cosine": dict(dim=10, codebook_size=SIZE, cosine_sim_project_in=True),
    "rotated": dict(orthogonal_rotation=True),
    "activation": dict(straight_through_activation=nn.Tanh()),
    "softplus": dict(experimental_softplus_entropy_loss=True),
    "kept_axis": dict(keep_num_codebooks_dim=True),
}
LAYOUTS = {
    "tokens": lambda d: (4, d),
    "sequence": lambda d: (2, 7, d),
    "image": lambda d: (2, d, 3, 4),
    "video": lambda d: (1, d, 2, 3, 2),
}


def build(case="plain", **options):
    torch.manual_seed(1)
    own = dict(dim=BITS, commitment_loss_weight=0.25)
    return LFQ(**{**own, **CASES[case], **options})


def data(shape, scale=0.3, seed=2):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


# Codes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CASES)
def test_decoded_indices_are_the_output(case, layout):
    lfq = build(case).eval()
    shape = LAYOUTS[layout](lfq.dim)
    quantized, indices, loss = lfq(data(shape))
    assert quantized.shape == shape and indices.dtype == torch.long and loss == 0
    positions = shape[:1] + (shape[2:] if len(shape) > 3 else shape[1:-1])
    axis = (lfq.num_codebooks,) if lfq.keep_num_codebooks_dim else ()
    assert indices.shape == positions + axis
    torch.testing.assert_close(lfq.indices_to_codes(indices), quantized, rtol=1e-6, atol=1e-6)
    training, again, _ = lfq.train()(data(shape))
    assert torch.equal(again, indices)
    torch.testing.assert_close(training, quantized, rtol=1e-6, atol=1e-6)


def test_channel_first_both_ways():
    x = data((2, 7, BITS))
    right = build().eval()(x)
    first = build(channel_first=True).eval()
    found = first(x.mT)
    assert torch.equal(found[0], right[0].mT) and torch.equal(found[1], right[1])
    assert torch.equal(first.indices_to_codes(found[1]), found[0])
    image = data((2, 3, 4, BITS))
    last = build(channel_first=False).eval()
    found, right = last(image), build().eval()(image.movedim(-1, 1))
    assert torch.equal(found[0].movedim(-1, 1), right[0]) and torch.equal(found[1], right[1])
    assert torch.equal(last.indices_to_codes(found[1]), found[0])


def test_codebook_lists_the_codes():
    lfq = build(codebook_scale=0.5)
    assert torch.equal(lfq.codebook.double(), all_bits(BITS) - 0.5)
    assert torch.equal(lfq.indices_to_codes(torch.arange(SIZE)), lfq.codebook)
    assert torch.equal(lfq.bits_to_codes(all_bits(BITS) > 0), lfq.codebook)
    assert torch.equal(lfq.bits_to_codes(all_bits(BITS)), lfq.codebook)
    spherical = build("spherical")
    torch.testing.assert_close(spherical.codebook.norm(dim=-1), torch.full((SIZE,), 1.5))


def test_nearest_code_by_brute_force():
    for case in ("plain", "spherical"):
        lfq = build(case).eval()
        x = data((1, 50, BITS))
        latents = nn.functional.normalize(x, dim=-1) * 1.5 if case == "spherical" else x
        assert torch.equal(torch.cdist(latents[0], lfq.codebook).argmin(-1), lfq(x)[1][0])


def test_a_million_codes_of_40_bits_round_trip():
    lfq = LFQ(codebook_size=2**40, commitment_loss_weight=1.0).eval()
    indices = torch.randint(0, 2**40, (1, 1_000_000), generator=torch.Generator().manual_seed(3))
    codes = lfq.indices_to_codes(indices)
    quantized, found, _ = lfq(codes)
    assert torch.equal(found, indices) and torch.equal(quantized, codes)


def test_absent_codes_and_bad_indices():
    lfq = build("projected")
    codes = lfq.indices_to_codes(torch.tensor([[-1, 3]]))
    assert codes[0, 0].eq(0).all() and codes[0, 1].ne(0).any()
    for index in (-2, SIZE):
        with pytest.raises(IndexError, match="expected indices to be in"):
            lfq.indices_to_codes(torch.tensor([[index]]))
    with pytest.raises(ValueError, match="2 codebooks on the last axis"):
        build("codebooks").indices_to_codes(torch.zeros(1, 3, dtype=torch.long))
    with pytest.raises(TypeError, match="expected indices to be integers"):
        lfq.indices_to_codes(torch.zeros(1, 3))


# Losses and gradients --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["plain", "codebooks", "spherical", "softplus"])
def test_loss_and_gradient_by_enumeration(case):
    options = dict(diversity_gamma=2.0, entropy_loss_weight=0.3)
    lfq = build(case, **options)
    x = data((2, 9, BITS), 0.02).double().requires_grad_()
    (_, _, loss), terms = lfq(x, inv_temperature=50.0, return_loss_breakdown=True)
    wide = x.detach().requires_grad_()
    latents = wide.reshape(18, lfq.num_codebooks, -1).transpose(0, 1)
    value = 1.0
    if case == "spherical":
        latents, value = nn.functional.normalize(latents, dim=-1) * 1.5, 1.5 / math.sqrt(BITS)
    per_sample, batch = entropies(latents, 200.0 * value)
    commitment = (latents - torch.where(latents > 0, value, -value)).square().mean()
    entropy = per_sample - 2 * batch
    entropy = nn.functional.softplus(entropy + 5) if case == "softplus" else entropy
    right = 0.3 * entropy + 0.25 * commitment
    torch.testing.assert_close(torch.stack(terms), torch.stack([per_sample, batch, commitment]))
    torch.testing.assert_close(loss, right)
    loss.backward()
    right.backward()
    assert_near(x.grad, wide.grad, 1e-8)


def test_gradient_where_the_reference_has_none():
    """2^18 codes in nearly uniform use: the reference clamps its logarithm at 1e-5, which makes it constant there."""
    from vector_quantize_pytorch import LFQ as Reference

    x = data((1, 24, 18), 0.0005)
    grads = {}
    for kind in (LFQ, Reference):
        lfq = kind(codebook_size=2**18, commitment_loss_weight=1.0)
        own = x.clone().requires_grad_()
        terms = lfq(own, return_loss_breakdown=True)[1]
        grads[kind] = torch.autograd.grad(terms.batch_entropy, own)[0]
    wide = x.double().requires_grad_()
    terms = LFQ(codebook_size=2**18, commitment_loss_weight=1.0)(wide, return_loss_breakdown=True)[
        1
    ]
    right = torch.autograd.grad(terms.batch_entropy, wide)[0]
    assert_near(grads[LFQ], right, 1e-4)
    assert right.abs().max() > 1e-5
    assert grads[Reference].abs().max() < 1e-3 * right.abs().max()


def test_straight_through_gain_is_one():
    for case in ("plain", "codebooks", "rotated"):
        lfq = build(case, entropy_loss_weight=0.0)
        x = data((2, 5, BITS)).requires_grad_()
        weight = data((2, 5, BITS), 1.0, seed=5)
        (lfq(x)[0] * weight).sum().backward()
        torch.testing.assert_close(x.grad, weight, rtol=1e-5, atol=1e-6)


def test_defaults_warn_once_and_stay_finite(caplog):
    with caplog.at_level("WARNING", "torchvq"):
        lfq = LFQ(dim=8)
    assert len(caplog.records) == 1 and "commitment_loss_weight" in caplog.text
    caplog.clear()
    with caplog.at_level("WARNING", "torchvq"):
        for options in (
            dict(commitment_loss_weight=0.25),
            dict(soft_clamp_input_value=1.0),
            dict(spherical=True),
            dict(entropy_loss_weight=0.0),
        ):
            LFQ(dim=8, **options)
    assert not caplog.records
    encoder = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=1e3)
    for step in range(30):
        loss = lfq(encoder(data((1, 64, 8), 1.0, seed=step)))[2]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert loss.isfinite()
    assert all(p.isfinite().all() for p in encoder.parameters())


def test_entropy_loss_fills_a_large_codebook():
    """Latents that begin in one corner of 2^18 codes spread out."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 18))
    nn.init.constant_(encoder[2].bias, 0.02)
    lfq = LFQ(codebook_size=2**18, commitment_loss_weight=0.25, entropy_loss_weight=1.0)
    optimizer = torch.optim.Adam(encoder.parameters(), lr=3e-3)
    used = []
    for step in range(40):
        (_, indices, loss), terms = lfq(
            encoder(data((1, 256, 32), 1.0, seed=step)), return_loss_breakdown=True
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        used.append((indices.unique().numel(), terms.batch_entropy.item()))
    assert used[-1][0] > 250 and used[-1][0] >= used[0][0]
    assert used[-1][1] > 5


# Masks and empties -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_masked_is_absent(case):
    lfq = build(case)
    x = data((3, 5, lfq.dim))
    mask = torch.rand(3, 5, generator=torch.Generator().manual_seed(4)) < 0.6
    x[~mask] = float("nan")
    a, b = x.clone().requires_grad_(), x[mask].unsqueeze(0).requires_grad_()
    (quantized, indices, loss), terms = lfq(a, mask=mask, return_loss_breakdown=True)
    rest, right = lfq(b, return_loss_breakdown=True)
    # The rounding of a linear layer depends on the shape of its batch.
    torch.testing.assert_close((loss, *terms), (rest[2], *right), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(quantized[mask], rest[0][0], rtol=1e-5, atol=1e-6)
    assert torch.equal(indices[mask], rest[1][0])
    assert quantized[~mask].eq(0).all() and indices[~mask].eq(-1).all()
    (quantized.sum() + loss).backward()
    (rest[0].sum() + rest[2]).backward()
    torch.testing.assert_close(a.grad[mask], b.grad[0], rtol=1e-4, atol=1e-6)
    assert a.grad[~mask].eq(0).all()


def test_mask_of_items_and_of_pixels():
    lfq = build()
    x = data((3, 5, BITS))
    items = torch.tensor([True, False, True])
    found, right = lfq(x, mask=items), lfq(x, mask=items.unsqueeze(1).expand(3, 5))
    assert all(map(torch.equal, found, right))
    image, pixels = data((2, BITS, 3, 4)), torch.rand(2, 3, 4) < 0.5
    quantized, indices, loss = lfq(image, mask=pixels)
    assert quantized.movedim(1, -1)[~pixels].eq(0).all() and indices[~pixels].eq(-1).all()
    flat = lfq(image.flatten(2).mT, mask=pixels.flatten(1))
    assert torch.equal(loss, flat[2])


@pytest.mark.parametrize("case", CASES)
def test_no_tokens_cost_nothing(case):
    lfq = build(case)
    nothing = torch.zeros(2, 3, dtype=torch.bool)
    empty = 0.1 * math.log1p(math.exp(5)) if case == "softplus" else 0
    for x, mask in ((torch.empty(2, 0, lfq.dim), None), (data((2, 3, lfq.dim)), nothing)):
        x.requires_grad_()
        quantized, indices, loss = lfq(x, mask=mask)
        assert loss.item() == pytest.approx(empty, rel=1e-6)
        assert quantized.shape == x.shape and quantized.eq(0).all() and indices.eq(-1).all()
        (loss + quantized.sum()).backward()
        assert x.grad.eq(0).all()


def test_rows_that_are_not_finite():
    lfq = build()
    x = data((1, 6, BITS))
    x[0, 1, 2], x[0, 4, 0] = float("nan"), float("inf")
    quantized, indices, loss = lfq(x)
    assert quantized[0, [1, 4]].isnan().all() and indices[0, [1, 4]].eq(0).all()
    assert quantized[0, [0, 2, 3, 5]].isfinite().all() and loss.isnan()


# Random subsets --------------------------------------------------------------------------------------------------


def test_subset_is_drawn_anew_and_reproducibly():
    first, second = build(frac_per_sample_entropy=0.5), build(frac_per_sample_entropy=0.5)
    x = data((1, 40, BITS))
    losses = [first(x)[2].item() for _ in range(5)]
    assert losses == [second(x)[2].item() for _ in range(5)] and len(set(losses)) > 3
    assert first.rng[1] == 5
    first.eval()(x)
    assert first.rng[1] == 5
    resumed = build(frac_per_sample_entropy=0.5)
    resumed.load_state_dict(first.state_dict())
    assert resumed(x)[2] == second(x)[2]
    mask = torch.rand(1, 40, generator=torch.Generator().manual_seed(3)) < 0.5
    a, b = build(frac_per_sample_entropy=0.5), build(frac_per_sample_entropy=0.5)
    assert a(x, mask=mask)[2] == b(x[mask].unsqueeze(0))[2]


# Precision -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_any_input_dtype_keeps_its_dtype(case, dtype):
    lfq = build(case)
    x = data((2, 9, lfq.dim)).to(dtype).requires_grad_()
    quantized, indices, loss = lfq(x)
    (quantized.sum() + loss).backward()
    assert quantized.dtype == x.grad.dtype == dtype and x.grad.isfinite().all()
    assert torch.equal(indices, build(case)(x.detach().float())[1])
    assert loss.dtype == (
        torch.float64 if dtype == torch.float64 and not lfq.has_projections else torch.float32
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_cast_modules_train(case, dtype):
    lfq = build(case).to(dtype)
    for input_dtype in (dtype, torch.float32):
        x = data((2, 9, lfq.dim)).to(input_dtype).requires_grad_()
        quantized, indices, loss = lfq(x)
        (quantized.float().sum() + loss).backward()
        assert quantized.dtype == input_dtype and x.grad.isfinite().all() and loss.isfinite()
        if not lfq.has_projections:
            assert torch.equal(indices, build(case)(x.detach().float())[1])
    assert lfq.mask.dtype == torch.long
    decoded = lfq.eval().indices_to_codes(indices)
    torch.testing.assert_close(decoded.float(), lfq(x)[0].float(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("case", CASES)
def test_autocast_changes_nothing_but_projections(case):
    lfq = build(case)
    x = data((2, 9, lfq.dim))
    right = lfq(x)
    with torch.autocast("cpu", torch.bfloat16):
        found = lfq(x)
    assert found[0].dtype == torch.float32 and found[2].dtype == torch.float32
    if not lfq.has_projections:
        assert all(map(torch.equal, found, right))


# Compilers, checkpoints, copies ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_compiles_without_graph_breaks(case):
    torch._dynamo.reset()
    eager, module = (
        build(case, frac_per_sample_entropy=0.7),
        build(case, frac_per_sample_entropy=0.7),
    )
    step = torch.compile(module, fullgraph=True, backend="aot_eager")
    mask = torch.rand(2, 9, generator=torch.Generator().manual_seed(4)) < 0.7
    for seed in (1, 2):
        a, b = (data((2, 9, eager.dim), seed=seed).requires_grad_() for _ in range(2))
        right, found = eager(a, mask=mask), step(b, mask=mask)
        (right[0].sum() + right[2]).backward()
        (found[0].sum() + found[2]).backward()
        # A rotation is a matrix product of torch, to which a compiler may pass another layout.
        same = assert_close_to_rounding if case == "rotated" else bit_for_bit
        for one, other in zip((*found, b.grad), (*right, a.grad), strict=True):
            same(one.detach(), other.detach())
    assert torch.equal(eager.rng, module.rng)


@pytest.mark.parametrize("case", ["rotated"])  # the other cases are rows of tests/matrix
def test_exports(case, tmp_path):
    lfq = build(case).eval()
    x = data((2, 9, lfq.dim))
    dynamic = {"x": {0: torch.export.Dim("batch", min=1, max=64)}}
    program = torch.export.export(lfq, (x,), dynamic_shapes=dynamic)
    torch.export.save(program, tmp_path / "lfq.pt2")
    loaded = torch.export.load(tmp_path / "lfq.pt2").module()
    more = data((5, 9, lfq.dim))
    assert all(map(torch.equal, loaded(more), lfq(more)))


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(reentrant):
    plain, again = (build("projected", frac_per_sample_entropy=0.5) for _ in range(2))
    a, b = (data((2, 9, 10)).requires_grad_() for _ in range(2))
    right = plain(a)
    found = checkpoint(lambda x: tuple(again(x)), b, use_reentrant=reentrant)
    (right[0].sum() + right[2]).backward()
    (found[0].sum() + found[2]).backward()
    assert torch.equal(a.grad, b.grad) and torch.equal(plain.rng, again.rng)


def test_state_is_that_of_the_reference():
    from vector_quantize_pytorch import LFQ as Reference

    for options in (dict(dim=10, codebook_size=16, orthogonal_rotation=True), dict(dim=4)):
        reference = Reference(**options)
        lfq = LFQ(**options, frac_per_sample_entropy=0.5)
        lfq.load_state_dict(reference.state_dict(), strict=True)
        x = data((2, 7, lfq.dim))
        assert torch.equal(lfq.eval()(x)[1], reference.eval()(x)[1])
        assert set(LFQ(**options).state_dict()) == set(reference.state_dict())


def test_copies_and_pickles():
    lfq = build("projected", frac_per_sample_entropy=0.5)
    x = data((2, 7, 10))
    others = [copy.deepcopy(lfq), pickle.loads(pickle.dumps(lfq))]
    right = lfq(x)
    for other in others:
        assert all(map(torch.equal, other(x), right))
    assert pickle.loads(pickle.dumps(build("spherical")))(x[..., :BITS])[0].shape == (2, 7, BITS)


def test_large_codebooks_cost_nothing_to_build():
    lfq = LFQ(codebook_size=2**62, commitment_loss_weight=1.0)
    assert sum(b.numel() for b in lfq.buffers()) == 62 and not list(lfq.parameters())
    assert lfq(torch.randn(1, 4, 62))[2].isfinite()


def test_eval_is_silent_and_changes_nothing():
    lfq = build("projected", frac_per_sample_entropy=0.5).eval()
    before = copy.deepcopy(lfq.state_dict())
    x = data((2, 7, 10)).requires_grad_()
    output, terms = lfq(x, return_loss_breakdown=True)
    assert isinstance(output, Return) and isinstance(terms, LossBreakdown)
    assert output._fields == ("quantized", "indices", "entropy_aux_loss")
    assert terms._fields == ("per_sample_entropy", "batch_entropy", "commitment")
    assert all(term == 0 for term in terms) and not output.entropy_aux_loss.requires_grad
    assert all(torch.equal(before[name], value) for name, value in lfq.state_dict().items())


def test_cosine_projection():
    layer = CosineSimLinear(5, 3, scale=2.0).double()
    x = torch.randn(4, 5, dtype=torch.float64)
    right = 2 * nn.functional.normalize(x, dim=-1) @ nn.functional.normalize(layer.weight, dim=0)
    torch.testing.assert_close(layer(x), right)
    assert layer.weight.shape == (5, 3)


# Errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(dim=None), "dim or codebook_size"),
        (dict(codebook_size=100), "power of 2"),
        (dict(codebook_size=1), "power of 2"),
        (dict(codebook_size=2**62 + 1), "power of 2"),
        (dict(dim=63), "at most 62"),
        (dict(dim=0), "dim to be at least 1"),
        (dict(num_codebooks=0), "num_codebooks to be at least 1"),
        (dict(codebook_scale=0.0), "codebook_scale to be above 0"),
        (dict(entropy_loss_weight=-0.1), "entropy_loss_weight to be 0 or more"),
        (dict(commitment_loss_weight=float("nan")), "commitment_loss_weight"),
        (dict(diversity_gamma=-1.0), "diversity_gamma"),
        (dict(frac_per_sample_entropy=0.0), "frac_per_sample_entropy"),
        (dict(frac_per_sample_entropy=1.01), "frac_per_sample_entropy"),
        (dict(soft_clamp_input_value=0.5), "soft_clamp_input_value to be at least codebook_scale"),
        (
            dict(codebook_size=8, num_codebooks=2, keep_num_codebooks_dim=False),
            "keep_num_codebooks",
        ),
        (dict(codebook_size=8, has_projections=False), "without projections"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        build(**options)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m(torch.zeros(2, 3, 5)), ValueError, "expected x to have 6 features"),
        (lambda m: m(torch.zeros(2, 3, BITS, dtype=torch.long)), TypeError, "floating-point"),
        (lambda m: m(None), TypeError, "floating-point"),
        (lambda m: m(torch.zeros(BITS)), ValueError, "expected x to have shape"),
        (lambda m: m(torch.zeros(2, 3, BITS), mask=torch.ones(2, 3)), TypeError, "mask to be bool"),
        (lambda m: m(torch.zeros(2, 3, BITS), mask=torch.ones(2, 4) > 0), ValueError, "mask"),
        (
            lambda m: m(torch.zeros(2, 3, BITS), inv_temperature=-1.0),
            ValueError,
            "LFQ: expected inv_temperature to be finite and non-negative, but got",
        ),
    ],
)
def test_calls_are_checked(call, error, message):
    lfq = build(frac_per_sample_entropy=0.5)
    with pytest.raises(error, match=message):
        call(lfq)
    assert lfq.rng[1] == 0
