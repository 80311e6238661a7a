"""The learning table's autoencoder: the same small convolutional network around every quantizer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import images
import torch
from learning_measures import codes_of, psnr, replaced_share, usage
from learning_rows import (
    RECOMMENDED,
    Options,
    Row,
    both,
    codes_in,
    levels_of,
    make,
    recommended,
    seeded,
)
from torch import Tensor, nn
from torch.nn import functional as F

import torchvq

TASK = "autoencoder"
DIM, BATCH = 32, 32
# 28 x 28 pixels become 7 x 7 tokens.
TOKENS = 49 * BATCH
CODES, LEVELS, LEVEL_CODES, HEAD_CODES = 512, 4, 256, 128
SCALAR_LEVELS = [8, 8, 8]
STACKED_LFQ_CODES = 64
STEPS, QUICK_STEPS, WATCHED = 300, 4, 20

THRESHOLD: Options = dict(threshold_ema_dead_code=2)
KMEANS: Options = dict(kmeans_init=True)
# Codes are parameters and learn by averages, too.
ORTHOGONAL: Options = dict(orthogonal_reg_weight=1e-3)
LEARNABLE: Options = dict(learnable_codebook=True, ema_update=False)
COSINE: Options = dict(use_cosine_sim=True)
PROJECTED: Options = dict(codebook_dim=8)
# With four codebooks of 512 codes, the reference would take half a minute.
HEADS: Options = dict(heads=4, separate_codebook_per_head=True, codebook_size=HEAD_CODES)


FITTED = recommended(TOKENS, CODES)


def _in_place(
    optimizer: Callable[..., torch.optim.Optimizer], rate: float, codes: Options = LEARNABLE
) -> Options:
    return codes | dict(in_place_codebook_optimizer=partial(optimizer, lr=rate))


VECTOR: dict[str, dict[str, Options]] = {
    "VectorQuantize": {
        "recommended": FITTED,
        "defaults": {},
        "k-means": KMEANS,
        "k-means, threshold 2": KMEANS | THRESHOLD,
        "threshold 2": THRESHOLD,
        "decay 0.95": dict(decay=0.95),
        "decay 0.99": dict(decay=0.99),
        "learnable": LEARNABLE,
        "learnable, threshold 2": LEARNABLE | THRESHOLD,
        "in place, Adam": _in_place(torch.optim.Adam, 1e-3),
        "in place, SGD": _in_place(torch.optim.SGD, 1.0),
        "in place, Adam, threshold 2": _in_place(torch.optim.Adam, 1e-3) | THRESHOLD,
        "in place, Adam, and averages": _in_place(torch.optim.Adam, 1e-3, ORTHOGONAL),
        "in place, Adam, and averages, threshold 2": _in_place(torch.optim.Adam, 1e-3, ORTHOGONAL)
        | THRESHOLD,
        "no rotation trick": dict(rotation_trick=False),
        "commitment 0.25": dict(commitment_weight=0.25),
    },
    "VectorQuantize, cosine": {
        "cosine, recommended": COSINE | FITTED,
        "cosine": COSINE,
        "cosine, k-means, threshold 2": COSINE | KMEANS | THRESHOLD,
    },
    "VectorQuantize, 8 of 32 features": {
        "codebook_dim 8, recommended": PROJECTED | FITTED,
        "codebook_dim 8": PROJECTED,
        "codebook_dim 8, threshold 2": PROJECTED | THRESHOLD,
    },
    "VectorQuantize, 4 heads": {
        "4 heads, recommended": HEADS | recommended(TOKENS, HEAD_CODES),
        "4 heads": HEADS,
    },
}
STACKS: dict[str, Options] = {
    "recommended": RECOMMENDED,
    "defaults": {},
    "k-means": KMEANS,
    "k-means, threshold 2": KMEANS | THRESHOLD,
    "quantize dropout": dict(quantize_dropout=True),
    "rotation trick": dict(rotation_trick=True),
    "no rotation trick": dict(rotation_trick=False),
    "cosine": COSINE,
    "shared codebook": dict(shared_codebook=True),
    "commitment 0.25": dict(commitment_weight=0.25),
}
# Variations of the recommended settings, which only ours runs.
NEARBY: dict[str, Options] = {
    "recommended, decay 0.8": RECOMMENDED | dict(decay=0.8),
    "recommended, decay 0.99": RECOMMENDED | dict(decay=0.99),
    "recommended, no k-means": RECOMMENDED | dict(kmeans_init=False),
}
# Rows that ours runs twice: with its own gradient through the levels, and with the reference's.
COMPATIBLE = ("defaults", "k-means, threshold 2", "commitment 0.25")
GROUPED: dict[str, Options] = {
    "recommended": RECOMMENDED,
    "defaults": {},
    "threshold 2": THRESHOLD,
}
SCALAR: list[tuple[str, str, Options]] = [
    ("LFQ", "defaults", {}),
    ("LFQ", "commitment 0.25", dict(commitment_loss_weight=0.25)),
    (
        "LFQ",
        "commitment 0.25, entropy 0.02",
        dict(commitment_loss_weight=0.25, entropy_loss_weight=0.02),
    ),
    ("LFQ", "spherical", dict(spherical=True)),
    ("LFQ", "recommended", torchvq.recommended("lfq", bits=9)),
    ("ResidualLFQ", "defaults", dict(num_quantizers=LEVELS)),
    ("ResidualLFQ", "commitment 0.25", dict(num_quantizers=LEVELS, commitment_loss_weight=0.25)),
    ("FSQ", "defaults", {}),
    ("FSQ", "hard bound", dict(bound_hard_clamp=True)),
    ("FSQ", "symmetric", dict(preserve_symmetry=True)),
    ("ResidualFSQ", "defaults", dict(num_quantizers=LEVELS)),
    ("ResidualFSQ", "tanh bound", dict(num_quantizers=LEVELS, bound_hard_clamp=False)),
    ("FSP", "defaults", {}),
    ("LatentQuantize", "defaults", {}),
]


def rows() -> list[Row]:
    return [*_vector(), *_stacked(), *_grouped(), *_scalar()]


def _vector() -> list[Row]:
    kind, base = "VectorQuantize", dict(dim=DIM, codebook_size=CODES)
    rows = [
        _row(f"{kind}: {name}", kind, base | options, family, options.get("codebook_size", CODES))
        for family, settings in VECTOR.items()
        for name, options in settings.items()
    ]
    for name, options in NEARBY.items():
        rows.append(Row(TASK, f"{kind}: {name}", kind, base | options, None, kind))
    return rows


def _stacked() -> list[Row]:
    kind, base = "ResidualVQ", dict(dim=DIM, codebook_size=LEVEL_CODES, num_quantizers=LEVELS)
    rows = [
        _row(f"{kind}: {name}", kind, base | options, kind, LEVEL_CODES)
        for name, options in STACKS.items()
    ]
    for name in COMPATIBLE:
        options = base | STACKS[name] | dict(vqp_compat=True)
        own = f"{kind}: {name}, vqp_compat"
        rows.append(Row(TASK, own, kind, options, None, kind, against=f"{kind}: {name}"))
    return rows


def _grouped() -> list[Row]:
    kind = "GroupedResidualVQ"
    base = dict(dim=DIM, codebook_size=LEVEL_CODES, num_quantizers=LEVELS, groups=2)
    return [
        _row(f"{kind}: {name}", kind, base | options, kind, LEVEL_CODES)
        for name, options in GROUPED.items()
    ]


def _scalar() -> list[Row]:
    found = []
    for kind, name, more in SCALAR:
        sizes: Options = dict(levels=SCALAR_LEVELS)
        if "LFQ" in kind:
            # The cost of the entropy loss is proportional to tokens times codes, at every level.
            sizes = dict(codebook_size=CODES if kind == "LFQ" else STACKED_LFQ_CODES)
        found.append(_row(f"{kind}: {name}", kind, dict(dim=DIM) | sizes | more, kind, CODES))
    return found


def _row(name: str, kind: str, options: Options, family: str, codes: int) -> Row:
    ours, theirs = both(options, TOKENS, codes)
    return Row(TASK, name, kind, ours, theirs, family, recommended=name.endswith("recommended"))


class Quantizer(nn.Module):
    """A quantizer of either library between encoder and decoder, whose latents are images (B, DIM, 7, 7)."""

    def __init__(self, quantizer: nn.Module, takes_images: bool) -> None:
        super().__init__()
        self.quantizer = quantizer
        self.takes_images = takes_images

    def forward(self, latents: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Output, indices, and the sum of the losses, if any."""
        tokens = latents if self.takes_images else latents.flatten(2).mT
        quantized, indices, *rest = self.quantizer(tokens)
        loss = rest[0].sum() if rest else latents.new_zeros(())
        if not self.takes_images:
            quantized = quantized.mT.reshape(latents.shape)
        return quantized, indices, loss


class Autoencoder(nn.Module):
    """28 x 28 pixels to 7 x 7 latents and back; the quantizer is set from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 32, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(64, DIM, 3, 1, 1),
        )
        self.quantizer: nn.Module = nn.Identity()
        self.decoder = nn.Sequential(
            nn.Conv2d(DIM, 64, 3, 1, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(64, 32, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(32, 1, 4, 2, 1),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Reconstruction, indices, loss of the quantizer, latents."""
        latents = self.encoder(x)
        quantized, indices, loss = self.quantizer(latents)
        return self.decoder(quantized), indices, loss, latents


def run(row: Row, who: str, seed: int, quick: bool) -> dict[str, Any]:
    """Trains once and evaluates. The seed fixes weights and batches, the same for every quantizer."""
    steps = QUICK_STEPS if quick else STEPS
    train_set = images.load()[0]
    seeded(seed)
    model = Autoencoder()
    quantizer = make(row, who, seed)
    model.quantizer = Quantizer(quantizer, takes_images=row.class_name == "LatentQuantize")
    # Seeded again, so that draws at construction, which differ between the libraries, do not affect later ones.
    seeded(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = torch.Generator().manual_seed(seed)
    single = row.class_name == "VectorQuantize" and "heads" not in row.options(who)
    replaced = []
    for step in range(steps):
        x = train_set[torch.randint(len(train_set), (BATCH,), generator=batches)]
        watched = single and step >= steps - WATCHED
        before = codes_of(quantizer) if watched else None
        output, _, loss, latents = model(x)
        if before is not None:
            tokens = _tokens(quantizer, latents, "use_cosine_sim" in row.options(who))
            replaced.append(replaced_share(before, codes_of(quantizer), tokens))
        (F.mse_loss(output, x) + loss).backward()
        optimizer.step()
        optimizer.zero_grad()
    test_set = images.load(test=True)[0][: 128 if quick else 1024]
    result = evaluate(model, row, test_set)
    if replaced:
        result["replaced"] = sum(replaced) / len(replaced)
    return result


@torch.no_grad()
def _tokens(quantizer: Any, latents: Tensor, cosine: bool) -> Tensor:
    """The latents as the codebook gets them."""
    tokens: Tensor = latents.movedim(1, -1).reshape(-1, DIM)
    tokens = quantizer.project_in(tokens)
    return F.normalize(tokens, dim=-1) if cosine else tokens


@torch.no_grad()
def evaluate(model: Autoencoder, row: Row, test_set: Tensor) -> dict[str, Any]:
    """Error of the images and use of the codes, on images that training has not seen."""
    model.eval()
    error, firsts, lasts = 0.0, [], []
    for x in torch.split(test_set, 256):
        output, indices, _, _ = model(x)
        error += float(F.mse_loss(output, x, reduction="sum"))
        first, last = levels_of(row, indices)
        firsts.append(first.flatten())
        if last is not None:
            lasts.append(last.flatten())
    error /= test_set.numel()
    result = {"error": error, "psnr": psnr(error), **usage(torch.cat(firsts), codes_in(row))}
    if lasts:
        result["use_last"] = usage(torch.cat(lasts), codes_in(row))["use"]
    return result
