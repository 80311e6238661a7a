"""Construction and preparation of residual stacks for comparisons, and shorthand for their tables."""

from __future__ import annotations

import torch
from torch import nn

from .harness import Row, Table

DIM, CODES, LEVELS = 8, 16, 3


def levels_of(module: nn.Module) -> list[nn.Module]:
    """The VectorQuantize modules of a stack, or of all groups."""
    stacks = getattr(module, "rvqs", [module])
    return [layer for stack in stacks for layer in stack.layers]


def spread_codes(module: nn.Module) -> None:
    """Codes of the size of the residuals and uneven counts, so that every formula of a step affects the numbers."""
    for index, layer in enumerate(levels_of(module)):
        book = layer._codebook
        codes = torch.randn(book.embed.shape) * 0.7 ** (index % LEVELS)
        book.embed.copy_(codes)
        book.cluster_size.copy_(1 + 3 * torch.rand(book.cluster_size.shape))
        book.embed_avg.copy_(codes * book.cluster_size[..., None])
        if hasattr(
            book, "codebook_mean"
        ):  # the reference leaves these uninitialised until the first step
            book.codebook_mean.zero_()
            book.codebook_variance.fill_(1.0)


def unit_codes(module: nn.Module) -> None:
    spread_codes(module)
    for layer in levels_of(module):
        book = layer._codebook
        book.embed.copy_(nn.functional.normalize(book.embed, dim=-1))
        book.embed_avg.copy_(book.embed * book.cluster_size[..., None])


def name_outputs(row: Row, returned) -> dict:
    forward = row.forward_kwargs(0)
    if forward.get("indices") is not None:
        return dict(zip(("quantized", "loss"), returned, strict=True))
    names = ["quantized", "indices", "loss"]
    if forward.get("return_all_codes"):
        names.append("all_codes")
    return dict(zip(names, returned, strict=True))


RESIDUAL = Table(
    class_name="ResidualVQ",
    defaults=dict(dim=DIM, num_quantizers=LEVELS, codebook_size=CODES),
    outputs=name_outputs,
    prepare=spread_codes,
)
GROUPED = Table(
    class_name="GroupedResidualVQ",
    defaults=dict(dim=DIM, groups=2, num_quantizers=LEVELS, codebook_size=CODES),
    outputs=name_outputs,
    prepare=spread_codes,
)

# --- shorthand ------------------------------------------------------------------------------------

LEARNABLE = dict(learnable_codebook=True, ema_update=False)
STRAIGHT = dict(rotation_trick=False)
# The same gradient in both packages: the gain is 1, and levels after the first have no commitment gradient.
GAIN_ONE = dict(quant_grad_frac=1.0, rotation_trick=False)
QINCO = dict(implicit_neural_codebook=True)
IMAGE = dict(accept_image_fmap=True)
DROPOUT = dict(quantize_dropout=True)
CODES_TOO = dict(return_all_codes=True, freeze_codebook=True)


def mask(step: int = 0, batch: int = 2, positions: int = 6) -> torch.Tensor:
    lengths = torch.tensor([4, 1 + step % 3]).repeat(batch)[:batch]
    return torch.arange(positions) < lengths[:, None]


def masked(step: int) -> dict:
    return dict(mask=mask(step))


def dropped(step: int) -> dict:
    """Seeds 0, 1, 2 keep 2, 1 and 1 of three levels."""
    return dict(rand_quantize_dropout_fixed_seed=step)


def targets(shape, step: int = 0, codes: int = CODES) -> torch.Tensor:
    return torch.randint(0, codes, shape, generator=torch.Generator().manual_seed(40 + step))


def not_initialised(module: nn.Module) -> None:
    """Leaves k-means codebooks as constructed."""


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.3)


def bridge():
    torch.manual_seed(11)
    return dict(vq_bridge=nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh(), nn.Linear(DIM, DIM)))


def decode(module, seen):
    return module.get_output_from_indices(seen["indices"])


def decode_codes(module, seen):
    return module.get_codes_from_indices(seen["indices"])


def codebooks(module, seen):
    return module.codebooks


READ = dict(codebooks=codebooks, codes=decode_codes, decoded=decode)
