"""RandomProjectionQuantizer: targets for masked prediction from a quantizer that is not trained."""

from typing import Any

import torch
from torch import Tensor, nn

from torchvq._base.compat import vqp_compat_of
from torchvq._base.constants import to_default_device
from torchvq._base.layout import Layout, layout_by_options
from torchvq._base.options import check_options, keep_values, named, take_out
from torchvq._base.projection import project
from torchvq._base.wide_buffers import WideBuffers, wide_default, widened
from torchvq._codebook.request import check_targets
from torchvq._codebook.search import stored_codes
from torchvq.vector_quantize import VectorQuantize

_ops = torch.ops.torchvq
_LAYOUT = {"accept_image_fmap", "accept_3d_fmap", "channel_last"}
# Options of VectorQuantize that this class sets, or that would move codes; and what to do instead.
_OWN = {
    "heads": "use num_codebooks",
    "separate_codebook_per_head": "each codebook has its own codes",
    "use_cosine_sim": "codes are compared by direction",
    "kmeans_init": "nothing learns",
    "vq_bridge": "nothing learns",
    "affine_param": "nothing learns",
    "learnable_codebook": "nothing learns",
    "directional_reparam": "nothing learns",
    "orthogonal_reg_weight": "nothing learns",
}


class RandomProjectionQuantizer(WideBuffers):
    """Finds the nearest code, by cosine similarity, of randomly projected tokens: targets for masked prediction
    (BEST-RQ).

    Each token is normalised, projected by a random matrix and mapped to the index of the random code with the nearest
    direction (Chiu et al. 2022, arXiv:2202.01855); with several codebooks to one index of each (Zhang et al. 2023, USM,
    arXiv:2303.01037). Projections and codes are drawn once and never change.

    Shapes: ``B`` batch, ``N`` positions, ``C`` = ``num_codebooks``, ``K`` = ``codebook_size``.

    Args:
        dim: features of the input, at least 1.
        codebook_size: codes of a codebook ``K``, at least 1.
        codebook_dim: features of a projection, and of a code if there is one codebook; at least 1.
        num_codebooks: ``C``, at least 1; each has its own projection and codes. With several, a second random layer,
            ``vq.project_in``, maps all projections to codes of ``C * codebook_dim`` features in each codebook, as in
            ``vector_quantize_pytorch``, whose checkpoints contain it. Default: 1.
        norm: normalise each token (layer norm without weights) before it is projected. Default: True.
        vqp_compat: behave as ``vector_quantize_pytorch``: the layers of several codebooks have nonzero biases and
            require a gradient, and projections are drawn smaller. Default: set by ``TORCHVQ_COMPAT``.
        **kwargs: layout: ``channel_last``, ``accept_image_fmap``, ``accept_3d_fmap`` as for ``VectorQuantize``. Most
            options of learning are accepted and have no effect; options that would change codes are refused.

    Raises:
        ValueError: an option out of range, or one that this class decides. TypeError: unknown options.

    Gradient: only of the cross-entropy to the input. No parameter of the module requires one (except with
        ``vqp_compat``).

    Dtypes: indices are int64; projection, comparison and cross-entropy are float32 (float64 for float64 input) under
        any autocast or module cast; the second layer, if there is one, runs like ``project_in`` of ``VectorQuantize``.

    Distributed: nothing is communicated. Ranks have the same projections and codes if they were built from the same
        seed, or wrapped in DistributedDataParallel, which sends those of rank 0.

    State: ``rand_projs`` (C, dim, codebook_dim) and that of the ``VectorQuantize`` ``vq`` that holds the codes.

    Differences from ``vector_quantize_pytorch`` are listed in ``docs/migrating.md``.

    Example:
        >>> targets = RandomProjectionQuantizer(dim=512, num_codebooks=4, codebook_dim=16, codebook_size=8192)
        >>> targets(torch.randn(1, 1024, 512)).shape
        torch.Size([1, 1024, 4])
    """

    rand_projs: Tensor
    dim: int
    codebook_size: int
    codebook_dim: int
    num_codebooks: int
    norm: bool
    vqp_compat: bool
    accept_image_fmap: bool
    accept_3d_fmap: bool
    channel_last: bool

    def __init__(
        self,
        *,
        dim: int,
        codebook_size: int,
        codebook_dim: int,
        num_codebooks: int = 1,
        norm: bool = True,
        vqp_compat: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        own = {name: value for name, value in locals().items() if name not in ("owner", "kwargs")}
        layout = {name: kwargs.pop(name) for name in _LAYOUT & kwargs.keys()}
        check_options("RandomProjectionQuantizer", own | layout)
        take_out(owner, kwargs, _OWN)
        keep_values(
            self,
            **named(own, "dim codebook_size codebook_dim num_codebooks norm"),
            vqp_compat=vqp_compat_of(vqp_compat),
            accept_image_fmap=layout.get("accept_image_fmap", False),
            accept_3d_fmap=layout.get("accept_3d_fmap", False),
            channel_last=layout.get("channel_last", True),
        )
        with wide_default():
            # vqp_compat also restores the reference's smaller projections, whose size matters next to its nonzero
            # biases.
            projections = _ops.random_projections(
                num_codebooks, dim, codebook_dim, vqp_compat=self.vqp_compat
            )
        self.register_buffer("rand_projs", to_default_device(projections))
        self.vq = VectorQuantize(
            dim=codebook_dim * num_codebooks,
            codebook_size=codebook_size,
            heads=num_codebooks,
            separate_codebook_per_head=True,
            use_cosine_sim=True,
            vqp_compat=vqp_compat,
            **kwargs,
        )
        if self.vqp_compat:
            return
        self.vq.requires_grad_(False)
        if isinstance(self.vq.project_in, nn.Linear):
            # The search compares directions, and a large offset common to all vectors would make them alike.
            nn.init.zeros_(self.vq.project_in.bias)

    def extra_repr(self) -> str:
        """The options, for ``print``."""
        return f"dim={self.dim}, num_codebooks={self.num_codebooks}, norm={self.norm}"

    def forward(
        self, x: Tensor, indices: Tensor | None = None, *, mask: Tensor | None = None
    ) -> Tensor:
        """The indices of x, or the cross-entropy of x with target indices.

        Args:
            x: (B, *, dim) with any number of position axes; with ``channel_last=False`` (B, dim, *); or as the map
                options say. Any floating dtype but float8.
            indices: targets, in the shape of the returned indices; -1 is left out.
            mask: bool, one per position, True for real tokens. Padding has no effect; its index is -1.

        Returns:
            Indices int64, (B, *), with several codebooks (B, *, C); the lowest index wins a tie. With ``indices`` the
            cross-entropy of the similarities with these targets, the mean over tokens and codebooks, a scalar with
            gradient to x; no tokens: 0. A token with NaN or infinity gets index 0.

        Raises:
            ValueError: wrong shapes. TypeError: wrong dtypes. IndexError: a target outside [-1, K).
        """
        layout = self._layout
        layout.check_input(x)
        if indices is not None and not torch.compiler.is_compiling():
            check_targets(indices, x, layout, self.vq._codebook.checked_embed().shape[1])
        token_mask = layout.token_mask(x, mask, None)
        tokens = layout.pack(x, token_mask)
        head_mask = None if token_mask is None else layout.split_mask(token_mask)
        spread = _ops.random_projection(tokens, self.rand_projs, self.norm)
        projected = widened(layout.split_heads(project(self.vq.project_in, spread)))
        # This calls the search instead of the forward of the VectorQuantize, which would learn in training.
        codes = stored_codes(self.vq._codebook, projected.dtype)
        if indices is not None:
            loss = _ops.commitment_cross_entropy(
                projected, codes, layout.split_indices(indices), metric="cosine", mask=head_mask
            )
            return _ops.weighted_loss([loss], [1.0], self.training)
        found = _ops.nearest_code(projected.detach(), codes, metric="cosine")[0]
        if head_mask is not None:
            found = found.masked_fill(head_mask.logical_not(), -1)
        return layout.restore_positions(found, x)

    @property
    def _layout(self) -> Layout:
        return layout_by_options(self, self.num_codebooks, True, type(self).__name__)
