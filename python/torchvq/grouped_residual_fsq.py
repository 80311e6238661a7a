"""GroupedResidualFSQ: a residual stack of finite scalar quantizers for each group of features."""

from torch import Tensor

from torchvq._base.sharded import gathers
from torchvq._residual.grouped_stack import GroupedStack
from torchvq.outputs import ScalarOutput, ScalarOutputWithCodes
from torchvq.residual_fsq import ResidualFSQ


class GroupedResidualFSQ(GroupedStack[ResidualFSQ]):
    """Splits the features into groups and gives each its own ``ResidualFSQ`` (HiFi-Codec, arXiv:2305.02765).

    Shapes: as ``ResidualFSQ``, and ``G`` = ``groups``.

    Args:
        dim: features of the input, a multiple of ``groups``.
        groups: residual stacks ``G``, at least 1. Default: 1.
        accept_image_fmap: input is (B, dim, *): sequences, images, volumes; sets ``is_channel_first``. Default: False.
        **kwargs: options of every ``ResidualFSQ``.

    Raises:
        ValueError: an option out of range, or options that exclude each other.

    Example:
        >>> rfsq = GroupedResidualFSQ(dim=256, groups=2, levels=[8, 5, 5, 3], num_quantizers=6)
        >>> quantized, indices = rfsq(torch.randn(1, 1024, 256))
        >>> quantized.shape, indices.shape
        (torch.Size([1, 1024, 256]), torch.Size([2, 1, 1024, 6]))
    """

    stack_class = ResidualFSQ

    @gathers("rvqs")
    def forward(
        self,
        x: Tensor,
        return_all_codes: bool = False,
        *,
        mask: Tensor | None = None,
        rand_quantize_dropout_fixed_seed: int | None = None,
    ) -> ScalarOutput | ScalarOutputWithCodes:
        """Quantizes x; arguments as for ``ResidualFSQ.forward``.

        Returns:
            ``(quantized, indices)``, named: indices (G, B, *, Q). With ``return_all_codes`` also a tuple of the codes
            (Q, B, *, D) of each group. All groups in training drop the same levels.
        """
        quantized, results = self.run(
            x, mask=mask, return_all_codes=return_all_codes, seed=rand_quantize_dropout_fixed_seed
        )
        indices, codes = self.indices_and_codes(results)
        if return_all_codes:
            return ScalarOutputWithCodes(quantized, indices, codes)
        return ScalarOutput(quantized, indices)
