"""GroupedResidualLFQ: a ResidualLFQ for each group of features."""

import torch
from torch import Tensor

from torchvq._base.sharded import gathers
from torchvq._residual.grouped_stack import GroupedStack
from torchvq.outputs import ResidualOutput, ResidualOutputWithCodes
from torchvq.residual_lfq import ResidualLFQ, losses_of


class GroupedResidualLFQ(GroupedStack[ResidualLFQ]):
    """Splits the features into groups and gives each its own ``ResidualLFQ``.

    HiFi-Codec (Yang et al. 2023, arXiv:2305.02765) with lookup-free quantizers.

    Shapes: as ``ResidualLFQ``, and ``G`` = ``groups``.

    Args:
        dim: features of the input, a multiple of groups.
        groups: residual stacks ``G``, at least 1. Default: 1.
        accept_image_fmap: input is (B, dim, *): sequences, images, volumes; sets ``is_channel_first``. Default: False.
        **kwargs: options of every stack, see ``ResidualLFQ``.

    Raises:
        ValueError: an option out of range, or options that exclude each other. TypeError: unknown options.

    Gradient, dtypes and masks are those of ``ResidualLFQ``, for each group alone.

    Distributed: the entropies of all groups cover the tokens of all ranks, with one all-reduce per step.

    Differences from ``vector_quantize_pytorch`` are listed in ``docs/migrating.md``.

    Example:
        >>> options = dict(codebook_size=256, num_quantizers=8, commitment_loss_weight=0.25)
        >>> rlfq = GroupedResidualLFQ(dim=256, groups=2, **options)
        >>> quantized, indices, losses = rlfq(torch.randn(1, 1024, 256))
        >>> quantized.shape, indices.shape, losses.shape
        (torch.Size([1, 1024, 256]), torch.Size([2, 1, 1024, 8]), torch.Size([2, 8]))
    """

    stack_class = ResidualLFQ

    @gathers("rvqs")
    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        return_all_codes: bool = False,
        *,
        rand_quantize_dropout_fixed_seed: int | None = None,
    ) -> ResidualOutput | ResidualOutputWithCodes:
        """Quantizes x; arguments as for ``ResidualLFQ.forward``.

        Returns:
            ``(quantized, indices, loss)``, named: indices (G, B, *, Q), loss (G, Q). With ``return_all_codes`` also a
            tuple of the codes (Q, B, *, D) of each group. All groups in training drop the same levels.

        Raises:
            ValueError: wrong shapes. TypeError: wrong dtypes.
        """
        quantized, results = self.run(
            x, mask=mask, return_all_codes=return_all_codes, seed=rand_quantize_dropout_fixed_seed
        )
        indices, codes = self.indices_and_codes(results)
        losses = torch.stack(losses_of(self.stacks, results))
        if return_all_codes:
            return ResidualOutputWithCodes(quantized, indices, losses, codes)
        return ResidualOutput(quantized, indices, losses)
