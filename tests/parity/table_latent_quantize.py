"""LatentQuantize rows: the reference's numbers, and intended differences."""

from __future__ import annotations

import torch

from .harness import Row, Table

LEVELS = [5, 4, 8]


def name_outputs(row: Row, returned) -> dict:
    quantized, indices, loss = returned
    # The reference's indices are int32, ours int64.
    return dict(quantized=quantized, indices=indices.long(), loss=loss)


TABLE = Table(
    class_name="LatentQuantize", defaults=dict(levels=LEVELS, dim=3), outputs=name_outputs
)


def training_loss(module, seen):
    module.train()
    shape = (2, module.dim, 5)
    x = torch.linspace(-0.7, 0.7, 10 * module.dim).view(shape)
    loss = module(x)[2]
    module.eval()
    return loss


def decode(module, seen):
    return module.indices_to_codes(seen["indices"])


def decode_inside(module, seen):
    return module.indices_to_codes(seen["indices"], project_out=False)


def of_codes(module, seen):
    z = torch.linspace(-0.7, 0.7, 4 * module.codebook_dim).view(4, module.codebook_dim)
    codes = module.quantize(z)
    return dict(
        codes=codes,
        indices=module.codes_to_indices(codes).long(),
        quantization=module.quantization_loss(z, codes),
        commitment=module.commitment_loss(z, codes, reduce="sum"),
        all=module.implicit_codebook,
    )


READ = dict(decoded=decode, inside=decode_inside, codes=of_codes)
# The reference passes the gradients of the two losses to the wrong sides, so gradients are compared without losses.
NO_LOSS = dict(commitment_loss_weight=0.0, quantization_loss_weight=0.0)
LOSS = dict(loss=training_loss)
SMALL = dict(data=lambda x: x * 0.4)


def without(**kwargs) -> dict:
    return dict(NO_LOSS, **kwargs)


SAME = [
    Row("sequence", NO_LOSS, shape=(2, 3, 7), probes=READ, **SMALL),
    Row("image", NO_LOSS, shape=(2, 3, 4, 5), probes=READ, **SMALL),
    Row("video", NO_LOSS, shape=(2, 3, 2, 4, 5), probes=READ, **SMALL),
    Row("vectors", NO_LOSS, shape=(6, 3), probes=READ, **SMALL),
    Row("far inputs", NO_LOSS, shape=(2, 3, 7), data=lambda x: x * 30),
    Row("projections", without(dim=6), shape=(2, 6, 4, 5), probes=READ),
    Row(
        "projections, decoding",
        without(dim=5, levels=[3, 3]),
        shape=(2, 5, 6),
        probes=dict(decoded=decode),
    ),
    Row("two codebooks", without(dim=6, num_codebooks=2), shape=(2, 6, 4, 5), probes=READ, **SMALL),
    Row(
        "two codebooks, projections",
        without(dim=5, num_codebooks=2),
        shape=(2, 5, 7),
        probes=READ,
    ),
    Row(
        "one codebook, kept",
        without(keep_num_codebooks_dim=True),
        shape=(2, 3, 7),
        probes=READ,
        **SMALL,
    ),
    Row(
        "one number of levels",
        without(levels=6, codebook_dim=3),
        shape=(2, 3, 7),
        probes=READ,
        **SMALL,
    ),
    Row("two levels", without(levels=[2, 2, 3]), shape=(2, 3, 7), probes=READ, **SMALL),
    Row("values not learnt", without(optimize_values=False), shape=(2, 3, 7), probes=READ, **SMALL),
    Row("loss", shape=(2, 3, 7), steps=0, probes=LOSS),
    Row(
        "loss, one weight",
        dict(quantization_loss_weight=0.0),
        shape=(2, 3, 7),
        steps=0,
        probes=LOSS,
    ),
    Row(
        "loss, large weights",
        dict(commitment_loss_weight=2.0, quantization_loss_weight=3.0),
        shape=(2, 3, 7),
        steps=0,
        probes=LOSS,
    ),
    Row("loss, two codebooks", dict(dim=6, num_codebooks=2), shape=(2, 6, 7), steps=0, probes=LOSS),
]


def values_have_a_gradient(build, row):
    module = build()
    x = row.input(0).detach()
    module(x)[2].backward()
    latents = x.movedim(1, -1).reshape(-1, 3)
    for feature, values in enumerate(module.values_per_latent):
        twin = values.detach().clone().requires_grad_()
        column = latents[:, feature]
        level = (column[:, None] - twin.detach()).abs().argmin(-1)
        (0.1 * (column - twin[level]).square().sum() / latents.numel()).backward()
        torch.testing.assert_close(values.grad, twin.grad)


def encoder_is_pulled_to_the_codes(build, row):
    module, x = build(), row.input(0)
    quantized, _, loss = module(x)
    loss.backward()
    expected = 0.1 * 2 * (x - quantized).detach() / x.numel()
    torch.testing.assert_close(x.grad, expected)


def learnt_values_come_back(build, row):
    module = build()
    with torch.no_grad():
        for values in module.values_per_latent:
            values.mul_(1.7).add_(0.31)
    quantized, indices, _ = module(row.input(0))
    assert torch.equal(module.indices_to_codes(indices), quantized)


def losses_pull_their_side(build, row):
    module = build()
    z, zhat = (torch.randn(4, 3, requires_grad=True) for _ in range(2))
    module.quantization_loss(z, zhat).backward()
    assert z.grad is None and zhat.grad is not None
    zhat.grad = None
    module.commitment_loss(z, zhat).backward()
    assert zhat.grad is None and z.grad is not None


def loss_is_of_the_latents(build, row):
    module, x = build(), row.input(0).detach()
    latents = module.project_in(x.movedim(1, -1))
    expected = 0.2 * (latents - module.quantize(latents)).square().mean()
    torch.testing.assert_close(module(x)[2], expected)


def optimizer_steps_in_place(build, row):
    module = build()
    before = [values.detach().clone() for values in module.values_per_latent]
    module(row.input(0))
    assert any(not torch.equal(a, b) for a, b in zip(before, module.values_per_latent, strict=True))


def indices_outside_are_refused(build, row):
    try:
        build().indices_to_codes(torch.tensor([[160]]))
    except IndexError:
        return
    raise AssertionError("decoded index 160 of 160 codes")


def no_tokens_work(build, row):
    quantized, indices, loss = build()(torch.zeros(0, 3, 7))
    assert quantized.shape == (0, 3, 7) and indices.shape == (0, 7) and loss == 0


def weights_may_be_none(build, row):
    assert build()(row.input(0))[2] == 0


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.5)


SEQUENCE = dict(shape=(2, 3, 7))
DIFFERENT = [
    Row("values learn", oracle=values_have_a_gradient, differs="never a gradient", **SEQUENCE),
    Row(
        "encoder commits",
        oracle=encoder_is_pulled_to_the_codes,
        differs="the losses cancel, so latents run away",
        **SEQUENCE,
    ),
    Row(
        "learnt values",
        oracle=learnt_values_come_back,
        differs="decodes from the fixed grid",
        **SEQUENCE,
    ),
    Row("losses", oracle=losses_pull_their_side, differs="the losses pull the other side"),
    Row(
        "projected loss",
        dict(dim=6),
        shape=(2, 6, 7),
        oracle=loss_is_of_the_latents,
        differs="input against output, in place of latents against codes",
    ),
    Row(
        "in place",
        dict(in_place_codebook_optimizer=sgd),
        oracle=optimizer_steps_in_place,
        differs="AttributeError",
        **SEQUENCE,
    ),
    Row("outside", oracle=indices_outside_are_refused, differs="decodes silently"),
    Row("no tokens", oracle=no_tokens_work, differs="einops error"),
    Row(
        "no weights",
        dict(commitment_loss_weight=None, quantization_loss_weight=None),
        oracle=weights_may_be_none,
        differs="TypeError for the None of its own annotation",
        **SEQUENCE,
    ),
]
