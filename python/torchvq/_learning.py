"""What several codebooks learn from one step."""

from collections.abc import Sequence

import torch
from torch import Tensor

from torchvq._losses import Chosen
from torchvq._ranks import Ranks
from torchvq.codebook import Codebook

_ops = torch.ops.torchvq


def learn_together(
    codebooks: Sequence[Codebook], chosen: Sequence[Chosen], ema_update: bool, ranks: Ranks
) -> list[Tensor]:
    """A training step of codebooks with the options of the first, one exchange for all.

    Args:
        codebooks: those beyond ``chosen`` are not in use and take part with nothing, because what ranks exchange must
            not depend on the depth.
        chosen: the tokens of each codebook in use.

    Returns:
        Tokens of this step per code (H, K), of all ranks, for each codebook in use.
    """
    first = codebooks[0]
    arguments = first.collecting(ranks) | first.learning(ema_update)
    if not ranks.alone:
        arguments["signature"] = "; ".join(codebook.signature for codebook in codebooks)
    counts: list[Tensor] = _ops.learn_codebooks_(
        [tensor for codebook in codebooks for tensor in codebook.state()],
        [codebook.rng for codebook in codebooks],
        [own.raw_inputs(part.inputs) for own, part in zip(codebooks, chosen, strict=False)],
        [part.indices for part in chosen],
        mask=[part.mask for part in chosen if part.mask is not None],
        statistics=[],
        **arguments,
    )
    for codebook in codebooks[: len(chosen)]:
        codebook.keep_in_shards()
    return counts
