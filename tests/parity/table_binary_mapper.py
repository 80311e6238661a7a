"""BinaryMapper rows: the reference's numbers, and intended differences."""

from __future__ import annotations

import torch

from .harness import Row, Table

BITS = 4
DETERMINISTIC = dict(deterministic=True, return_indices=True)


def name_outputs(row: Row, returned) -> dict:
    if row.forward_kwargs(0).get("return_indices"):
        return dict(zip(("quantized", "indices", "loss"), returned, strict=True))
    return dict(zip(("quantized", "loss"), returned, strict=True))


TABLE = Table(class_name="BinaryMapper", defaults=dict(bits=BITS), outputs=name_outputs)


def asked(**kwargs) -> dict:
    return dict(DETERMINISTIC, **kwargs)


def of_codes(module, seen):
    logits = torch.linspace(-3, 3, 8 * module.bits).view(2, 4, module.bits)
    indices = torch.arange(8).view(2, 4) % module.num_codes
    return dict(
        log_prob=module.log_prob(logits, indices=indices),
        per_bit=module.log_prob(logits, indices=indices, sum_bits=False),
        one_hot=module.log_prob(
            logits, one_hot=torch.nn.functional.one_hot(indices, module.num_codes).float()
        ),
        entropy=module.binary_entropy(logits),
        loss=module.calc_aux_loss(logits),
        losses=module.calc_aux_loss(logits, False),
    )


SHAPE = dict(shape=(2, 6, BITS))
SAME = [
    Row("defaults, likelier bits", forward=DETERMINISTIC, probes=dict(codes=of_codes), **SHAPE),
    Row("without indices", forward=dict(deterministic=True), **SHAPE),
    Row("one bit", dict(bits=1), shape=(3, 5, 1), forward=DETERMINISTIC),
    Row("eight bits", dict(bits=8), shape=(2, 6, 8), forward=DETERMINISTIC, data=lambda x: x * 3),
    Row("one vector", forward=DETERMINISTIC, shape=(BITS,)),
    Row("four axes", forward=DETERMINISTIC, shape=(2, 3, 2, BITS)),
    Row(
        "no free nats",
        dict(kl_loss_threshold=0.0),
        forward=DETERMINISTIC,
        data=lambda x: x * 2,
        **SHAPE,
    ),
    Row("negative threshold", dict(kl_loss_threshold=-1.0), forward=DETERMINISTIC, **SHAPE),
    Row(
        "loss of each token",
        dict(kl_loss_threshold=0.1),
        forward=asked(reduce_aux_kl_loss=False),
        data=lambda x: x * 2,
        **SHAPE,
    ),
    Row("no loss", forward=asked(calc_aux_loss=False), **SHAPE),
    Row("loss and gradient in evaluation too", forward=asked(calc_aux_loss=True), **SHAPE),
    Row("no gradient", forward=asked(straight_through=False), input_grad=False, **SHAPE),
    Row("temperature of the gradient", forward=asked(temperature=0.5), **SHAPE),
    Row("large logits", forward=DETERMINISTIC, data=lambda x: x * 20, **SHAPE),
]

CELLS = 20_000


def draws_by_the_sigmoid(build, row):
    """Every code is as frequent as the product of its bits' probabilities."""
    module = build()
    logits = torch.tensor([0.8, -0.4, 0.0, 1.5])
    for temperature in (1.0, 0.5):
        out = module(logits.expand(CELLS, BITS), temperature=temperature, return_indices=True)
        p = (logits / temperature).sigmoid()
        bits = torch.arange(16)[:, None] >> torch.arange(BITS) & 1
        expected = torch.where(bits == 1, p, 1 - p).prod(-1) * CELLS
        found = out[1].bincount(minlength=16).double()
        assert (
            (found - expected).square() / expected.clamp_min(5)
        ).sum() < 45  # 15 degrees of freedom


def evaluation_repeats(build, row):
    module = build().eval()
    logits = torch.randn(64, BITS, generator=torch.Generator().manual_seed(1))
    first = module(logits, return_indices=True)[1]
    assert torch.equal(first, module(logits, return_indices=True)[1])
    assert torch.equal(first, ((logits > 0) * torch.tensor([1, 2, 4, 8])).sum(-1))


def gradient_has_the_temperature(build, row):
    module = build()
    logits = torch.randn(5, BITS, generator=torch.Generator().manual_seed(2)).requires_grad_()
    weight = torch.randn(16, generator=torch.Generator().manual_seed(3))
    (module(logits, temperature=0.5, calc_aux_loss=False)[0] * weight).sum().backward()
    twin = logits.detach().double().requires_grad_()
    p = (twin / 0.5).sigmoid().unsqueeze(-2)
    bits = torch.arange(16)[:, None] >> torch.arange(BITS) & 1
    (torch.where(bits == 1, p, 1 - p).prod(-1) * weight).sum().backward()
    torch.testing.assert_close(logits.grad.double(), twin.grad, rtol=1e-5, atol=1e-6)


def codes_are_exact(build, row):
    out = build()(row.input(0), deterministic=True)[0].detach()
    assert torch.equal(out, out.round())


def no_tokens_have_a_loss_of_zero(build, row):
    assert build()(torch.zeros(0, BITS, requires_grad=True), deterministic=True)[1] == 0


def half_precision_works(build, row):
    out = build()(row.input(0).bfloat16(), return_indices=True)
    assert out[0].dtype == torch.bfloat16 and out[2].isfinite()


RANDOM = [Row("draws", oracle=draws_by_the_sigmoid)]
DIFFERENT = [
    Row("evaluation", oracle=evaluation_repeats, differs="no noise in evaluation"),
    Row("temperature", oracle=gradient_has_the_temperature, differs="of draws and gradient"),
    Row(
        "zeros and ones",
        oracle=codes_are_exact,
        shape=(50, 60, BITS),
        differs="the sum of hard and soft codes leaves rounding errors",
    ),
    Row("no tokens", oracle=no_tokens_have_a_loss_of_zero, differs="a mean of nothing is NaN"),
    Row("bfloat16", oracle=half_precision_works, differs="dtype error", **SHAPE),
]
