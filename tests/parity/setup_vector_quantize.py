"""Construction and preparation of VectorQuantize for comparisons, and shorthand for its tables."""

from __future__ import annotations

import torch
from torch import nn

from .harness import Row, Table
from .tokens_vector_quantize import distance_of_indices

DIM, CODES = 8, 16


def spread_codes(module: nn.Module) -> None:
    """Codes of the size of the data and uneven counts, so that every formula of a step affects the numbers."""
    book = module._codebook
    codes = torch.randn(book.embed.shape)
    if book.use_cosine_sim:
        codes = nn.functional.normalize(codes, dim=-1)
    book.embed.copy_(codes)
    book.cluster_size.copy_(1 + 3 * torch.rand(book.cluster_size.shape))
    book.embed_avg.copy_(codes * book.cluster_size[..., None])
    if hasattr(
        book, "codebook_mean"
    ):  # the reference leaves these uninitialised until the first step
        book.codebook_mean.zero_()
        book.codebook_variance.fill_(1.0)


def name_outputs(row: Row, returned) -> dict:
    forward = row.forward_kwargs(0)
    if forward.get("indices") is not None:
        return dict(zip(("quantized", "loss"), returned, strict=True))
    names = ["quantized", "indices", "loss"]
    if forward.get("return_loss_breakdown"):
        names.append("breakdown")
    return dict(zip(names, returned, strict=True))


TABLE = Table(
    class_name="VectorQuantize",
    defaults=dict(dim=DIM, codebook_size=CODES),
    outputs=name_outputs,
    prepare=spread_codes,
    distance=distance_of_indices,
)

# --- shorthand ------------------------------------------------------------------------------------

BREAKDOWN = dict(return_loss_breakdown=True)
LEARNABLE = dict(learnable_codebook=True, ema_update=False)
STRAIGHT = dict(rotation_trick=False)
SHARED = dict(heads=2, codebook_dim=3)
SEPARATE = dict(heads=2, codebook_dim=3, separate_codebook_per_head=True)
IMAGE = dict(accept_image_fmap=True)
VOLUME = dict(accept_3d_fmap=True)
CHANNEL_FIRST = dict(channel_last=False)
GUMBEL = dict(straight_through=True, rotation_trick=False, route_gradients_to_input=False)
# A variance that is no noise in float32, and a threshold below every count: only the estimator remains.
QUIET_DIRECTION = dict(
    directional_reparam=True, directional_reparam_variance=1e-18, threshold_ema_dead_code=1e-9
)


def mask(step: int = 0, batch: int = 2, positions: int = 6) -> torch.Tensor:
    lengths = torch.tensor([4, 1 + step % 3]).repeat(batch)[:batch]
    return torch.arange(positions) < lengths[:, None]


def scattered_mask(step: int) -> torch.Tensor:
    return (torch.arange(12).reshape(2, 6) * 7 + step) % 3 > 0


def targets(shape, step: int, codes: int = CODES) -> torch.Tensor:
    return torch.randint(0, codes, shape, generator=torch.Generator().manual_seed(50 + step))


def frozen(**kwargs) -> dict:
    return dict(freeze_codebook=True, **kwargs)


def not_initialised(module: nn.Module) -> None:
    """Leaves a k-means codebook as constructed, because the table's preparation would hide the initialisation."""


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.3)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.03)


def bridge(**kwargs):
    def make():
        torch.manual_seed(11)
        return dict(
            vq_bridge=nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh(), nn.Linear(DIM, DIM)), **kwargs
        )

    return make


def per_token_codes(step: int, *, heads: int = 1, items: int = 2, dim: int = DIM) -> dict:
    """Codes that differ between tokens, as conditional codebooks do."""
    generator = torch.Generator().manual_seed(90 + step)
    shift = torch.randn(heads, items, 6, CODES, dim, generator=generator) * 0.3
    return dict(codebook_transform_fn=lambda codes: codes[:, None, None] * 1.2 + shift)


def decode(module, seen):
    return module.get_output_from_indices(seen["indices"])


def decode_codes(module, seen):
    return module.get_codes_from_indices(seen["indices"])


def codebook(module, seen):
    return module.codebook


READ = dict(codebook=codebook, codes=decode_codes, decoded=decode)


def update_from(name: str, shape=(2, 6), **more):
    def call(module, x):
        getattr(module, name)(x, targets(shape, 3), **more)

    return call


def weight_by_size(embed_sum, cluster_size):
    return 1.0 / (1.0 + cluster_size)
