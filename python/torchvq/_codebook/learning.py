"""The update of several codebooks in one step."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchvq._base.ranks import Ranks, joined_signature
from torchvq._codebook.losses import SearchedTokens
from torchvq.codebook import Codebook

_ops = torch.ops.torchvq


class StepTokens(NamedTuple):
    """The tokens of one codebook, and the indices of the codes that they chose."""

    inputs: Tensor  # (H, T, D)
    indices: Tensor  # (H, T)
    mask: Tensor | None  # (H, T)

    @classmethod
    def by(cls, levels: Sequence[SearchedTokens]) -> "StepTokens":
        """The tokens of all levels that share one codebook."""
        first = levels[0]
        if len(levels) == 1:
            return cls(first.inputs, first.indices, first.mask)
        masks = [part.mask for part in levels if part.mask is not None]
        return cls(
            torch.cat([part.inputs for part in levels], 1),
            torch.cat([part.indices for part in levels], 1),
            torch.cat(masks, 1) if masks else None,
        )

    def none_of(self) -> "StepTokens":
        """The same with no tokens."""
        mask = None if self.mask is None else self.mask[:, :0]
        return StepTokens(self.inputs[:, :0], self.indices[:, :0], mask)


def step_lists(
    codebooks: Sequence[Codebook], tokens: Sequence[StepTokens]
) -> tuple[list[Tensor], ...]:
    """The list arguments of operators that learn codebooks: state, rng, x, indices, mask."""
    return (
        [tensor for codebook in codebooks for tensor in codebook.state()],
        [codebook.step_rng for codebook in codebooks],
        [own.raw_inputs(part.inputs) for own, part in zip(codebooks, tokens, strict=False)],
        [part.indices for part in tokens],
        [part.mask for part in tokens if part.mask is not None],
    )


def learn_together(
    codebooks: Sequence[Codebook], tokens: Sequence[StepTokens], ema_update: bool, ranks: Ranks
) -> list[Tensor]:
    """A training step of codebooks that have the options of the first, with one exchange for all.

    Args:
        codebooks: those beyond ``tokens`` are not in use and contribute no tokens; they are in the message, because its
            layout must not depend on the depth, which may differ between steps.
        tokens: the tokens of each codebook in use.

    Returns:
        Tokens of this step per code (H, K), of all ranks, for each codebook in use.
    """
    first = codebooks[0]
    if any(codebook.rules != first.rules for codebook in codebooks):
        return _learn_apart(codebooks, tokens, ema_update, ranks)
    arguments = first.collecting(ranks) | first.learning(ema_update)
    if not ranks.alone:
        arguments["signature"] = joined_signature(codebooks)
    *lists, mask = step_lists(codebooks, tokens)
    counts: list[Tensor] = _ops.learn_codebooks_(*lists, mask=mask, statistics=[], **arguments)
    for codebook in codebooks[: len(tokens)]:
        codebook.keep_in_shards()
    return counts


def _learn_apart(
    codebooks: Sequence[Codebook], tokens: Sequence[StepTokens], ema_update: bool, ranks: Ranks
) -> list[Tensor]:
    """The same where the options of some levels were changed: an exchange for each codebook."""
    absent = [tokens[0].none_of()] * (len(codebooks) - len(tokens))
    parts = zip(codebooks, [*tokens, *absent], strict=True)
    counts = [learn_together([own], [part], ema_update, ranks)[0] for own, part in parts]
    return counts[: len(tokens)]


StackStep = tuple[Sequence[Codebook], Sequence[StepTokens]]


def joined_stacks(stacks: Sequence[StackStep]) -> StackStep:
    """The codebooks and tokens of several stacks as those of one."""
    codebooks = [codebook for own, _ in stacks for codebook in own]
    tokens: list[StepTokens] = []
    for own, used in stacks:
        # Codebooks that are not in use keep their place in the message.
        tokens += [*used, *[used[0].none_of()] * (len(own) - len(used))]
    return codebooks, tokens


def learn_stacks(stacks: Sequence[StackStep], ema_update: bool, ranks: Ranks) -> list[list[Tensor]]:
    """``learn_together`` for several stacks, with one exchange for all; returns the counts of each stack."""
    if ranks.alone or len(stacks) == 1:
        return [learn_together(*stack, ema_update, ranks) for stack in stacks]
    counts = learn_together(*joined_stacks(stacks), ema_update, ranks)
    found, begin = [], 0
    for own, used in stacks:
        found.append(counts[begin : begin + len(used)])
        begin += len(own)
    return found
