"""ResidualVQ and GroupedResidualVQ rows that must give the reference's numbers.

docs/design/reference-behaviour-residual.md says what each option does. The gradient of a stack differs on purpose, so
rows that compare gradients are compatible ones; plain rows compare everything else, or options under which the two
gradients agree.
"""

from __future__ import annotations

import torch

from .harness import Row
from .setup_residual_vq import (
    CODES_TOO,
    DIM,
    DROPOUT,
    GAIN_ONE,
    LEARNABLE,
    QINCO,
    READ,
    STRAIGHT,
    bridge,
    codebooks,
    decode,
    decode_codes,
    dropped,
    mask,
    masked,
    sgd,
    unit_codes,
)


def compatible(name: str, kwargs=None, **row) -> Row:
    """A row with the gradient of the input, which equals the reference's only under the switch."""
    return Row(name, kwargs or {}, **row)


def plain(name: str, kwargs=None, **row) -> Row:
    """A row without the gradient of the input, unless it is requested."""
    return Row(f"plain, {name}", kwargs or {}, **{"input_grad": False, **row})


def frozen_mask(step: int) -> dict:
    return dict(freeze_codebook=True, mask=mask(step))


SIZES = dict(num_quantizers=None, codebook_size=(4, 8, 16))
EIGHT = dict(num_quantizers=8, **DROPOUT)

# The reference scores paths by the sum of all residuals; under a beam its averages do not learn.
BEAM = dict(beam_size=4, beam_score_quantizer_weights=[1.0] * 3, **LEARNABLE)
DIVERSITY = dict(codebook_diversity_loss_weight=0.4, codebook_diversity_temperature=2.0)
KEEPS = dict(return_zeros_for_masked_padding=False)
ONE_SAMPLE = dict(implicit_neural_codebook=True, beam_size=3)

SAME = [
    plain("beam of one", dict(beam_size=1)),
    compatible("beam, scores added up", BEAM, evaluate=False),
    compatible(
        "beam, weighted", {**BEAM, "beam_score_quantizer_weights": [0.1, 2.0, 0.5]}, evaluate=False
    ),
    compatible("beam of the call", BEAM, evaluate=False, forward=dict(beam_size=6)),
    compatible("beam, averages", dict(beam_size=4), evaluate=False),
    compatible("all codes after the update", forward=dict(return_all_codes=True)),
    compatible(
        "all codes, learnable", LEARNABLE, forward=dict(return_all_codes=True, freeze_codebook=True)
    ),
    compatible("beam, by default", dict(beam_size=4, **LEARNABLE), evaluate=False),
    compatible("beam, masked", BEAM, evaluate=False, forward=masked),
    compatible(
        "beam, sampling at temperature zero",
        dict(stochastic_sample_codes=True, **BEAM),
        evaluate=False,
        forward=dict(sample_codebook_temp=0.0),
    ),
    compatible(
        "implicit, diversity",
        dict(codebook_diversity_loss_weight=0.3, codebook_diversity_temperature=2.0, **QINCO),
    ),
    # The reference mixes up the samples of a batch of more than one.
    compatible("beam, implicit", ONE_SAMPLE, evaluate=False, shape=(1, 12, DIM)),
    compatible("beam, implicit, single tokens", ONE_SAMPLE, evaluate=False, shape=(12, DIM)),
    compatible(
        "beam, implicit, weighted",
        {**ONE_SAMPLE, "beam_score_quantizer_weights": [0.1, 2.0, 0.5]},
        evaluate=False,
        shape=(1, 12, DIM),
    ),
    # gradients of the stack
    compatible("defaults", probes=READ),
    compatible("straight-through", STRAIGHT),
    compatible("fraction of the gradient", dict(quant_grad_frac=0.3)),
    compatible("half of the gradient, straight-through", dict(quant_grad_frac=0.5, **STRAIGHT)),
    compatible("all of the gradient", dict(quant_grad_frac=1.0)),
    plain("gain of one", GAIN_ONE, input_grad=True),
    plain("gain of one, masked", GAIN_ONE, input_grad=True, forward=masked),
    plain("gain of one, projected", dict(codebook_dim=4, **GAIN_ONE), input_grad=True),
    plain("one level", dict(num_quantizers=1), input_grad=True, probes=READ),
    plain("one level, learnable", dict(num_quantizers=1, **LEARNABLE), input_grad=True),
    compatible("no gradient to input", dict(route_gradients_to_input=False)),
    compatible(
        "no gradient to input, learnable", dict(route_gradients_to_input=False, **LEARNABLE)
    ),
    plain("codes take the gradient", dict(num_quantizers=2, **LEARNABLE)),
    plain("codes take the gradient, frozen", LEARNABLE, forward=dict(freeze_codebook=True)),
    plain("codes take the gradient, one level", dict(num_quantizers=1, **LEARNABLE)),
    compatible(
        "codes take the gradient, and hand it on",
        dict(quant_grad_frac=0.3, **LEARNABLE),
        input_grad=False,
    ),
    compatible("codes take the gradient, implicit", QINCO, steps=1, input_grad=False),
    compatible("small inputs", data=lambda x: x * 3e-2),
    compatible("large inputs", data=lambda x: x * 1e2),
    # outputs, losses and state
    plain("defaults", probes=READ),
    plain("two levels", dict(num_quantizers=2), probes=READ),
    plain("eight levels", dict(num_quantizers=8), probes=dict(codebooks=codebooks)),
    plain("one code", dict(codebook_size=1)),
    plain("sizes per level", SIZES, probes=READ),
    plain("sizes and their number", dict(num_quantizers=3, codebook_size=(5, 16, 3))),
    plain("single tokens", shape=(12, DIM), probes=READ),
    plain("one token", shape=(1, 1, DIM)),
    plain("more tokens than a block", dict(codebook_size=37), shape=(3, 171, DIM), steps=2),
    plain("non-contiguous input", shape=(DIM, 6, 2), data=lambda x: x.permute(2, 1, 0)),
    plain("all codes", forward=CODES_TOO),
    plain("all codes of different sizes", SIZES, forward=CODES_TOO),
    plain("all codes, masked", forward=lambda step: dict(mask=mask(step), **CODES_TOO)),
    plain("codebook_dim equal to dim", dict(codebook_dim=DIM)),
    plain("one head of its own", dict(separate_codebook_per_head=True), probes=READ),
    plain("decay 0.5", dict(decay=0.5)),
    plain("decay 1", dict(decay=1.0)),
    plain("eps 0.1", dict(eps=0.1)),
    plain("manual EMA", dict(manual_ema_update=True)),
    plain("no EMA", dict(ema_update=False)),
    plain("frozen per call", forward=dict(freeze_codebook=True)),
    plain("masked", forward=masked),
    plain("mask of everything", forward=lambda step: dict(mask=mask(step) | True)),
    plain("commitment 0.25", dict(commitment_weight=0.25)),
    plain("no commitment", dict(commitment_weight=0.0)),
    plain(
        "sampling at temperature zero",
        dict(stochastic_sample_codes=True),
        forward=dict(sample_codebook_temp=0.0),
    ),
    plain("sampling, eval only", dict(stochastic_sample_codes=True), steps=0),
    plain("temperature without sampling", forward=dict(sample_codebook_temp=5.0)),
    plain(
        "shared codebook, frozen", dict(shared_codebook=True), forward=dict(freeze_codebook=True)
    ),
    plain("shared codebook, eval only", dict(shared_codebook=True), steps=0, probes=READ),
    plain("cosine", dict(use_cosine_sim=True), prepare=unit_codes, probes=READ),
    plain("bfloat16 input", dict(codebook_size=4), dtype=torch.bfloat16, tolerance=4e-2, steps=1),
    # projections
    compatible(
        "codebook_dim", dict(codebook_dim=4), probes=dict(codebooks=codebooks, decoded=decode)
    ),
    compatible("codebook_dim above dim", dict(codebook_dim=12)),
    compatible("codebook_dim, masked", dict(codebook_dim=4), forward=masked),
    compatible("layer norm has no effect", dict(codebook_dim=4, layernorm_after_project_in=True)),
    # masks
    compatible("masked", forward=masked),
    compatible("masked, padding kept", dict(return_zeros_for_masked_padding=False), forward=masked),
    compatible(
        "masked, padding kept, projected",
        dict(return_zeros_for_masked_padding=False, codebook_dim=4),
        forward=masked,
    ),
    compatible("masked, cosine", dict(use_cosine_sim=True), prepare=unit_codes, forward=masked),
    compatible("masked, learnable", LEARNABLE, forward=masked),
    # codebooks
    compatible("cosine", dict(use_cosine_sim=True), prepare=unit_codes),
    compatible(
        "cosine, fraction", dict(use_cosine_sim=True, quant_grad_frac=0.5), prepare=unit_codes
    ),
    compatible("learnable", LEARNABLE, probes=READ, forward=dict(return_all_codes=True)),
    compatible("learnable, fraction", dict(quant_grad_frac=0.5, **LEARNABLE)),
    compatible("learnable, synchronised update", dict(sync_update_v=0.3, **LEARNABLE)),
    compatible("learnable, in-place optimizer", dict(in_place_codebook_optimizer=sgd, **LEARNABLE)),
    compatible("learnable, frozen per call", LEARNABLE, forward=dict(freeze_codebook=True)),
    compatible("bridge", bridge, probes=dict()),
    compatible("shared codebook", dict(shared_codebook=True), probes=READ),
    compatible("shared codebook, masked", dict(shared_codebook=True), forward=masked),
    compatible("shared codebook, learnable", dict(shared_codebook=True, **LEARNABLE)),
    compatible("orthogonal", dict(orthogonal_reg_weight=0.7)),
    compatible(
        "cross-entropy commitment, frozen",
        dict(commitment_use_cross_entropy_loss=True),
        forward=dict(freeze_codebook=True),
    ),
    compatible(
        "diversity, frozen",
        DIVERSITY,
        forward=dict(freeze_codebook=True),
    ),
    compatible("diversity, frozen, masked", DIVERSITY, forward=frozen_mask),
    compatible("diversity, padding kept", DIVERSITY | KEEPS, forward=frozen_mask),
    compatible(
        "diversity, padding kept, shared",
        dict(shared_codebook=True, **DIVERSITY, **KEEPS),
        forward=frozen_mask,
    ),
    compatible(
        "diversity, padding kept, projected",
        dict(codebook_dim=4, **DIVERSITY, **KEEPS),
        forward=frozen_mask,
    ),
    compatible(
        "diversity, padding kept, fraction",
        dict(quant_grad_frac=0.5, **DIVERSITY, **KEEPS),
        forward=frozen_mask,
    ),
    compatible(
        "diversity, padding kept, in-place optimizer",
        dict(in_place_codebook_optimizer=sgd, **LEARNABLE, **DIVERSITY, **KEEPS),
        forward=masked,
    ),
    compatible(
        "diversity, masked, in-place optimizer",
        dict(in_place_codebook_optimizer=sgd, **LEARNABLE, **DIVERSITY),
        forward=masked,
    ),
    compatible("implicit, diversity, masked", DIVERSITY | QINCO, forward=masked),
    compatible("implicit, diversity, padding kept", DIVERSITY | KEEPS | QINCO, forward=masked),
    # dropout
    compatible("dropout", DROPOUT, forward=dropped, probes=READ),
    plain("dropout", DROPOUT, forward=dropped),
    plain("dropout, gain of one", dict(**DROPOUT, **GAIN_ONE), forward=dropped, input_grad=True),
    plain("dropout of eight levels", EIGHT, forward=dropped, steps=6),
    plain(
        "dropout, cutoff", dict(quantize_dropout_cutoff_index=3, **EIGHT), forward=dropped, steps=6
    ),
    plain(
        "dropout, multiple", dict(quantize_dropout_multiple_of=3, **EIGHT), forward=dropped, steps=6
    ),
    plain(
        "dropout, cutoff and multiple",
        dict(quantize_dropout_cutoff_index=2, quantize_dropout_multiple_of=4, **EIGHT),
        forward=dropped,
        steps=6,
    ),
    plain("dropout, masked", DROPOUT, forward=lambda step: dict(mask=mask(step), **dropped(step))),
    plain("dropout of one level", dict(num_quantizers=1, **DROPOUT), forward=dropped),
    compatible("dropout, learnable", dict(**DROPOUT, **LEARNABLE), forward=dropped),
    # implicit codebooks
    compatible("implicit", QINCO, probes=READ, forward=dict(return_all_codes=True)),
    compatible("implicit, straight-through", dict(**QINCO, **STRAIGHT)),
    compatible("implicit, fraction", dict(quant_grad_frac=0.5, **QINCO)),
    compatible("implicit, small network", dict(mlp_kwargs=dict(dim_hidden=5, depth=2), **QINCO)),
    compatible("implicit, no layers", dict(mlp_kwargs=dict(depth=0), **QINCO)),
    compatible("implicit, projected", dict(codebook_dim=4, **QINCO)),
    compatible("implicit, masked", QINCO, forward=masked),
    compatible("implicit, shared codebook", dict(shared_codebook=True, **QINCO)),
    compatible("implicit, dropout", dict(**DROPOUT, **QINCO), forward=dropped),
    compatible("implicit, sizes per level", dict(**QINCO, **SIZES)),
    compatible(
        "implicit, cross-entropy commitment", dict(commitment_use_cross_entropy_loss=True, **QINCO)
    ),
    compatible("implicit, frozen per call", QINCO, forward=dict(freeze_codebook=True)),
    compatible("implicit, one level", dict(num_quantizers=1, **QINCO)),
]

GROUPED_SAME = [
    compatible("groups", probes=READ),
    compatible("one group", dict(groups=1), probes=READ),
    # With two features per group, a rotation between opposite vectors magnifies the processor's rounding.
    compatible("four groups", dict(groups=4), probes=READ, tolerance=1e-4),
    compatible("groups, straight-through", STRAIGHT),
    compatible(
        "groups, projected", dict(codebook_dim=3), probes=dict(codebooks=codebooks, decoded=decode)
    ),
    compatible("groups, masked", forward=masked),
    compatible("groups, padding kept", dict(return_zeros_for_masked_padding=False), forward=masked),
    compatible("groups, shared codebooks", dict(shared_codebook=True)),
    compatible("groups, implicit", QINCO, probes=dict(codes=decode_codes)),
    compatible("groups, fraction", dict(quant_grad_frac=0.5)),
    plain("groups", probes=READ),
    plain("groups, single tokens", shape=(12, DIM), probes=READ),
    plain("groups, all codes", forward=CODES_TOO),
    plain("groups, sizes per level", SIZES, forward=CODES_TOO),
    plain("groups, frozen per call", forward=dict(freeze_codebook=True)),
    plain(
        "groups, sampling at temperature zero",
        dict(stochastic_sample_codes=True),
        forward=dict(sample_codebook_temp=0.0),
    ),
    plain("groups, dropout in eval", DROPOUT, steps=0),
    plain("groups, gain of one", GAIN_ONE, input_grad=True),
]
