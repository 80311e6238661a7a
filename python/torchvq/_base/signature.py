"""The options of a codebook in which all ranks must agree, as text; its users may change them while they train."""

from operator import itemgetter
from typing import TYPE_CHECKING

import torch

from torchvq._base.torch_private import as_constants

if TYPE_CHECKING:
    from torchvq.codebook import Codebook

_options = itemgetter(
    "use_cosine_sim",
    "decay",
    "eps",
    "threshold_ema_dead_code",
    "dead_code_threshold_fraction",
    "reset_cluster_size",
    "manual_ema_update",
    "affine_param",
    "vqp_compat",
    "sync_every",
)


def signature_of(codebook: "Codebook") -> str:
    """The text for the options as they are now."""
    if torch.compiler.is_compiling():
        return _text(codebook)
    options = codebook.embed_avg.shape, *_options(vars(codebook))
    if codebook._signed[0] != options:
        # Every step on several ranks needs the text, which takes several times as long as a comparison.
        codebook._signed = options, _text(codebook)
    return codebook._signed[1]


def _text(codebook: "Codebook") -> str:
    heads, size, dim = codebook.embed_avg.shape
    numbers = (
        codebook.decay,
        codebook.eps,
        codebook.threshold_ema_dead_code,
        codebook.dead_code_threshold_fraction,
        codebook.reset_cluster_size,
    )
    decay, eps, threshold, fraction, reset = as_constants(numbers)
    text = (
        f"{heads} codebooks of {size} codes of {dim}, {codebook.metric}, decay {decay}, eps {eps}, "
        f"dead codes below {threshold} or {fraction} of the mean, "
        f"manual {codebook.manual_ema_update}, affine {codebook.affine_param}, vqp_compat {codebook.vqp_compat}, "
        f"by gradient {'embed' in codebook._parameters}"
    )
    if reset != threshold:
        text += f", replaced codes begin at {reset}"
    if codebook.keeps_statistics:
        text += f", learning every {codebook.sync_every} steps"
    return text
