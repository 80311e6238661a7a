"""Joint refinement of trained residual codebooks: beam search, then least squares for all levels at once."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchvq._base.arguments import integer, number
from torchvq._base.projection import projected_tokens
from torchvq._base.ranks import ALONE, Ranks, group_of, handshake, tokens_text
from torchvq.grouped_residual_vq import GroupedResidualVQ
from torchvq.residual_vq import ResidualVQ

_ops = torch.ops.torchvq


class Refinement(NamedTuple):
    """What ``refine`` has done; errors are means per feature of what the codes leave of the projected tokens."""

    error_before: float
    error_after: float
    iterations: int


class _Refined(NamedTuple):
    """The result for one stack: codebooks (H, K, D) by level, and per head the sums of squares and the counts."""

    codebooks: list[Tensor]
    errors: Tensor  # (H, 2), float64
    counts: Tensor  # (H, 2), int64: tokens, refits


@torch.no_grad()
def refine(
    module: nn.Module,
    tokens: Tensor,
    *,
    mask: Tensor | None = None,
    iterations: int = 10,
    beam_size: int = 5,
    tolerance: float = 1e-3,
    noise: float = 0.0,
    ridge: float = 8.0,
    seed: int = 0,
) -> Refinement:
    """Refits all codebooks of a trained residual stack together, so that the same bits describe tokens better.

    Encodes the tokens by beam search, sets all levels to the least-squares codes for what it found, and repeats. The
    best codebooks seen are kept: the error of ``tokens`` at ``beam_size`` never rises. Babenko and Lempitsky 2014
    (additive quantization), Martinez et al. 2018 (LSQ++); here the search is that of the module, so encoding and
    decoding stay what they are.

    Args:
        module: a ``ResidualVQ`` or ``GroupedResidualVQ`` with euclidean codebooks that are set. Training or evaluation
            makes no difference.
        tokens: in the layout of the module's input, any floating dtype but float8; as many as codes at least, and
            better hundreds per code. Tokens that are not finite are left out. They are projected by ``project_in``, and
            compared in float32.
        mask: bool, one per position, True for real tokens, as in ``forward``. Default: all.
        iterations: most refits, at least 0; each searches all tokens once or twice. Default: 10.
        beam_size: paths that the search keeps, best those of the evaluation to come. Default: 5.
        tolerance: a refit that lowers the error by less than this share of it is the last. Default: 1e-3.
        noise: size of the noise that is added to the codes in the first three quarters of the searches, falling to 0:
            a multiple of the standard deviation of each feature over the codes of a level, or of three times the root
            mean squared error before, where that is less. With 12 refits or more the noise helps to leave a local
            minimum. With fewer the error may end above that at the beginning, and then nothing is changed. Default: 0,
            no noise.
        ridge: tokens that the present code counts as in its refit, above 0; a code that no token chose stays as it
            is. Default: 8.
        seed: of the noise. Default: 0.

    Returns:
        ``Refinement(error_before, error_after, iterations)``: the mean squared error, per feature of the projected
        tokens, at ``beam_size``, and the refits that were made, on average over groups and heads.

    Codes, and the moving averages behind them, are set at the end together; an error changes nothing. Averages are
    such that the next training step starts from the new codes; how often codes are used (``cluster_size``) stays.
    Nothing has a gradient. Codes that are parameters are written in place, the state of their optimizer is not.

    With a process group (as in training: ``sync_codebook``, ``process_group``) every rank calls, with tokens of its
    own, possibly none; the result is that of one process with all tokens, to the bit.

    Raises:
        ValueError: a module of another kind, or with cosine codebooks, an affine map, a bridge, implicit neural
            codebooks or codes that are not set; too few tokens; bad shapes and options. TypeError: bad dtypes, and
            options that are no numbers.

    Example:
        >>> rvq = torchvq.ResidualVQ(dim=8, num_quantizers=2, codebook_size=16)
        >>> tokens = torch.randn(1, 1024, 8)
        >>> before, after, _ = torchvq.refine(rvq.eval(), tokens, beam_size=8)
    """
    stacks, parts = _stacks(module, tokens)
    for stack in stacks:
        _check(stack)
    options = {
        "beam": integer("refine", "beam_size", beam_size),
        "iterations": integer("refine", "iterations", iterations),
        "tolerance": number("refine", "tolerance", tolerance),
        "noise": number("refine", "noise", noise),
        "ridge": number("refine", "ridge", ridge),
        "seed": integer("refine", "seed", seed),
    }
    found = [
        _refined(stack, part, mask, options) for stack, part in zip(stacks, parts, strict=True)
    ]
    # After all groups, so that an error in the last group leaves the first unchanged.
    for stack, refined in zip(stacks, found, strict=True):
        for codebook, codes in zip(stack._codebooks(), refined.codebooks, strict=False):
            codebook.move_codes(codes)
    return _summary(found)


def _stacks(module: nn.Module, tokens: Tensor) -> tuple[list[ResidualVQ], tuple[Tensor, ...]]:
    if isinstance(module, ResidualVQ):
        module.layout.check_input(tokens)
        return [module], (tokens,)
    if isinstance(module, GroupedResidualVQ):
        module.check_input(tokens)
        return module.stacks, tokens.chunk(module.groups, module.split_dim)
    raise ValueError(
        "refine: expected module to be a ResidualVQ or GroupedResidualVQ, "
        f"but got {type(module).__name__}"
    )


def _check(stack: ResidualVQ) -> None:
    """Raises ValueError for stacks whose codes are not the summands, or cannot be moved."""
    first = stack.levels[0]._codebook
    refused = {
        "cosine codebooks": first.use_cosine_sim,
        "an affine map of the codes": first.affine_param,
        "a bridge behind the codes": first.vq_bridge is not None,
        "implicit neural codebooks": stack.implicit_neural_codebook,
        "codes that are not set": not all(c.initialised for c in stack._codebooks()),
    }
    for name, present in refused.items():
        if present:
            raise ValueError(f"refine: expected module to be without {name}, but got them")


def _refined(
    stack: ResidualVQ, tokens: Tensor, mask: Tensor | None, options: dict[str, float]
) -> _Refined:
    layout = stack.layout
    token_mask = layout.token_mask(tokens, mask, None)
    group = group_of(stack.levels[0])
    ranks = Ranks(group, f"refine of {type(stack).__name__}(dim={stack.dim})") if group else ALONE
    projected = projected_tokens(tokens, token_mask, layout, stack.project_in)
    inputs = layout.split_heads(projected)
    # The operator compares its options itself.
    call = f"refine, {tokens_text(inputs.dtype)}"
    codebooks = stack._codebooks()
    handshake(codebooks, ranks, call, [False] * len(codebooks))
    refined = _ops.refine_codebooks(
        inputs,
        [level._codebook.embed for level in stack.levels],
        mask=None if token_mask is None else layout.split_mask(token_mask),
        weights=stack.beam_weights(len(stack.levels)),
        group_name=ranks.group,
        label="refine",
        **options,
    )
    return _Refined(*refined)


def _summary(found: list[_Refined]) -> Refinement:
    errors = torch.cat([refined.errors for refined in found]).tolist()
    counts = torch.cat([refined.counts for refined in found]).tolist()
    dim = found[0].codebooks[0].shape[-1]
    features = sum(tokens for tokens, _ in counts) * dim
    before, after = (sum(column) / features for column in zip(*errors, strict=True))
    return Refinement(before, after, round(sum(refits for _, refits in counts) / len(counts)))
