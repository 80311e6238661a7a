"""Kinds of tokens and codes: half precision, cosine, codes that nearly coincide, latents of a trained autoencoder.

The search of torchvq is exact. Where codes are so close that its screening cannot separate them, it has to compute
again; *random codes* is the same search with codes that are far apart.
"""

from __future__ import annotations

from collections.abc import Callable

import checks
import images
import torch
from contenders import faiss_nearest, ours_nearest, plain_nearest, tokens_and_codes, training_step
from harness import OURS, Case, Contender, Settings, compare, write
from torch import Tensor, nn
from torch.nn import functional as F
from vector_quantize_pytorch import VectorQuantize as Reference

import torchvq

SHAPE, QUICK = (4096, 1024, 64), (256, 64, 16)
STEPS, QUICK_STEPS = 300, 3
LATENT = 32
RANDOM = "random codes"


def run(settings: Settings) -> None:
    n, k, d = QUICK if settings.quick else SHAPE
    x, codes = tokens_and_codes(n, k, d)
    cases = []
    found = searches(x, codes, settings.quick).items()
    cases += [search(name, tokens, hard, settings) for name, (tokens, hard) in found]
    for dtype in (torch.bfloat16, torch.float16):
        cases += [half(x.to(dtype), codes.to(dtype), settings)]
    cases += [step(dtype, x, codes, False, settings) for dtype in (torch.bfloat16, torch.float16)]
    cases += [step(torch.float32, x, codes, True, settings), masked_step(x, codes, settings)]
    write("inputs", cases, settings)


def searches(x: Tensor, codes: Tensor, quick: bool) -> dict[str, tuple[Tensor, Tensor]]:
    """Tokens and codes in float32, by kind."""
    return {
        "cosine": (F.normalize(x, dim=-1), F.normalize(codes, dim=-1)),
        **close_codes(x, codes),
        "padding": padded(x, codes),
        "trained": trained(len(x), len(codes), QUICK_STEPS if quick else STEPS),
    }


def close_codes(x: Tensor, codes: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Codes that screening cannot separate."""
    k, d = codes.shape
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(k, d, generator=generator)
    few = codes[: k // 16]
    return {
        "collapsed": (x, codes[:1] + 1e-6 * noise),
        "duplicated": (x, few.repeat(16, 1)),
        "nearly equal": (x, few.repeat(16, 1) * (1 + 1e-6 * noise)),
    }


def padded(x: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """Every third token is zero, among codes most of which training has not reached yet."""
    rows, codes = x.clone(), codes.clone()
    rows[::3] = 0
    codes[len(codes) // 4 :] *= 5e-3
    return rows, codes


def trained(n: int, k: int, steps: int) -> tuple[Tensor, Tensor]:
    """Latents of an autoencoder of image patches after some training, and its learnt codes."""
    torch.manual_seed(0)
    pixels = images.patches(images.load()[0][:2048])
    pixels = (pixels - pixels.mean()) / pixels.std()
    encoder = nn.Sequential(nn.Linear(images.PATCH**2, 128), nn.SiLU(), nn.Linear(128, LATENT))
    decoder = nn.Sequential(nn.Linear(LATENT, 128), nn.SiLU(), nn.Linear(128, images.PATCH**2))
    quantizer = torchvq.VectorQuantize(LATENT, k, decay=0.9, threshold_ema_dead_code=0.1)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], 1e-3)
    for _ in range(steps):
        batch = pixels[torch.randint(len(pixels), (1024,))]
        quantized, _, loss = quantizer(encoder(batch)[None])
        optimizer.zero_grad()
        (F.mse_loss(decoder(quantized)[0], batch) + loss).backward()
        optimizer.step()
    with torch.no_grad():
        return encoder(pixels[:n]).contiguous(), quantizer.codebook.detach().clone()


@torch.no_grad()
def search(name: str, x: Tensor, codes: Tensor, settings: Settings) -> Case:
    random = tokens_and_codes(len(x), *codes.shape)
    contenders = {
        OURS: lambda: ours_nearest(x, codes),
        RANDOM: lambda: ours_nearest(*random),
        "plain torch": lambda: plain_nearest(x, codes),
        "faiss": faiss_nearest(x, codes),
    }
    found = {key: run() for key, run in contenders.items() if key != RANDOM}
    case = _case(
        f"search, {name}",
        x,
        codes,
        contenders,
        settings,
        {"rows_not_exact": checks.nearest(found, x, codes, OURS)},
    )
    case.expect("plain torch", 1.0, "plain torch's search, whatever the codes")
    return case


@torch.no_grad()
def half(x: Tensor, codes: Tensor, settings: Settings) -> Case:
    """A search in the dtype of tokens and codes, exact for the values that they have."""
    wide = x.float(), codes.float()
    found = {OURS: ours_nearest(x, codes)}
    contenders = {
        OURS: lambda: ours_nearest(x, codes),
        "float32": lambda: ours_nearest(*wide),
        "plain torch": lambda: plain_nearest(x, codes),
    }
    checked = {"rows_not_exact": checks.nearest(found, *wide, OURS)}
    return _case(f"search, {_name(x.dtype)}", x, codes, contenders, settings, checked)


def step(dtype: torch.dtype, x: Tensor, codes: Tensor, cosine: bool, settings: Settings) -> Case:
    """A training step of VectorQuantize on such tokens."""
    x, (k, d) = x.to(dtype), codes.shape
    name = "cosine" if cosine else _name(dtype)
    modules: dict[str, nn.Module] = {
        OURS: torchvq.VectorQuantize(d, k, use_cosine_sim=cosine),
        "reference": Reference(dim=d, codebook_size=k, use_cosine_sim=cosine),
    }
    held = F.normalize(codes, dim=-1) if cosine else codes
    for module in modules.values():
        module._codebook.embed.data.copy_(held)
        module._codebook.embed_avg.data.copy_(held)
    calls = {key: training_step(module.train(), x[None]) for key, module in modules.items()}
    found = {key: call()[0] for key, call in calls.items()}
    tokens = F.normalize(x.float(), dim=-1) if cosine else x.float()
    wrong = checks.nearest({OURS: found[OURS]}, tokens, held, OURS)
    return _case(f"training step, {name}", x, codes, calls, settings, {"rows_not_exact": wrong})


def masked_step(x: Tensor, codes: Tensor, settings: Settings) -> Case:
    """A training step of VectorQuantize in which three in ten tokens are padding."""
    mask = torch.rand(1, len(x), generator=torch.Generator().manual_seed(2)) > 0.3
    k, d = codes.shape
    modules: dict[str, nn.Module] = {
        OURS: torchvq.VectorQuantize(d, k),
        "reference": Reference(dim=d, codebook_size=k),
    }
    for module in modules.values():
        module._codebook.embed.data.copy_(codes)
        module._codebook.embed_avg.data.copy_(codes)
    calls = {key: training_step(own.train(), x[None], mask=mask) for key, own in modules.items()}
    found = calls[OURS]()[0][mask]
    calls["reference"]()
    wrong = checks.nearest({OURS: found}, x[mask[0]], codes, OURS)
    return _case("training step, masked", x, codes, calls, settings, {"rows_not_exact": wrong})


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _case(
    name: str,
    x: Tensor,
    codes: Tensor,
    calls: dict[str, Callable[[], object]],
    settings: Settings,
    checked: dict[str, object],
) -> Case:
    n, (k, d) = len(x), codes.shape
    case = Case(
        f"{name}, N={n} K={k} D={d}",
        dict(what=name, N=n, K=k, D=d),
        compare([Contender(key, call) for key, call in calls.items()], settings),
        checked,
    )
    settings.report(case)
    return case
