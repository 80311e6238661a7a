"""Codes that users assign: in place of a codebook's tensors, of any shape, or to a quantizer, of the codebook's own."""

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torchvq.codebook import Codebook

_ops = torch.ops.torchvq


class AssignedCodes(nn.Module):
    """A codebook whose ``embed`` may have been replaced by one of another shape."""

    embed: Tensor
    embed_avg: Tensor
    cluster_size: Tensor
    initted: Tensor
    num_codebooks: int
    codebook_size: int
    vqp_compat: bool

    def checked_embed(self) -> Tensor:
        """``embed``. ValueError unless it is (H, K, D), H being that of the codebook: a search would take (K, D), and
        (1, K, D) for all heads. Any number of codes may be searched, as in the reference.
        """
        # A lookup through the module takes six times as long.
        buffer = self._buffers.get("embed")
        embed = self.embed if buffer is None else buffer
        if embed.dim() != 3 or embed.shape[0] != self.num_codebooks:
            self._refuse(embed)
        return embed

    def check_averages(self) -> None:
        """ValueError unless there are as many codes as moving averages, which a step that learns needs."""
        embed = self.checked_embed()
        averages: Any = self._buffers["embed_avg"]
        # Operators name the averages if it is those that have another shape than the options say.
        if embed.shape != averages.shape and embed.shape[1] != self.codebook_size:
            self._refuse(embed)

    def _refuse(self, embed: Tensor) -> None:
        expected = [self.num_codebooks, self.codebook_size, self.embed_avg.shape[-1]]
        raise ValueError(
            f"VectorQuantize: expected embed to have the shape (heads, codebook_size, dim), {expected}, but got "
            f"{list(embed.shape)}; assign vq.codebook to replace codes"
        )

    def set_codes(self, codes: Tensor) -> None:
        """Sets the codes and their averages, so that the next update keeps these codes."""
        own = cast("Codebook", self)
        shape = self.embed_avg.shape
        if codes.shape not in (shape, shape[1:]):
            raise ValueError(
                f"VectorQuantize: expected codebook to have shape {list(shape)}, but got {list(codes.shape)}"
            )
        with torch.no_grad():
            codes = codes.clone()  # a copy, because the codes may be a view of these
            if self.embed.shape != shape:
                self.embed.data = self.embed.new_empty(shape)
            self.embed.copy_(codes)
            if self.vqp_compat:
                # The averages of the reference stay, and its next update undoes the assignment.
                return
            self.embed_avg.copy_(self.embed)
            self.cluster_size.fill_(1)
            self.initted.fill_(True)
        own._initialised = True
        own._pending = None
        own.forget_kept()

    def move_codes(self, codes: Tensor) -> None:
        """Sets the codes of a codebook in use, and their averages; ``cluster_size`` stays unchanged."""
        own = cast("Codebook", self)
        with torch.no_grad():
            wide = own.wide_embed()
            wide.copy_(codes)
            own.store_embed(wide)
            averages = _ops.averages_of_codes(wide, self.cluster_size, eps=own.eps)
            self.embed_avg.copy_(averages)
        own._pending = None
        own.forget_kept()
