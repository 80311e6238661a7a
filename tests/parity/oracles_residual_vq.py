"""Oracles of residual stacks where the reference is random or wrong: float64 brute force, or the same stack on plain
tokens.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .setup_residual_vq import LEVELS, levels_of


def close(actual, expected, tolerance=1e-5):
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance)


def state(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def codes_of(module: nn.Module) -> list[Tensor]:
    """(K, d) in float64 for each level."""
    return [layer._codebook.embed[0].detach().double().clone() for layer in levels_of(module)]


def greedy(u: Tensor, codes: list[Tensor], cosine: bool = False):
    """Residuals (Q, *, d), codes (Q, *, d) and indices (*, Q) of a plain residual search in float64."""
    residual, residuals, chosen, indices = u.detach().double(), [], [], []
    for book in codes:
        if cosine:
            index = (F.normalize(residual, dim=-1) @ book.T).argmax(-1)
        else:
            index = torch.cdist(residual.reshape(-1, book.shape[-1]), book).argmin(-1)
            index = index.view(residual.shape[:-1])
        residuals.append(residual)
        chosen.append(book[index])
        indices.append(index)
        residual = residual - book[index]
    return torch.stack(residuals), torch.stack(chosen), torch.stack(indices, -1)


def is_cosine(row) -> bool:
    return bool(row.constructor_kwargs().get("use_cosine_sim"))


def assert_unchanged(module: nn.Module, before: dict[str, Tensor]) -> None:
    after = module.state_dict()
    for name, value in before.items():
        assert torch.equal(after[name], value), f"{name} changed"


def weights(shape) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(5)) + 0.5


# --- gradients ------------------------------------------------------------------------------------


def output_gain_is_one(build, row):
    """The straight-through gradient of the stack is the output's own, whatever the number of levels."""
    module, x = build(), row.input(0)
    quantized = module(x, **row.forward_kwargs(0))[0]
    weight = weights(quantized.shape)
    (gradient,) = torch.autograd.grad((quantized * weight).sum(), x)
    close(gradient, weight)


def dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1, keepdim=True)


def mean_rotation(build, row):
    """The gradient is the mean over the levels of the rotation from a level's code to its input."""
    module, x = build(), row.input(0)
    residuals, chosen, _ = greedy(x, codes_of(module))
    quantized = module(x)[0]
    w = weights(quantized.shape).double()
    (gradient,) = torch.autograd.grad((quantized * w).sum(), x)
    e, t = F.normalize(residuals, dim=-1), F.normalize(chosen, dim=-1)
    r = F.normalize(e + t, dim=-1)
    gain = chosen.norm(dim=-1, keepdim=True) / residuals.norm(dim=-1, keepdim=True)
    close(gradient, (gain * (w - 2 * dot(w, r) * r + 2 * dot(w, t) * e)).mean(0), 1e-4)


def mean_of_normalized(build, row):
    """Cosine levels copy the gradient to their normalized inputs; its mean over the levels reaches the latent."""
    module, x = build(), row.input(0)
    residuals, _, _ = greedy(x, codes_of(module), cosine=True)
    quantized = module(x)[0]
    w = weights(quantized.shape).double()
    (gradient,) = torch.autograd.grad((quantized * w).sum(), x)
    e = F.normalize(residuals, dim=-1)
    close(gradient, ((w - dot(w, e) * e) / residuals.norm(dim=-1, keepdim=True)).mean(0), 1e-4)


def commitment_divided_by_levels(build, row):
    """The balance of the reference, whose output has a gain of the number of levels: with an output of gain one, the
    gradient of each level's commitment is divided by that number. The loss itself is not divided.
    """
    module, x = build(), row.input(0)
    residuals, chosen, _ = greedy(x, codes_of(module))
    quantized, _, loss = module(x)
    (gradient,) = torch.autograd.grad(quantized.sum() + loss.sum(), x)
    close(gradient, 1 + (2 * (residuals - chosen) / x.numel()).mean(0))
    close(loss, (residuals - chosen).pow(2).flatten(1).mean(1))


def implicit_condition_gain(build, row):
    """The condition of a level has the gradient of the input once, not once for each level before it; like every loss
    of a stack, it is divided by the number of levels.
    """
    module, x = build(), row.input(0)
    loss = module(x)[2][-1]
    (gradient,) = torch.autograd.grad(loss, x)
    exact = x.detach().double().requires_grad_()
    codes = codes_of(module)
    twin = build().double()
    residual, total = exact, torch.zeros_like(exact)
    for level, book in enumerate(codes):
        options = book.expand(*x.shape[:-1], *book.shape)
        if level > 0:
            condition = exact + (total - exact).detach()
            options = twin.mlps[level - 1](book[None], condition=condition)[0]
        index = (residual.unsqueeze(-2) - options).norm(dim=-1).argmin(-1)
        picked = options.gather(-2, index[..., None, None].expand(*index.shape, 1, x.shape[-1]))
        picked = picked.squeeze(-2)
        last = (picked - residual).pow(2).mean()
        total = total + picked.detach()
        residual = residual - picked.detach()
    close(gradient, torch.autograd.grad(last, exact)[0] / len(codes), 1e-4)


# --- outputs --------------------------------------------------------------------------------------


def codes_sum_to_the_output(build, row):
    """The returned codes are those that were used, not those after the update."""
    module, x = build(), row.input(0)
    returned = module(x, return_all_codes=True, **row.forward_kwargs(0))
    groups = returned[3] if isinstance(returned[3], tuple) else (returned[3],)
    close(torch.cat([codes.sum(0) for codes in groups], -1), returned[0].detach())


def masked_is_selection(build, row):
    """Losses with a mask are those of the tokens that it keeps."""
    x, forward = row.input(0), row.forward_kwargs(0)
    loss = build()(x, **forward)[2]
    keep = forward["mask"]
    alone = x.detach()[keep][None].requires_grad_()
    expected = build()(alone)[2]
    close(loss, expected)
    (gradient,) = torch.autograd.grad(loss.sum(), x)
    close(gradient[keep], torch.autograd.grad(expected.sum(), alone)[0][0])
    assert (gradient[~keep] == 0).all()


def empty_selection(build, row):
    """With no token selected, the loss is zero and the state does not change."""
    module = build()
    before = state(module)
    x = row.input(0)
    quantized, indices, loss = module(x, **row.forward_kwargs(0))
    assert quantized.shape == x.shape
    assert (indices == -1).all()
    assert (loss == 0).all(), f"loss {loss.tolist()}"
    assert_unchanged(module, before)


def non_finite_token(build, row):
    """A token with NaN or infinity gives NaN only for itself and never reaches the state."""
    module, x = build(), row.input(0).detach()
    x[0, 1, 2], x[1, 3, 0] = float("nan"), float("inf")
    quantized, indices, _ = module(x)
    bad = ~torch.isfinite(x).all(-1)
    assert torch.isnan(quantized[bad]).any(-1).all()
    assert torch.isfinite(quantized[~bad]).all()
    assert (indices[bad] == 0).all()
    for name, value in module.state_dict().items():
        assert torch.isfinite(value.float()).all(), f"{name} is not finite"


def any_layout(build, row):
    """Images, volumes and channel-first sequences are tokens with their axes moved."""
    module, x = build().eval(), row.input(0).detach()
    first = any(
        name in row.constructor_kwargs()
        for name in ("accept_image_fmap", "accept_3d_fmap", "channel_last")
    )
    quantized, indices, _ = module(x)
    tokens = x.movedim(1, -1) if first else x
    if module.has_projections:
        tokens = F.linear(tokens, module.project_in.weight, module.project_in.bias)
    _, chosen, expected = greedy(tokens, codes_of(module))
    assert torch.equal(indices, expected)
    output = chosen.sum(0)
    if module.has_projections:
        output = F.linear(output.float(), module.project_out.weight, module.project_out.bias)
    close(quantized, output.movedim(-1, 1) if first else output)
    close(module.get_output_from_indices(indices), quantized)


def any_layout_in_groups(build, row):
    """Every group is a stack on its share of the feature axis."""
    module, x = build().eval(), row.input(0).detach()
    quantized, indices, _ = module(x)
    for group, stack in enumerate(module.rvqs):
        part = x.chunk(2, 1)[group].movedim(1, -1)
        _, chosen, expected = greedy(part, codes_of(stack))
        assert torch.equal(indices[group], expected)
        close(quantized.chunk(2, 1)[group], chosen.sum(0).movedim(-1, 1))
    close(module.get_output_from_indices(indices), quantized)


def decode_equals_output(build, row):
    """In evaluation, decoding the indices gives the output, and equal calls give equal outputs."""
    module = build()
    for step in range(2):
        module(row.input(step), **row.forward_kwargs(step))
    module.eval()
    x, forward = row.input(2), row.forward_kwargs(2)
    quantized, indices, _ = module(x, **forward)
    close(module.get_output_from_indices(indices), quantized)
    assert torch.equal(module(x, **forward)[0], quantized)


def decode_in_training(build, row):
    """The indices of a training forward decode to its output with the codebooks as they were."""
    module = build()
    twin = build()
    quantized, indices, _ = module(row.input(0), **row.forward_kwargs(0))
    close(twin.get_output_from_indices(indices), quantized)


def decode_rejects_bad_indices(build, row):
    module = build()
    bad = torch.full((2, 6, LEVELS), -7)
    try:
        module.get_output_from_indices(bad)
    except IndexError:
        return
    raise AssertionError("index -7 decodes")


def cross_entropy_of_given_indices(build, row):
    """The sum over levels of the cross-entropy of -|r - e| towards the given codes; r are the stack's own residuals."""
    module, x = build(), row.input(0)
    given = row.forward_kwargs(0)["indices"]
    quantized, loss = module(x, freeze_codebook=True, indices=given)
    exact = x.detach().double()
    if row.constructor_kwargs().get("accept_image_fmap"):
        exact = exact.movedim(1, -1)
    codes = codes_of(module)
    residuals, chosen, _ = greedy(exact, codes)
    expected = sum(
        F.cross_entropy(
            -(residual.unsqueeze(-2) - book).norm(dim=-1).flatten(0, -2),
            target.flatten(),
            ignore_index=-1,
        )
        for residual, book, target in zip(residuals, codes, given.unbind(-1), strict=True)
    )
    close(loss, expected)
    output = chosen.sum(0)
    close(quantized, output.movedim(-1, 1) if quantized.shape != output.shape else output)
    assert torch.autograd.grad(loss, x)[0].abs().sum() > 0


def two_heads(build, row):
    """Heads, which the reference refuses: each is a separate stack on its share of the features."""
    module, x = build(), row.input(0).detach()
    quantized, indices, _ = module.eval()(x)
    for head in range(2):
        codes = [layer._codebook.embed[head].detach().double() for layer in levels_of(module)]
        _, chosen, expected = greedy(x.unflatten(-1, (2, -1))[..., head, :], codes)
        assert torch.equal(indices[..., head, :], expected)
        close(quantized.unflatten(-1, (2, -1))[..., head, :], chosen.sum(0))
    close(module.get_output_from_indices(indices), quantized)


# --- state ----------------------------------------------------------------------------------------


def frozen_is_frozen(build, row):
    """A stack that was built frozen does not learn."""
    module = build()
    before = state(module)
    for step in range(2):
        module(row.input(step))
    assert_unchanged(module, {name: value for name, value in before.items() if "rng" not in name})


def one_shared_update(build, row):
    """A shared codebook decays once per forward, and counts the residuals of all levels."""
    module, x = build(), row.input(0)
    book = levels_of(module)[0]._codebook
    size, average, codes = (
        value[0].detach().double().clone()
        for value in (book.cluster_size, book.embed_avg, book.embed)
    )
    keep = row.forward_kwargs(0).get("mask", torch.ones(x.shape[:-1], dtype=torch.bool))
    residuals, _, indices = greedy(x, [codes] * LEVELS)
    module(x, **row.forward_kwargs(0))
    for level in range(LEVELS):
        index = indices[..., level][keep]
        counts = torch.bincount(index, minlength=len(codes)).double()
        sums = torch.zeros_like(codes).index_add_(0, index, residuals[level][keep])
        size, average = (0.8 * size, 0.8 * average) if level == 0 else (size, average)
        size, average = size + 0.2 * counts, average + 0.2 * sums
    close(book.cluster_size[0], size)
    close(book.embed_avg[0], average)


def manual_shared_update(build, row):
    module = build()
    book = levels_of(module)[0]._codebook
    before = book.embed.detach().clone()
    module(row.input(0))
    assert torch.equal(book.embed, before)
    book.update_ema()
    assert not torch.equal(book.embed, before)


def shared_in_place_step(build, row):
    """One step of the codebook's own optimizer on the losses of all levels."""
    module, x = build(), row.input(0)
    codes = codes_of(module)[0].requires_grad_()
    residual, loss = x.detach().double(), 0.0
    for _ in range(LEVELS):
        index = torch.cdist(residual.flatten(0, 1), codes.detach()).argmin(-1)
        picked = codes[index].view(residual.shape)
        loss = loss + (picked - residual).pow(2).mean()
        residual = residual - picked.detach()
    (gradient,) = torch.autograd.grad(loss, codes)
    module(x)
    close(levels_of(module)[0]._codebook.embed[0], codes - 0.3 * gradient)


def evaluation_initialises_nothing(build, row):
    module = build().eval()
    before = state(module)
    module(row.input(0))
    assert_unchanged(module, before)


def kmeans_with_few_tokens(build, row):
    """No code at the origin, and every token of the first level becomes a code."""
    module, x = build(), row.input(0).detach()
    module(x, freeze_codebook=True)
    codes = codes_of(module)
    assert all(book.norm(dim=-1).min() > 0 for book in codes[:1])
    assert torch.cdist(x.double().flatten(0, 1), codes[0]).min(-1)[0].max() < 1e-5


def state_stays_float32(build, row):
    """Moving averages of a bfloat16 module are those of the float32 module."""
    half, full = build().bfloat16(), build()
    for step in range(20):
        x = row.input(step).detach().bfloat16()
        half(x)
        full(x.float())
    for a, b in zip(levels_of(half), levels_of(full), strict=True):
        assert a._codebook.embed_avg.dtype == torch.float32
        close(a._codebook.cluster_size, b._codebook.cluster_size)


def half_input_keeps_a_float32_residual(build, row):
    """The indices are those of the same values in float32, at any depth."""
    module, x = build().eval(), row.input(0).detach()
    exact = module(x.float())
    half = module(x)
    assert torch.equal(half[1], exact[1])
    assert torch.equal(half[0], exact[0].to(x.dtype))


def any_input_dtype(build, row):
    module, x = build(), row.input(0)
    quantized = module(x)[0]
    assert quantized.dtype == x.dtype
    quantized.sum().backward()
    assert torch.isfinite(x.grad).all()


def autocast_changes_nothing(build, row):
    module, x = build().eval(), row.input(0).detach()
    expected = module(x)[1]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(module(x)[1], expected)


def loss_is_nobodys_state(build, row):
    """A returned loss can be changed in place, and requires grad only in training."""
    module = build()
    module(row.input(0))[2].detach().add_(1.0)
    module.eval()
    loss = module(row.input(1).detach())[2]
    assert not loss.requires_grad
    assert (loss == 0).all()


# --- random options -------------------------------------------------------------------------------


def sampling_frequencies(build, row):
    """Codes are drawn with softmax(-|r - e| / T), level by level, with r the residual of the codes drawn before."""
    module = build()
    temperature = row.forward_kwargs(0).get("sample_codebook_temp", 1.0)
    token = row.input(0).detach()[:1, :1]
    draws = 20000
    indices = module(token.expand(1, draws, -1), freeze_codebook=True, **row.forward_kwargs(0))[1][
        0
    ]
    codes = codes_of(module)
    residual = token[0, 0].double()
    seen = torch.ones(draws, dtype=torch.bool)
    for level in range(2):
        expected = (-(residual - codes[level]).norm(dim=-1) / temperature).softmax(-1)
        drawn = indices[seen, level]
        found = torch.bincount(drawn, minlength=len(expected)) / len(drawn)
        error = 5 * (expected * (1 - expected) / len(drawn)).sqrt() + 1e-3
        assert ((found - expected).abs() < error).all(), f"level {level}: {found} for {expected}"
        common = int(drawn.mode().values)
        seen &= indices[:, level] == common
        residual = residual - codes[level][common]


def simulated_error(build, row):
    """DiVeQ: the error has the length of the stack's, in a similar direction; and the documented gradients."""
    module, x = build(), row.input(0)
    codes = codes_of(module)
    _, chosen, indices = greedy(x, codes)
    u, q = x.detach().double(), chosen.sum(0)
    quantized, found, loss = module(x)
    assert torch.equal(found, indices)
    assert (loss == 0).all()
    error = quantized.detach().double() - u
    close(error.norm(dim=-1), (q - u).norm(dim=-1))
    assert F.cosine_similarity(error, q - u, dim=-1).min() > 0.8
    w = weights(quantized.shape).double()
    embeds = [layer._codebook.embed for layer in levels_of(module)]
    gradients = torch.autograd.grad((quantized * w).sum(), [x, *embeds])
    t = (w * F.normalize(error, dim=-1)).sum(-1, keepdim=True)
    n = F.normalize(u - q, dim=-1)
    close(gradients[0], w + t * n, 1e-4)
    for level, gradient in enumerate(gradients[1:]):
        rows = torch.zeros_like(codes[level])
        rows.index_add_(0, indices[..., level].flatten(), (-t * n).flatten(0, 1))
        close(gradient[0], rows, 1e-4)


def noise_of_the_given_variance(build, row):
    """DiVeQ: directional_reparam_variance is the variance of the noise, here none."""
    module, x = build(), row.input(0)
    _, chosen, _ = greedy(x, codes_of(module))
    close(module(x)[0].detach(), chosen.sum(0), 1e-4)


def drawn_depths(build, row):
    """Without a seed the depth is uniform above the cutoff, the same for all tokens and groups."""
    module = build()
    x = row.input(0).detach()[:, :2]
    kwargs = row.constructor_kwargs()
    first, levels = kwargs.get("quantize_dropout_cutoff_index", 0) + 1, kwargs["num_quantizers"]
    seen = []
    for _ in range(300):
        used = (module(x, freeze_codebook=True)[1] >= 0).sum(-1)
        assert (used == used.flatten()[0]).all()
        seen.append(int(used.flatten()[0]))
    counts = torch.bincount(torch.tensor(seen), minlength=levels + 1)[first:]
    assert counts.sum() == 300
    expected = 300 / len(counts)
    assert ((counts - expected).abs() < 5 * expected**0.5).all(), counts.tolist()


def kmeans_fixed_point(build, row):
    """Each level is a fixed point of Lloyd's step on its own residuals."""
    module, x = build(), row.input(0).detach()
    module(x, freeze_codebook=True)
    codes = codes_of(module)
    residuals, _, indices = greedy(x, codes)
    for level, book in enumerate(codes):
        points, owner = residuals[level].flatten(0, 1), indices[..., level].flatten()
        for code in owner.unique().tolist():
            close(points[owner == code].mean(0), book[code], 1e-4)
