"""GroupedResidualVQ: a residual stack for each group of features."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, cast

import torch
from torch import Tensor

from torchvq._base import joined as _joined
from torchvq._base.sharded import gathers
from torchvq._codebook.stats import CodebookStats, read_stats
from torchvq._residual.calls import checked_call, siblings_of
from torchvq._residual.dropout import drops_levels
from torchvq._residual.grouped_stack import Groups
from torchvq._residual.results import finish, search
from torchvq.outputs import ResidualOutput, ResidualOutputWithCodes, ResidualResult
from torchvq.residual_vq import ResidualVQ


class GroupedResidualVQ(Groups[ResidualVQ]):
    """Splits the features into groups and gives each its own ``ResidualVQ`` (HiFi-Codec, arXiv:2305.02765).

    Shapes: as ``ResidualVQ``, and ``G`` = ``groups``.

    Args:
        dim: features of the input, a multiple of ``groups``.
        groups: residual stacks ``G``, at least 1. Default: 1.
        accept_image_fmap: input is (B, dim, H, W). Default: False.
        **kwargs: options of every ``ResidualVQ``.

    Raises:
        ValueError: an option out of range, or options that exclude each other.

    Example:
        >>> rvq = GroupedResidualVQ(dim=256, groups=2, num_quantizers=8, codebook_size=1024)
        >>> quantized, indices, loss = rvq(torch.randn(1, 1024, 256))
        >>> quantized.shape, indices.shape, loss.shape
        (torch.Size([1, 1024, 256]), torch.Size([2, 1, 1024, 8]), torch.Size([2, 8]))
    """

    def __init__(
        self, *, dim: int, groups: int = 1, accept_image_fmap: bool = False, **kwargs: Any
    ) -> None:
        super().__init__("GroupedResidualVQ", dim, groups, accept_image_fmap, kwargs)
        self.rvqs.extend(
            ResidualVQ(dim=dim // groups, accept_image_fmap=accept_image_fmap, **kwargs)
            for _ in range(groups)
        )

    @gathers("rvqs")
    def forward(
        self,
        x: Tensor,
        indices: Tensor | Sequence[Tensor] | None = None,
        return_all_codes: bool = False,
        sample_codebook_temp: float | None = None,
        freeze_codebook: bool = False,
        mask: Tensor | None = None,
        *,
        beam_size: int | None = None,
        rand_quantize_dropout_fixed_seed: int | None = None,
    ) -> ResidualResult:
        """Quantizes x; in training also updates the codebooks.

        Args: as for ``ResidualVQ.forward``, ``indices`` with the groups as first axis.

        Returns:
            ``(quantized, indices, loss)``, named: indices (G, B, N, Q), loss (G, Q). With ``return_all_codes`` also
            a tuple of the codes (Q, B, N, D) of each group; with ``indices`` only quantized and loss (G,). All
            groups in training drop the same levels.

        Raises:
            ValueError: wrong shapes or conflicting arguments. TypeError: wrong dtypes. IndexError: a target out of
                range.
        """
        self.check_input(x)
        targets = [None] * self.groups if indices is None else self._split_indices(indices)
        parts = x.chunk(self.groups, self.split_dim)
        calls = [
            checked_call(rvq, part, mask, target, sample_codebook_temp, freeze_codebook, beam_size)
            for rvq, part, target in zip(self.stacks, parts, targets, strict=True)
        ]
        siblings = siblings_of(self.stacks)
        depth = None
        started = []
        with ExitStack() as steps:
            for rvq, part, call in zip(self.stacks, parts, calls, strict=True):
                own = rvq.start(
                    part,
                    steps,
                    call,
                    return_all_codes=return_all_codes,
                    seed=rand_quantize_dropout_fixed_seed,
                    depth=depth,
                    siblings=siblings,
                )
                if drops_levels(rvq):
                    depth = own.request.depth
                started.append(own)
            results = finish(search(started, steps, siblings))
        quantized, *others = zip(*results, strict=True)
        joined = _joined.cat(quantized, self.split_dim)
        if indices is not None:
            return joined, torch.stack(others[0])
        chosen, loss = torch.stack(others[0]), torch.stack(others[1])
        if return_all_codes:
            return ResidualOutputWithCodes(joined, chosen, loss, others[2])
        return ResidualOutput(joined, chosen, loss)

    def stats(self, synced: bool = False) -> tuple[tuple[CodebookStats, ...], ...]:
        """The use of the codes of each group and level; see ``VectorQuantize.stats``.

        One exchange for all groups if ``synced``.
        """
        found = read_stats([level for rvq in self.stacks for level in rvq.levels], synced)
        levels = self.stacks[0].num_quantizers
        return tuple(tuple(found[i : i + levels]) for i in range(0, len(found), levels))

    # Codes -----------------------------------------------------------------------------------------------------

    @property
    def codebooks(self) -> Tensor | tuple[tuple[Tensor, ...], ...]:
        """The codes of all groups and levels: (G, Q, K, D), or tuples if levels differ in size."""
        codes = tuple(rvq.codebooks for rvq in self.stacks)
        if self.stacks[0].uniform_codebook_size:
            return _joined.stack(cast(tuple[Tensor, ...], codes))
        return cast(tuple[tuple[Tensor, ...], ...], codes)
