"""Oracles of VectorQuantize where the reference is random or wrong, by brute force in float64."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F

from .tokens_vector_quantize import (
    codes_per_head,
    compared_tokens,
    differentiable_distances,
    lloyd_fixed_point_error,
    look_up,
    nearest,
)


def close(actual, expected, tolerance=1e-5):
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance)


def state(module, name):
    return module.state_dict()[f"_codebook.{name}"].detach().clone()


def tokens_and_codes(module, row, x):
    tokens, codes = compared_tokens(module, row, x), codes_per_head(module, row)
    return (
        tokens,
        codes,
        nearest(tokens.detach(), codes, bool(row.constructor_kwargs().get("use_cosine_sim"))),
    )


def logits(module, row, x):
    tokens, codes, _ = tokens_and_codes(module, row, x)
    return -differentiable_distances(tokens, codes)


# --- masks and empties ----------------------------------------------------------------------------


def masked_commitment(build, row):
    """The mean over the unmasked tokens of (u - q)^2, with u as compared with codes; and its gradient to x."""
    module = build()
    x = row.input(0)
    forward = row.forward_kwargs(0)
    exact = x.detach().clone().double().requires_grad_()
    tokens, codes, indices = tokens_and_codes(module, row, exact)
    mask = forward.get("mask")
    if mask is None:
        mask = torch.arange(tokens.shape[1]) < forward["lens"][:, None]
    expected = (tokens - look_up(codes, indices)).pow(2)[mask].mean()
    loss = module(x, **forward)[2]
    close(loss, expected)
    (gradient,) = torch.autograd.grad(loss, x)
    close(gradient, torch.autograd.grad(expected, exact)[0])


def empty_selection(build, row):
    """With no token selected, the loss is zero and the state does not change."""
    module = build()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    x = row.input(0)
    quantized, _, loss = module(x, **row.forward_kwargs(0))
    assert quantized.shape == x.shape
    assert loss.item() == 0.0, f"loss {loss.item()}"
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), f"{name} changed"


def non_finite_token(build, row):
    """A token with NaN or infinity gives NaN only for itself and never reaches the state."""
    module = build()
    x = row.input(0).detach()
    x[0, 1, 2], x[1, 3, 0] = float("nan"), float("inf")
    quantized, indices, _ = module(x)
    bad = ~torch.isfinite(x).all(-1)
    assert torch.isnan(quantized[bad]).all() and torch.isfinite(quantized[~bad]).all()
    assert (indices[bad] == 0).all()
    for name, value in module.state_dict().items():
        assert torch.isfinite(value.float()).all(), f"{name} is not finite"


# --- gradients and estimators ---------------------------------------------------------------------


def rotation_near_zero(build, row):
    """The output is the code however short the input, and the gradient stays bounded."""
    module = build()
    codes = state(module, "embed")[0]
    x = row.input(0).detach()
    x[0, 0], x[0, 1] = 0.0, 1e-8 * x[0, 1]
    x.requires_grad_()
    quantized, indices, _ = module(x)
    close(quantized, codes[indices])
    quantized.sum().backward()
    assert torch.isfinite(x.grad).all()
    assert x.grad.norm(dim=-1).max() < 1e4, f"gradient {x.grad.norm(dim=-1).max().item():.1e}"


def backward_uses_forward_codes(build, row):
    """The codebook update of this step changes no gradient of this step."""

    def gradient(frozen):
        module = build()
        x = row.input(0)
        quantized, _, loss = module(x, freeze_codebook=frozen, **row.forward_kwargs(0))
        weight = torch.rand(quantized.shape, generator=torch.Generator().manual_seed(5))
        ((quantized * weight).sum() + loss).backward()
        return x.grad

    close(gradient(frozen=False), gradient(frozen=True))


def bridge_uses_forward_codes(build, row):
    """Averages that move codes in this step change no gradient of the bridge."""

    def gradients(moves):
        module = build()
        quantized, _, loss = module(row.input(0), ema_update=moves)
        (quantized.square().sum() + loss).backward()
        return [p.grad for n, p in module.named_parameters() if "bridge" in n]

    assert gradients(True)
    for got, expected in zip(gradients(True), gradients(False), strict=True):
        close(got, expected)


def sampling_frequencies(build, row):
    """Codes are drawn from softmax(-distance / temperature): chi-square per code within the limits of chance."""
    module = build()
    count = 20_000
    token = row.input(0).detach()[:1, :1]
    indices = module(token.expand(1, count, -1).contiguous(), **row.forward_kwargs(0))[1]
    temperature = row.forward_kwargs(0).get("sample_codebook_temp", 1.0)
    probability = (logits(module, row, token).flatten() / temperature).softmax(-1)
    expected = probability * count
    excess = (indices.flatten().bincount(minlength=len(expected)) - expected).pow(2) / (
        expected + 1
    )
    assert excess.sum() < 3 * len(expected), (
        f"chi-square {excess.sum().item():.1f} for {len(expected)} codes"
    )


def directional_noise(build, row):
    """Length is kept, direction is that of q - x + N(0, variance) in every element: the tangent shows the spread."""
    module = build()
    variance = row.constructor_kwargs()["directional_reparam_variance"]
    dim = module.codebook.shape[-1]
    with torch.no_grad():
        module._codebook.embed.copy_(torch.full_like(module._codebook.embed, 50.0))
        module._codebook.embed[0, 0] = F.one_hot(torch.tensor(0), dim)
    count = 20_000
    x = torch.zeros(1, count, dim, requires_grad=True)
    step = module(x)[0].detach()[0]
    close(step.norm(dim=-1), torch.ones(count))
    noise = variance**0.5 * torch.randn(count, dim, generator=torch.Generator().manual_seed(0))
    expected = (noise[:, 1] / (1 + noise[:, 0])).abs().median()
    assert abs((step[:, 1] / step[:, 0]).abs().median() / expected - 1) < 0.05
    module.eval()
    assert torch.equal(module(x)[0], module(x)[0])


# --- losses ---------------------------------------------------------------------------------------


def diversity_over_all_tokens(build, row):
    """Minus the entropy of the codes' mean probability over every token of the batch, positions included."""
    module = build()
    x = row.input(0)
    exact = x.detach().clone().double().requires_grad_()
    temperature = row.constructor_kwargs()["codebook_diversity_temperature"]
    mean = (logits(module, row, exact) * temperature).softmax(-1).mean((0, 1, 2))
    expected = (mean * mean.log()).sum()
    breakdown = module(x, return_loss_breakdown=True)[3]
    close(breakdown.codebook_diversity, expected)
    (gradient,) = torch.autograd.grad(breakdown.codebook_diversity, x)
    close(gradient, torch.autograd.grad(expected, exact)[0])


def cross_entropy_of_any_layout(build, row):
    """The mean cross entropy over tokens, whatever the layout."""
    module = build()
    x = row.input(0)
    scores = logits(module, row, x).flatten(0, -2)
    close(module(x)[2], F.cross_entropy(scores, scores.argmax(-1)))


def given_indices_in_any_layout(build, row):
    """The output is that of a plain forward, the loss the mean cross entropy of the given indices."""
    module = build()
    x, given = row.input(0), row.forward_kwargs(0)["indices"]
    quantized, loss = module(x, indices=given)
    close(quantized, build()(x)[0])
    scores = logits(build(), row, x).flatten(0, -2)
    close(loss, F.cross_entropy(scores, given.flatten()))


def decoded_heads_are_merged(build, row):
    """Codes of several heads are concatenated, as the projection takes them."""
    module = build().eval()
    quantized, indices, _ = module(row.input(0))
    codes = module.get_codes_from_indices(indices)
    assert codes.shape == (*indices.shape[:-1], module.project_out.in_features)
    close(module.project_out(codes), quantized)
    close(module.get_output_from_indices(indices), quantized)


def effective_codebook(build, row):
    """The codebook that users read is the one from which outputs come."""
    module = build().eval()
    quantized, indices, _ = module(row.input(0))
    close(module.codebook[indices], quantized)


def optimizer_steps_survive(build, row):
    """A step of an optimizer on the codes survives the next moving average."""
    moved = []
    for learning_rate in (0.0, 0.5):
        module = build()
        optimizer = torch.optim.SGD(module.parameters(), lr=learning_rate)
        for step in range(3):
            module(row.input(step).detach(), **row.forward_kwargs(step))[2].backward()
            optimizer.step()
            optimizer.zero_grad()
        module(row.input(3).detach(), **row.forward_kwargs(3))
        moved.append(state(module, "embed"))
    assert (moved[0] - moved[1]).abs().max() > 1e-2


def orthogonal_over_a_subset(build, row):
    """With max_codes, the loss is that of some subset of this size."""
    module = build()
    size = row.constructor_kwargs()["orthogonal_reg_max_codes"]
    loss = module(row.input(0), return_loss_breakdown=True)[3].orthogonal_reg.item()
    unit = F.normalize(state(module, "embed")[0].double(), dim=-1)
    gram = (unit @ unit.T).pow(2)
    subsets = (list(s) for s in itertools.combinations(range(len(unit)), size))
    values = [gram[s][:, s].sum().item() / size**2 - 1 / size for s in subsets]
    assert min(abs(value - loss) for value in values) < 1e-6


def loss_is_nobodys_state(build, row):
    """A returned loss can be changed in place, and requires a gradient only in training."""
    module = build()
    x = row.input(0)
    loss = module(x)[2]
    loss += 1.0
    module.eval()
    for _ in range(2):
        loss = module(x)[2]
        assert not loss.requires_grad
        assert loss.item() == 0.0
        loss.add_(1.0)


# --- codebook state -------------------------------------------------------------------------------


def decode_equals_output(build, row):
    """In evaluation, decoding the indices gives the output, bit for bit."""
    module = build()
    for step in range(row.steps):
        module(row.input(step), **row.forward_kwargs(step))
    module.eval()
    with torch.no_grad():
        quantized, indices, _ = module(row.input(row.steps), **row.forward_kwargs(row.steps))
        close(module.get_output_from_indices(indices), quantized)


def eval_changes_no_buffer(build, row):
    """An evaluation forward changes no buffer, and two give the same result."""
    module = build()
    module(row.input(0))
    module.eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    first, second = module(row.input(1))[0], module(row.input(1))[0]
    assert torch.equal(first, second)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), f"{name} changed"


def stepped_state_loads(build, row):
    """A trained state loads strictly into a fresh module."""
    trained = build()
    trained(row.input(0))
    fresh = build()
    fresh.load_state_dict(trained.state_dict(), strict=True)
    trained.eval(), fresh.eval()
    close(fresh(row.input(1))[0], trained(row.input(1))[0])


def set_codebook_stays(build, row):
    """Codes that a user sets survive a step over data that agrees with them."""
    module = build()
    codes = torch.randn(module.codebook.shape, generator=torch.Generator().manual_seed(8))
    module.codebook = codes
    assert torch.equal(module.codebook.detach(), codes)
    module(codes[None])
    close(module.codebook, codes, tolerance=1e-4)


def used_codes_are_not_replaced(build, row):
    """Codes that this batch uses are alive, whatever their counter was."""
    module = build()
    codes = state(module, "embed")[0]
    module(codes[None].clone())
    close(state(module, "embed")[0], codes, tolerance=1e-4)


def expired_codes_become_tokens(build, row):
    """Every dead code becomes a different token, with matching sums and counts."""
    module = build()
    x = row.input(0).detach()
    module.expire_codes_(x)
    embed, count, total = (
        state(module, name)[0] for name in ("embed", "cluster_size", "embed_avg")
    )
    distance = torch.cdist(embed.double(), x.flatten(0, -2).double())
    assert distance.min(-1).values.max() < 1e-6
    assert distance.argmin(-1).unique().numel() == len(embed)
    close(total, embed * count[:, None])


def unused_codes_do_not_fade(build, row):
    """Codes that are unused for a long time move to codes in use instead of fading to the origin."""
    module = build()
    codes = state(module, "embed")[0]
    tokens = codes[:1].expand(1, 32, -1)
    for _ in range(120):
        module(tokens)
    close(state(module, "embed")[0], codes[:1].expand_as(codes), tolerance=5e-2)


def kmeans_fixed_point(build, row):
    """After enough Lloyd steps, every used code is the mean of its tokens, and its count is their number."""
    module = build()
    x = row.input(0).detach()
    module(x)
    points, codes = x.flatten(0, -2).double(), state(module, "embed")[0].double()
    assert lloyd_fixed_point_error(points, codes) < 1e-4
    counts = torch.cdist(points, codes).argmin(-1).bincount(minlength=len(codes))
    close(state(module, "cluster_size")[0], counts)


def kmeans_with_few_tokens(build, row):
    """With fewer tokens than codes every token is a code, and no code is left at the origin."""
    module = build()
    x = row.input(0).detach()
    close(module(x)[0], x, tolerance=1e-3)  # smoothing moves a code of one token by about eps
    assert state(module, "embed")[0].norm(dim=-1).min() > 1e-3


# --- precision ------------------------------------------------------------------------------------


def nearest_far_from_the_origin(build, row):
    """The nearest code in float64, also if data and codes lie far from zero."""
    module = build()
    with torch.no_grad():
        module._codebook.embed.mul_(0.1).add_(100.0)
    module.eval()
    x = row.input(0).detach() * 0.1 + 100.0
    _, _, indices = tokens_and_codes(module, row, x)
    assert torch.equal(module(x)[1], indices[..., 0])


def state_stays_float32(build, row):
    """A cast of the module leaves counts and sums in float32, so that small updates are not lost."""
    module = build().to(torch.bfloat16)
    for step in range(3):
        module(row.input(step).to(torch.bfloat16))
    for name in ("cluster_size", "embed_avg", "embed"):
        assert state(module, name).dtype == torch.float32, name


def any_input_dtype(build, row):
    """A projection between dtypes does not raise; the output has the input's dtype."""
    module = build()
    module.eval()
    x = row.input(0)
    quantized, indices, _ = module(x)
    assert quantized.dtype == x.dtype
    exact, exact_indices, _ = module(x.detach().float())
    agree = indices == exact_indices
    assert agree.float().mean() > 0.8
    close(quantized[agree], exact[agree], tolerance=2e-2)


def autocast_changes_nothing(build, row):
    """Under CPU autocast, the search still runs in float32."""
    module = build()
    module.eval()
    x = row.input(0).detach()
    plain = module(x)[1]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(module(x)[1], plain)


def one_process_needs_no_group(build, row):
    """Asking for synchronisation in a single process is not an error."""
    module = build()
    for step in range(2):
        loss = module(row.input(step))[2]
        assert torch.isfinite(loss)


def decode_rejects_bad_indices(build, row):
    """An index that no forward returns raises IndexError instead of decoding to some code."""
    module = build()
    for bad in (-2, module.codebook.shape[-2]):
        try:
            module.get_codes_from_indices(torch.tensor([[0, bad]]))
        except IndexError:
            continue
        raise AssertionError(f"index {bad} was decoded")


def masked_tokens_decode_to_zero(build, row):
    """Index -1 means no code, so it decodes to zeros and not to the last code."""
    module = build()
    decoded = module.get_codes_from_indices(torch.tensor([[0, -1]]))
    assert torch.equal(decoded[0, 0], state(module, "embed")[0, 0])
    assert decoded[0, 1].abs().max() == 0
