"""The update of several codebooks in one step."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from torchvq._base.ranks import Ranks, joined_signature
from torchvq._base.readable import is_readable_after_wait
from torchvq._codebook.losses import SearchedTokens
from torchvq._codebook.stats import begin_step, draws_frozen
from torchvq.codebook import Codebook

if TYPE_CHECKING:
    from torchvq._codebook.request import Request
    from torchvq.vector_quantize import VectorQuantize

_ops = torch.ops.torchvq


class StepTokens(NamedTuple):
    """The tokens of one codebook, and the indices of the codes that they chose."""

    inputs: Tensor  # (H, T, D)
    indices: Tensor  # (H, T)
    mask: Tensor | None  # (H, T)
    trains: bool = True  # False: of a codebook that does not train, and so without tokens

    @classmethod
    def by(cls, levels: "Sequence[SearchedTokens | StepTokens]") -> "StepTokens":
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

    def without_tokens(self, *, trains: bool = True) -> "StepTokens":
        """The same with no tokens."""
        mask = None if self.mask is None else self.mask[:, :0]
        return StepTokens(self.inputs[:, :0], self.indices[:, :0], mask, trains)


def trains(vq: "VectorQuantize", frozen: bool) -> bool:
    """Whether a training forward of a stack may change the codebook of a level."""
    return vq.training and vq._codebook.training and not frozen


def draws_numbers(vq: "VectorQuantize", frozen: bool) -> bool:
    """Whether a training forward of a stack draws random numbers from the generator of a level."""
    return trains(vq, frozen) or (vq.training and draws_frozen(vq))


def synced_level(levels: Sequence["VectorQuantize"]) -> "VectorQuantize":
    """The level of a stack that tells which ranks learn together: the first, unless it alone evaluates."""
    return next((level for level in levels if level.training), levels[0])


def is_left_out(vq: "VectorQuantize", frozen: bool) -> bool:
    """Whether a level is frozen, or has no place in the messages of kept statistics, in which ranks must agree."""
    return frozen or (vq._codebook.keeps_statistics and not trains(vq, frozen))


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
    codebooks: Sequence[Codebook], tokens: Sequence[StepTokens], ranks: Ranks, *, decays: int = 1
) -> list[Tensor | None]:
    """A training step of codebooks, with one exchange for all if they have the same options.

    Args:
        codebooks: those beyond ``tokens`` are not in use and contribute no tokens; they are in the message, because its
            layout must not depend on the depth, which may differ between steps.
        tokens: the tokens of each codebook in use.
        decays: how often the averages decay in this step; more than once only those of a single codebook.

    Returns:
        Tokens of this step per code (H, K), of all ranks, for each codebook in use; None if it does not learn.
    """
    first = codebooks[0]
    if first.keeps_statistics and not all(part.trains for part in tokens):
        return _learn_training_only(codebooks, tokens, ranks)
    if not learn_alike(codebooks) or not in_step(codebooks):
        return _learn_one_by_one(codebooks, tokens, ranks)
    if not first.learns(first.ema_update):
        return [None] * len(tokens)
    arguments = first.statistics_options(ranks) | first.learning_options(first.ema_update)
    arguments["decay"] **= decays
    if not ranks.alone:
        arguments["signature"] = joined_signature(codebooks)
    *lists, mask = step_lists(codebooks, tokens)
    counts: list[Tensor] = _ops.learn_codebooks_(*lists, mask=mask, statistics=[], **arguments)
    for codebook in codebooks[: len(tokens)]:
        codebook.keep_in_shards()
    return [found if part.trains else None for found, part in zip(counts, tokens, strict=True)]


def learn_apart(
    codebook: Codebook, inputs: Tensor, indices: Tensor, mask: Tensor | None, request: "Request"
) -> Tensor | None:
    """Learns outside the operator of a step, where Python code runs between statistics and update, or before the
    search; the counts, if it learnt."""
    begin_step([codebook])
    return codebook.learn(
        inputs,
        indices,
        mask,
        ema_update=request.ema_update,
        accumulate=request.accumulate,
        weight=request.weight,
        ranks=request.ranks,
    )


def learn_alike(codebooks: Sequence[Codebook]) -> bool:
    """Whether codebooks have the options of the first, so that one call serves all."""
    rules = codebooks[0].learning_rules
    return all(codebook.learning_rules == rules for codebook in codebooks[1:])


def in_step(codebooks: Sequence[Codebook]) -> bool:
    """Whether codebooks have kept equally many steps. A level that was frozen for a while has kept fewer, and learns in
    other steps. Compiled code cannot read the numbers and assumes that they are equal."""
    if not codebooks[0].keeps_statistics or len(codebooks) == 1 or torch.compiler.is_compiling():
        return True
    kept = torch.stack(
        [codebook.kept_on(codebook.cluster_size.device)[0] for codebook in codebooks]
    )
    return (
        not is_readable_after_wait(kept)
        or len({tuple(steps) for steps in kept[:, :2].tolist()}) == 1
    )


def _learn_one_by_one(
    codebooks: Sequence[Codebook], tokens: Sequence[StepTokens], ranks: Ranks
) -> list[Tensor | None]:
    """The same where the options of some levels were changed: an exchange for each codebook."""
    absent = [tokens[0].without_tokens()] * (len(codebooks) - len(tokens))
    parts = zip(codebooks, [*tokens, *absent], strict=True)
    counts = [learn_together([codebook], [part], ranks)[0] for codebook, part in parts]
    return counts[: len(tokens)]


def _learn_training_only(
    codebooks: Sequence[Codebook], tokens: Sequence[StepTokens], ranks: Ranks
) -> list[Tensor | None]:
    """The same without the codebooks that do not train: a step without tokens would count as kept."""
    training = [codebook for codebook, part in zip(codebooks, tokens, strict=True) if part.trains]
    parts = [part for part in tokens if part.trains]
    counts = iter(learn_together(training, parts, ranks) if training else [])
    return [next(counts) if part.trains else None for part in tokens]


StackStep = tuple[Sequence[Codebook], Sequence[StepTokens]]


def step_of_levels(
    levels: Sequence["VectorQuantize"],
    searched: Sequence[SearchedTokens | StepTokens],
    trained: Sequence[bool],
) -> StackStep:
    """The step of levels with a codebook each, of which the first ones were searched."""
    parts = [StepTokens.by([part]) for part in searched]
    # Levels that do not learn keep their place in the message.
    tokens = [
        part if learns else part.without_tokens(trains=False)
        for part, learns in zip(parts, trained, strict=False)
    ]
    if levels[0]._codebook.keeps_statistics:
        # A step counts also for levels that were dropped.
        tokens += [parts[0].without_tokens(trains=learns) for learns in trained[len(parts) :]]
    return [vq._codebook for vq in levels], tokens


def joined_stacks(stacks: Sequence[StackStep]) -> StackStep:
    """The codebooks and tokens of several stacks as those of one."""
    codebooks = [codebook for own, _ in stacks for codebook in own]
    tokens: list[StepTokens] = []
    for own, used in stacks:
        # Codebooks that are not in use keep their place in the message.
        tokens += [*used, *[used[0].without_tokens()] * (len(own) - len(used))]
    return codebooks, tokens


def learn_stacks(stacks: Sequence[StackStep], ranks: Ranks) -> list[list[Tensor | None]]:
    """``learn_together`` for several stacks, with one exchange for all; returns the counts of each stack."""
    if ranks.alone or len(stacks) == 1:
        return [learn_together(*stack, ranks) for stack in stacks]
    counts = learn_together(*joined_stacks(stacks), ranks)
    found, begin = [], 0
    for own, used in stacks:
        found.append(counts[begin : begin + len(used)])
        begin += len(own)
    return found
