"""A residual stack for each group of features, for every family of stacks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from torchvq._base import joined as _joined
from torchvq._base.contained import contained
from torchvq._base.options import check_options, expect
from torchvq._base.sharded import gathers
from torchvq._residual.calls import groups_of
from torchvq._residual.dropout import drops_levels
from torchvq._residual.stack import ResidualStack, StackResult

if TYPE_CHECKING:
    from torchvq.residual_fsq import ResidualFSQ
    from torchvq.residual_lfq import ResidualLFQ
    from torchvq.residual_vq import ResidualVQ

Stack = TypeVar("Stack", bound="ResidualStack | ResidualVQ")
ScalarStack = TypeVar("ScalarStack", bound="ResidualFSQ | ResidualLFQ")


class Groups(nn.Module, Generic[Stack]):
    """Splits the features into groups, each with its own stack in ``rvqs``."""

    def __init__(
        self, owner: str, dim: int, groups: int, accept_image_fmap: bool, options: dict[str, Any]
    ) -> None:
        super().__init__()
        own: dict[str, Any] = dict(dim=dim, groups=groups, accept_image_fmap=accept_image_fmap)
        check_options(owner, own | options)
        self.dim = dim
        self.groups = groups
        self.accept_image_fmap = accept_image_fmap
        self.rvqs = nn.ModuleList()

    @property
    def stacks(self) -> list[Stack]:
        """``rvqs``, with their type."""
        return contained(self, "rvqs")

    @property
    def split_dim(self) -> int:
        """The axis of the features in the input."""
        return 1 if self.stacks[0].layout.channel_first else -1

    def check_input(self, x: Tensor) -> None:
        """Raises TypeError or ValueError for an input of another dtype or shape, and before any group learns for groups
        whose results cannot be joined."""
        counts = [stack.num_quantizers for stack in self.stacks]
        if not counts or counts != counts[:1] * self.groups:
            condition = f"{self.groups} stacks of equally many layers"
            expect(type(self).__name__, False, "rvqs", condition, f"stacks of {counts}")
        layout = self.stacks[0].layout
        layout._replace(dim=self.dim, owner=type(self).__name__).check_input(x)

    def _split_indices(self, indices: Tensor | Sequence[Tensor]) -> list[Tensor]:
        return groups_of(type(self).__name__, indices, self.groups)

    @gathers("rvqs")
    def get_codes_from_indices(self, indices: Tensor | Sequence[Tensor]) -> Tensor:
        """Codes (G, Q, B, *, D) of indices (G, B, *, q), or one tensor for each group, before ``project_out``."""
        parts = zip(self.stacks, self._split_indices(indices), strict=True)
        return _joined.stack([stack.get_codes_from_indices(part) for stack, part in parts])

    @gathers("rvqs")
    def get_output_from_indices(self, indices: Tensor | Sequence[Tensor]) -> Tensor:
        """The output of ``forward`` in evaluation for indices (G, B, *, q), or one tensor for each group."""
        parts = zip(self.stacks, self._split_indices(indices), strict=True)
        outputs = [stack.get_output_from_indices(part) for stack, part in parts]
        return _joined.cat(outputs, self.split_dim if outputs[0].dim() > 2 else -1)


class GroupedStack(Groups[ScalarStack]):
    """The same for stacks without codebooks to learn, all of the class ``stack_class``."""

    stack_class: ClassVar[type[ResidualStack]]

    def __init__(
        self, *, dim: int, groups: int = 1, accept_image_fmap: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(
            f"Grouped{self.stack_class.__name__}", dim, groups, accept_image_fmap, kwargs
        )
        if accept_image_fmap:
            kwargs["is_channel_first"] = True
        self.rvqs.extend(self.stack_class(dim=dim // groups, **kwargs) for _ in range(groups))
        self.codebook_size = self.stacks[0].codebook_size

    def run(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        return_all_codes: bool = False,
        seed: int | None = None,
    ) -> tuple[Tensor, list[StackResult]]:
        """The joined output, and the results of the groups; all that train drop the same levels."""
        self.check_input(x)
        depth = None
        results = []
        for stack, part in zip(self.stacks, x.chunk(self.groups, self.split_dim), strict=True):
            result = stack.run(
                part, mask=mask, return_all_codes=return_all_codes, seed=seed, depth=depth
            )
            if drops_levels(stack):
                depth = result.depth
            results.append(result)
        return _joined.cat([result.quantized for result in results], self.split_dim), results

    def indices_and_codes(self, results: list[StackResult]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The indices (G, B, *, Q) of all groups, and their codes if asked for."""
        pairs = zip(self.stacks, results, strict=True)
        indices = torch.stack([stack.shaped_indices(result.indices) for stack, result in pairs])
        return indices, tuple(own.all_codes for own in results if own.all_codes is not None)

    @property
    def codebooks(self) -> Tensor:
        """All codes of each group and level, (G, Q, codebook_size, D), as ``codebooks`` of each stack."""
        return torch.stack([stack.codebooks for stack in self.stacks])
