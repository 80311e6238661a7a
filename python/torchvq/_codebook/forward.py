"""VectorQuantize around its step: projections, the plain evaluation, learning outside of ``forward``."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchvq._base.arguments import expect_floating
from torchvq._base.layout import Layout
from torchvq._base.options import expect
from torchvq._base.projection import project, projects_nothing
from torchvq._base.ranks import ALONE, sharing_ranks_of
from torchvq._base.wide_buffers import widened
from torchvq._codebook.losses import sees_padding
from torchvq._codebook.messages import agree, agree_to_learn
from torchvq._codebook.request import Request, check_targets, unflattened
from torchvq._codebook.search import prepare, stored_codes
from torchvq._codebook.stats import begin_step, fit_to_codes
from torchvq._codebook.step import ForwardResult, step
from torchvq.outputs import LossBreakdown, QuantizeOutput, QuantizeOutputWithBreakdown, copied

if TYPE_CHECKING:
    from torchvq.codebook import Codebook
    from torchvq.vector_quantize import VectorQuantize

_ops = torch.ops.torchvq


def evaluate_at_once(
    vq: "VectorQuantize",
    x: Tensor,
    mask: Tensor | None,
    layout: Layout,
    return_loss_breakdown: bool,
) -> QuantizeOutput | QuantizeOutputWithBreakdown:
    """The plain evaluation as one operator: on few tokens the calls around the search cost more than the search."""
    codebook = vq._codebook
    prepare(vq, x, mask, True, ALONE)
    quantized, indices, loss = _ops.evaluate(
        x,
        stored_codes(codebook, x.dtype),
        codebook.rng,
        mask=mask,
        metric=codebook.metric,
        heads=vq.heads,
        separate=vq.separate_codebook_per_head,
        channel_first=layout.channel_first,
        zeros_for_masked=vq.return_zeros_for_masked_padding,
    )
    if return_loss_breakdown:
        return QuantizeOutputWithBreakdown(
            quantized, indices, loss, copied(LossBreakdown(loss, loss, loss, loss))
        )
    return QuantizeOutput(quantized, indices, loss)


def projected_step(
    vq: "VectorQuantize", x: Tensor, request: Request, layout: Layout
) -> ForwardResult:
    """A step with the projections around it, if there are any."""
    if projects_nothing(vq.project_in, vq.project_out):
        agree(vq, request, x.dtype)
        return step(vq, x, None, request, layout)
    packed = layout.pack(x)
    # Padding may hold anything, including NaN; zeros keep it out of every gradient.
    fills = request.mask is not None and not sees_padding(vq, vq)
    tokens = _ops.fill_masked(packed, request.mask) if fills else packed
    # Widened, so that project_out gets the codes unrounded.
    projected = widened(project(vq.project_in, tokens))
    agree(vq, request, projected.dtype)
    found = step(vq, projected, tokens, request, layout._replace(channel_first=False))
    output = project(vq.project_out, found.quantized).to(x.dtype)
    padding = None if vq.return_zeros_for_masked_padding else packed
    loss, breakdown = found.loss, found.breakdown
    if loss.dim() > 0:  # topk: one loss per candidate
        loss = layout.unpack_positions(loss, x)
        commitment = layout.unpack_positions(breakdown.commitment, x)
        breakdown = LossBreakdown(commitment, *breakdown[1:])
    indices = layout.unpack_positions(found.indices, x)
    return ForwardResult(layout.unpack(output, x, request.mask, padding), indices, loss, breakdown)


def learn_from_indices(
    vq: "VectorQuantize", x: Tensor, indices: Tensor, mask: Tensor | None
) -> None:
    """One update of the codebook from tokens whose codes are given."""
    codebook, layout = vq._codebook, vq._layout
    layout.check_input(x)
    indices = unflattened(indices, x, layout)
    if not torch.compiler.is_compiling():
        check_targets(indices, x, layout, codebook.checked_embed().shape[1])
    token_mask = layout.token_mask(x, mask, None)
    head_mask = None if token_mask is None else layout.split_mask(token_mask)
    with torch.no_grad():
        inputs = _metric_space(vq, layout.split_heads(project(vq.project_in, layout.pack(x))))
        ranks = sharing_ranks_of(vq, "VectorQuantize")
        replaces = _replaces_codes(codebook)
        # Candidates for dead codes come with the statistics, but not in evaluation.
        alone = codebook.has_dead_code_replacement and not replaces
        sent = "statistics alone" if alone else "statistics"
        agree_to_learn(vq, ranks, inputs.dtype, sent)
        fit_to_codes(vq)
        if replaces:
            begin_step([codebook])
        codebook.learn(
            inputs, layout.split_indices(indices), head_mask, ema_update=True, ranks=ranks
        )
        if replaces:
            _ops.advance_rng_(codebook.rng)


def replace_codes_now(vq: "VectorQuantize", x: Tensor) -> None:
    """Replaces dead codes by projected tokens (B, N, heads * D); evaluation changes no state."""
    codebook = vq._codebook
    if not _replaces_codes(codebook):
        return
    # Before ranks exchange anything, and before the codes that were replaced count anew.
    expect_floating("VectorQuantize", "x", x)
    width = vq.heads * codebook.checked_embed().shape[2]
    fits = x.dim() == 3 and x.shape[2] == width
    expect("VectorQuantize", fits, "x", f"of shape (B, N, {width})", f"shape {list(x.shape)}")
    with torch.no_grad():
        inputs = _metric_space(vq, vq._layout.split_heads(x))
        ranks = sharing_ranks_of(vq, "VectorQuantize")
        agree_to_learn(vq, ranks, inputs.dtype, "candidates")
        fit_to_codes(vq)
        begin_step([codebook])
        codebook.expire_codes(inputs, ranks)
        _ops.advance_rng_(codebook.rng)


def _replaces_codes(codebook: "Codebook") -> bool:
    """Whether learning outside of ``forward`` replaces codes, and so counts them and draws; not in evaluation."""
    return codebook.training and codebook.has_dead_code_replacement


def _metric_space(vq: "VectorQuantize", projected: Tensor) -> Tensor:
    return _ops.unit_vectors(projected) if vq.use_cosine_sim else projected
