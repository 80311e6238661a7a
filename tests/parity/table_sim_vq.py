"""SimVQ and ResidualSimVQ rows. Only under the switch has a stack the reference's gradient, with its gain."""

from __future__ import annotations

import torch
from torch import nn

from .harness import Row, Table

DIM, CODES, LEVELS = 6, 16, 3


def name_outputs(row, returned):
    names = ("quantized", "indices", "loss", "all_codes")
    return dict(zip(names, returned, strict=False))


def squared_distances(module, row, x, indices):
    """Squared distance of each token to its code."""
    first = row.constructor_kwargs().get("channel_first", False)
    tokens = x.movedim(1, -1) if first else x
    codes = module.codebook.detach().double()[indices]
    return (tokens.double() - codes).square().sum(-1)


def decoded(module, seen):
    return module.indices_to_codes(seen["indices"])


def all_codes(module, seen):
    return module.codebook


TABLE = Table(
    class_name="SimVQ",
    defaults=dict(dim=DIM, codebook_size=CODES),
    outputs=name_outputs,
    distance=squared_distances,
)
STACK = Table(
    class_name="ResidualSimVQ",
    defaults=dict(dim=DIM, codebook_size=CODES, num_quantizers=LEVELS),
    outputs=name_outputs,
)


def row(name, shape=(2, 7, DIM), probes=None, **kwargs):
    own = {"decode": decoded, "codebook": all_codes} if probes is None else probes
    return Row(name, kwargs, shape=shape, probes=own)


def perceptron():
    return dict(
        codebook_transform=nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, DIM)),
        frozen_codebook_dim=4,
    )


SAME = [
    row("defaults"),
    row("straight through", rotation_trick=False),
    row("weights", input_to_quantize_commit_loss_weight=0.7, commitment_weight=0.3),
    row("no commitment", commitment_weight=0.0),
    row("one half alone", input_to_quantize_commit_loss_weight=0.0),
    row("frozen dim", frozen_codebook_dim=3),
    row("one code", codebook_size=1),
    row("channel first", shape=(2, DIM, 7), channel_first=True),
    row("image", shape=(2, DIM, 3, 4), channel_first=True),
    row("channels last", shape=(2, 3, 4, DIM)),
    Row("transform", perceptron, shape=(2, 7, DIM), probes={"decode": decoded}),
    Row(
        "initial codes",
        dict(init_fn=lambda codes: codes * 2 + 0.1),
        shape=(2, 7, DIM),
        probes={"decode": decoded},
    ),
]


def stack_decoded(module, seen):
    return module.get_output_from_indices(seen["indices"])


def stack_codes(module, seen):
    return module.get_codes_from_indices(seen["indices"])


def dropped(step):
    return dict(rand_quantize_dropout_fixed_seed=step)


def stack(name, shape=(2, 7, DIM), forward=None, probes=None, **kwargs):
    own = {"decode": stack_decoded, "codes": stack_codes} if probes is None else probes
    return Row(name, kwargs, shape=shape, forward=forward or {}, probes=own)


SAME_STACK = [
    stack("defaults"),
    stack("straight through", rotation_trick=False),
    stack("one level", num_quantizers=1),
    stack("weights", input_to_quantize_commit_loss_weight=0.7, commitment_weight=0.3),
    stack("frozen dim", frozen_codebook_dim=3),
    stack("all codes", forward=dict(return_all_codes=True)),
    stack("channel first", shape=(2, DIM, 7), channel_first=True),
    stack("image", shape=(2, DIM, 3, 4), channel_first=True, forward=dict(return_all_codes=True)),
    stack("dropout", quantize_dropout=True, forward=dropped),
    stack(
        "dropout, rule",
        quantize_dropout=True,
        quantize_dropout_cutoff_index=1,
        quantize_dropout_multiple_of=2,
        num_quantizers=5,
        forward=dropped,
    ),
]


# What we do otherwise ------------------------------------------------------------------------------------------------


def small_latents_have_bounded_gradients(build, row):
    module = build().train()
    x = (torch.randn(2, 7, DIM, generator=torch.Generator().manual_seed(1)) * 1e-6).requires_grad_()
    module(x)[0].sum().backward()
    assert x.grad.norm(dim=-1).max() < 300 * DIM**0.5


def a_zero_latent_becomes_its_code(build, row):
    module = build().train()
    quantized, indices, _ = module(torch.zeros(1, 3, DIM))
    torch.testing.assert_close(quantized, module.indices_to_codes(indices))


def masked_is_absent(build, row):
    module = build().train()
    x = row.input(0).detach()
    mask = torch.rand(x.shape[:2], generator=torch.Generator().manual_seed(4)) < 0.6
    quantized, indices, loss = module(x, mask=mask)
    right = module(x[mask].unsqueeze(0))
    torch.testing.assert_close(loss, right[2])
    assert quantized[~mask].eq(0).all() and indices[~mask].eq(-1).all()


def far_latents_find_their_codes(build, row):
    module = build().eval()
    x = torch.randn(1, 400, DIM, generator=torch.Generator().manual_seed(2)) * 0.1
    with torch.no_grad():
        module.code_transform.weight.mul_(0.1)
        offset = 300.0
        module.code_transform.bias = nn.Parameter(torch.full((DIM,), offset))
        indices = module(x + offset)[1]
    distances = torch.cdist((x + offset).double(), module.codebook.double())
    assert torch.equal(indices, distances.argmin(-1))


def no_tokens_have_a_loss_of_zero(build, row):
    assert (build()(torch.zeros(0, 7, DIM))[2] == 0).all()


def absent_decodes_to_zeros(build, row):
    decode = getattr(build(), "indices_to_codes", None) or build().get_output_from_indices
    shape = (2, 3) if hasattr(build(), "indices_to_codes") else (2, 3, LEVELS)
    assert decode(torch.full(shape, -1)).eq(0).all()


def bfloat16_works(build, row):
    module = build().bfloat16()
    quantized, indices, loss = module(row.input(0).bfloat16())
    assert quantized.dtype == torch.bfloat16 and loss.isfinite().all()
    wide = module.float()
    assert torch.equal(indices, wide(row.input(0).bfloat16().float())[1])


def autocast_changes_no_token(build, row):
    module = build().eval()
    x = torch.randn(4, 2000, DIM, generator=torch.Generator().manual_seed(3))
    expected = module(x)[1]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(module(x)[1], expected)


def losses_ask_for_a_gradient_in_training_alone(build, row):
    module = build()
    assert module(row.input(0))[2].requires_grad
    assert not module.eval()(row.input(0).detach())[2].requires_grad


def gain_of_one(build, row):
    module = build().train()
    x = row.input(0)
    module(x)[0].sum().backward()
    torch.testing.assert_close(x.grad, torch.ones_like(x))


def different(name, oracle, reason, **kwargs):
    return Row(name, kwargs, shape=(2, 7, DIM), oracle=oracle, differs=reason)


DIFFERENT = [
    different("small latents", small_latents_have_bounded_gradients, "gain up to 1e6"),
    different("zero latents", a_zero_latent_becomes_its_code, "the output is 0"),
    different("mask", masked_is_absent, "takes no mask"),
    different("far latents", far_latents_find_their_codes, "distances by expansion"),
    different("no tokens", no_tokens_have_a_loss_of_zero, "a mean of nothing is NaN"),
    different("absent index", absent_decodes_to_zeros, "-1 is the last code"),
    different("bfloat16", bfloat16_works, "distances in bfloat16"),
    different("autocast", autocast_changes_no_token, "distances in bfloat16"),
    different("evaluation", losses_ask_for_a_gradient_in_training_alone, "gate 13"),
]
DIFFERENT_STACK = [
    different("gain", gain_of_one, "the number of levels", rotation_trick=False),
    different("mask", masked_is_absent, "takes no mask"),
    different("no tokens", no_tokens_have_a_loss_of_zero, "a mean of nothing is NaN"),
]
