"""Options that are set after construction, which a stack checks for all levels before one of them learns."""

from operator import itemgetter
from typing import TYPE_CHECKING

import torch

from torchvq._base.options import check_options, expect
from torchvq._codebook.learning import trains

if TYPE_CHECKING:
    from torchvq.vector_quantize import VectorQuantize

# Options that the operators of a step check, and may refuse.
_OF_CODEBOOK = (
    "decay",
    "eps",
    "kmeans_iters",
    "threshold_ema_dead_code",
    "dead_code_threshold_fraction",
    "affine_param_batch_decay",
    "affine_param_codebook_decay",
)
_OF_QUANTIZER = (
    "orthogonal_reg_max_codes",
    "directional_reparam_variance",
    "codebook_diversity_temperature",
    "sync_update_v",
)
_codebook_options = itemgetter(*_OF_CODEBOOK, "reset_cluster_size")
_quantizer_options = itemgetter(*_OF_QUANTIZER)


def check_level(vq: "VectorQuantize", frozen: bool) -> None:
    """Raises ValueError where the step of a level would refuse its options, or codes that were assigned to it: by then
    other levels, or other groups of the same module, might have learnt.
    """
    codebook = vq._codebook
    if codebook.replaying:
        return  # the recomputation of a step that was checked
    if trains(vq, frozen) and codebook.learns(vq.ema_update):
        codebook.check_averages()
    else:
        codebook.checked_embed()
    # While the operators are traced they check options themselves.
    if vq.training and not torch.compiler.is_compiling():
        _check_options(vq)


def _check_options(vq: "VectorQuantize") -> None:
    own, state = _quantizer_options(vars(vq)), _codebook_options(vars(vq._codebook))
    if vq.checked_options == (own, state):
        return  # a comparison takes a fraction of the time of the checks
    *options, reset = state
    named = dict(zip(_OF_QUANTIZER, own, strict=True), dim=1)
    named |= zip(_OF_CODEBOOK, options, strict=True)
    if vq.sync_update_v:
        named |= dict(learnable_codebook=vq.learnable_codebook, ema_update=False)
    check_options("VectorQuantize", named)
    holds = 0 <= reset <= 2.0**63
    expect("VectorQuantize", holds, "reset_cluster_size", "in [0, 2^63]", reset)
    vq.checked_options = own, state
