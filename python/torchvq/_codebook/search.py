"""The search of a forward of VectorQuantize, and the gradient of its output."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchvq._base.arguments import expect_tensor
from torchvq._base.layout import SplitTokens
from torchvq._base.ranks import ALONE, Ranks, noise_rng
from torchvq._base.readable import takes_gradient
from torchvq._base.torch_private import is_jit_traced
from torchvq._codebook.in_place import InPlaceStep, in_place_step, learns_in_place, own_backward
from torchvq._codebook.losses import SearchedTokens, SearchResult
from torchvq._codebook.request import Request

if TYPE_CHECKING:
    from torchvq.codebook import Codebook
    from torchvq.vector_quantize import VectorQuantize

_ops = torch.ops.torchvq


def choose(
    vq: "VectorQuantize",
    split: SplitTokens,
    request: Request,
    *,
    estimator: str | None = None,
    rng: Tensor | None = None,
    chosen: Tensor | None = None,
) -> SearchResult:
    """Takes the codes of a step and searches them; learning comes later.

    Args:
        estimator: of the output; default: the module's own.
        rng: (2,), for sampling and noise; default: the codebook's.
        chosen: (H, T), indices that are already chosen; then nothing is searched.
    """
    tokens, rows, mask = split
    codebook, _ = codes_of_step(vq, split, request)
    estimator = estimator_of(vq, rows, codebook) if estimator is None else estimator
    quantized, indices, codes, inputs = _ops.quantize(
        rows,
        codebook,
        noise_rng(vq._codebook.step_rng if rng is None else rng, request.ranks),
        mask=mask,
        topk=request.topk,
        metric=vq._codebook.metric,
        estimator=estimator,
        chosen=chosen,
        **search_options(vq, request),
    )
    if estimator == "none" and is_jit_traced():
        quantized = codes  # see is_jit_traced()
    searched = SearchedTokens(tokens, inputs, codebook, mask, codes, indices)
    return SearchResult(quantized, searched)


def search_options(vq: "VectorQuantize", request: Request) -> dict[str, Any]:
    """Arguments of the operators that search: sampling and estimators."""
    return dict(
        temperature=sampling_temperature(vq, request.temperature),
        gradient_temperature=request.temperature,
        variance=vq.directional_reparam_variance,
        sync_update_v=vq.sync_update_v if vq.training else 0.0,
    )


def sampling_temperature(vq: "VectorQuantize", asked: float | None) -> float | None:
    """The temperature at which a forward draws codes; 0: it takes the nearest ones. None: it does not draw."""
    if not (vq.training and vq.stochastic_sample_codes):
        return None
    return max(vq.sample_codebook_temp if asked is None else asked, 0.0)


def prepare(
    vq: "VectorQuantize", x: Tensor, mask: Tensor | None, frozen: bool, ranks: Ranks
) -> None:
    """Prepares the codebook for tokens (H, T, D); initialises it even if the step is frozen."""
    learning = vq.training and not (frozen and vq._codebook.initialised)
    vq._codebook.prepare(
        x, mask, learning, ranks, sync_kmeans=vq.sync_kmeans, sync_affine=vq.sync_affine_param
    )


def codes_to_search(
    vq: "VectorQuantize", request: Request, tokens: Tensor, dtype: torch.dtype
) -> Tensor:
    """The codes for tokens (B, N, dim) with projections of a dtype: (H, K, D), or one set per token, (H, T, K, D)."""
    codebook = vq._codebook
    if request.transform is None:
        return stored_codes(codebook, dtype)
    codes = request.transform(_ops.snapshot(codebook.codes()))
    expect_tensor("VectorQuantize", "the result of codebook_transform_fn", codes)
    heads, (batch, positions) = codebook.num_codebooks, tokens.shape[:2]
    shared = vq.heads // heads
    expected = [heads, batch * shared, positions]
    if codes.dim() != 5 or list(codes.shape[:3]) != expected:
        raise ValueError(
            "VectorQuantize: expected codebook_transform_fn to return codes of each token of shape "
            f"(H, B, N, K, D), H, B and N being {expected}, but got shape {list(codes.shape)}"
        )
    if shared > 1:
        # The heads that share a codebook count as items of the batch; here they follow the positions.
        by_head = codes.reshape(1, batch, shared, positions, *codes.shape[3:])
        return by_head.transpose(2, 3).flatten(1, 3)
    return codes.flatten(1, 2)


def codes_of_step(
    vq: "VectorQuantize", split: SplitTokens, request: Request, *, learns: bool = False
) -> tuple[Tensor, InPlaceStep | None]:
    """The codes to search after the step of the codebook's own optimizer, if it has one; and that step.

    ``learns``: see ``in_place_step``.
    """
    tokens, rows, mask = split
    own = None
    if learns_in_place(vq, vq._codebook) and not request.frozen:
        with own_backward():
            codebook = codes_to_search(vq, request, tokens, rows.dtype)
        own = in_place_step(vq, rows, codebook, mask, request, learns)
        state = vq._codebook
        if vq.vqp_compat and state.affine_param and not state.replaying:
            # The reference searches again after the step, and counts the tokens once more.
            state.update_affine(rows, mask, request.ranks if vq.sync_affine_param else ALONE)
            state.begin_record()
    return codes_to_search(vq, request, tokens, rows.dtype), own


def stored_codes(codebook: "Codebook", dtype: torch.dtype) -> Tensor:
    """The codes (H, K, D) for tokens whose projections have a dtype."""
    codes = codebook.codes()
    # The input decides the precision of the arithmetic, not a module that was cast to double.
    return codes.float() if codes.dtype == torch.float64 != dtype else codes


def estimator_of(vq: "VectorQuantize", x: Tensor, codes: Tensor) -> str:
    """The gradient of the output, by its name in the operators.

    Args:
        x: the tensor that the estimator's gradient should reach. If it takes none, the gradient goes to the codes.
        codes: the codes that are searched.
    """
    if not vq.training:
        return "none"
    # If neither input nor codes take a gradient, keep the estimator: an exported step may later get inputs that do.
    if not takes_gradient(x) and (vq.vqp_compat or takes_gradient(codes)):
        # With nothing to route to the input, the reference keeps the gradient of the Gumbel softmax.
        return "gumbel" if vq.vqp_compat and vq.straight_through else "none"
    if not vq.route_gradients_to_input:
        return "gumbel" if vq.straight_through else "none"
    if vq.directional_reparam:
        # It adds noise to the code only to obtain a gradient; without one, the code is returned.
        return "directional_reparam" if takes_gradient(x) else "none"
    if not vq.rotation_trick:
        return "straight_through"
    return "vqp_rotation_trick" if vq.vqp_compat else "rotation_trick"
