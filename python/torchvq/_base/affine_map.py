"""The affine map of a codebook: the running statistics that move codes to the mean and variance of the data."""

from typing import cast

import torch
from torch import Tensor, nn

from torchvq._base.ranks import Ranks
from torchvq._base.torch_private import uncounted
from torchvq._base.wide_buffers import wide_dtype

_ops = torch.ops.torchvq

AFFINE_STATE = ("batch_mean", "batch_variance", "codebook_mean", "codebook_variance")
AFFINE_FLAGS = tuple(f"{name}_needs_init" for name in AFFINE_STATE)


class AffineMap(nn.Module):
    """A codebook whose codes may be mapped to mean and variance of the data (``affine_param``)."""

    embed: Tensor
    batch_mean: Tensor
    batch_variance: Tensor
    batch_mean_needs_init: Tensor
    batch_variance_needs_init: Tensor
    codebook_mean: Tensor
    codebook_variance: Tensor
    codebook_mean_needs_init: Tensor
    codebook_variance_needs_init: Tensor

    codebook_size: int
    affine_param: bool
    affine_param_batch_decay: float
    affine_param_codebook_decay: float

    def register_affine_state(self, num_codebooks: int, dim: int) -> None:
        """Registers the statistics of codes (H, K, D)."""
        for name in AFFINE_STATE:
            fill = torch.ones if name.endswith("variance") else torch.zeros
            self.register_buffer(name, fill(num_codebooks, 1, dim, dtype=wide_dtype()))
        for name in AFFINE_FLAGS:
            self.register_buffer(name, torch.tensor(True))

    def affine_state(self) -> list[Tensor]:
        """Mean and variance of the data and of the codes: the arguments of the affine map in operators."""
        own = self._buffers
        return [cast(Tensor, own[name]) for name in AFFINE_STATE]

    @uncounted
    def update_affine(self, x: Tensor, mask: Tensor | None, ranks: Ranks) -> None:
        """Updates the statistics of the data from the tokens (H, T, D) of a step, and those of the codes."""
        tokens = _ops.update_affine_(
            self.batch_mean,
            self.batch_variance,
            self.batch_mean_needs_init,
            self.batch_variance_needs_init,
            x.detach(),
            mask=mask,
            decay=self.affine_param_batch_decay,
            **ranks.options(),
        )
        # A step without tokens changes nothing, not even the statistics of the codes, hence the mask.
        _ops.update_affine_(
            self.codebook_mean,
            self.codebook_variance,
            self.codebook_mean_needs_init,
            self.codebook_variance_needs_init,
            self.embed.detach(),
            mask=(tokens > 0).expand(-1, self.codebook_size),
            decay=self.affine_param_codebook_decay,
        )

    def raw_inputs(self, x: Tensor) -> Tensor:
        """Tokens mapped to the space of the raw codes, in which the moving averages are kept; no gradient."""
        x = x.detach()
        return _ops.affine_inputs(x, *self.affine_state()) if self.affine_param else x
