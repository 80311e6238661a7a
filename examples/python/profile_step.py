"""Where a training step's time goes: encoder, quantizer, collectives, casts, backward, optimizer.

    python examples/python/profile_step.py
    torchrun --nproc-per-node 2 examples/python/profile_step.py --bf16 --trace trace.json

Every event of the profiler counts with the time that none of its children has, and belongs to the innermost of the
parts that it lies in, so the shares add up to 1.
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # a first import while there is a group would keep the group alive
from torch import Tensor, nn
from torch.autograd.profiler_util import FunctionEvent
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function

import torchvq

# Beginnings of names; the first that fits tells the part. Scopes of this file are "step/<part>".
PARTS: dict[str, tuple[str, ...]] = {
    "encoder and decoder": ("step/encoder", "step/decoder"),
    "quantizer: search": ("step/quantizer", "torchvq::residual_encode", "torchvq::nearest_code"),
    "quantizer: statistics and update": (
        "torchvq::code_statistics",
        "torchvq::synced_",
        "torchvq::sync_",
        "torchvq::ema_",
        "torchvq::replace_",
        "torchvq::count_codes_",
        "torchvq::code_exponents",
        "torchvq::advance_rng_",
        "torchvq::handshake_",
    ),
    "losses": ("step/losses", "torchvq::commitment_loss"),
    "collectives": ("c10d::", "gloo:", "nccl:", "record_param_comms", "torchvq::collective"),
    "casts": ("aten::to", "aten::_to_copy"),
    "backward": ("step/backward",),
    "optimizer": ("step/optimizer",),
    "rest": (),
}


class Autoencoder(nn.Module):
    """Latents of images through a residual stack and back."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        dim = options.dim
        self.encoder = nn.Sequential(
            nn.Conv2d(3, dim, 4, stride=4), nn.GELU(), nn.Conv2d(dim, dim, 3, padding=1)
        )
        self.quantizer = torchvq.ResidualVQ(
            dim=dim,
            num_quantizers=options.levels,
            codebook_size=options.codes,
            accept_image_fmap=True,
        )
        self.decoder = nn.Sequential(
            nn.Conv2d(dim, dim, 3, padding=1), nn.GELU(), nn.ConvTranspose2d(dim, 3, 4, stride=4)
        )

    def forward(self, images: Tensor) -> Tensor:
        with record_function("step/encoder"):
            latents = self.encoder(images)
        with record_function("step/quantizer"):
            quantized, _, losses = self.quantizer(latents)
        with record_function("step/decoder"):
            decoded = self.decoder(quantized)
        with record_function("step/losses"):
            return nn.functional.mse_loss(decoded.float(), images) + losses.sum()


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, bf16: bool
) -> None:
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        loss = model(images)
    with record_function("step/backward"):
        loss.backward()
    with record_function("step/optimizer"):
        optimizer.step()
        optimizer.zero_grad()


def part_of(event: FunctionEvent) -> str:
    """The innermost part that an event lies in."""
    inner: FunctionEvent | None = event
    while inner is not None:
        for part, beginnings in PARTS.items():
            if beginnings and inner.name.startswith(beginnings):
                return part
        inner = inner.cpu_parent
    return "rest"


def shares(events: list[FunctionEvent]) -> dict[str, float]:
    """The share of each part in the time of all events."""
    times: dict[str, float] = defaultdict(float)
    for event in events:
        times[part_of(event)] += event.self_cpu_time_total
    total = sum(times.values())
    return {part: times[part] / total for part in PARTS}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, value, text in (
        ("steps", 10, "profiled steps, after two that are not"),
        ("batch", 8, "images of a rank"),
        ("size", 64, "of an image, a multiple of 4"),
        ("dim", 64, "features of a latent"),
        ("levels", 8, "of the residual stack"),
        ("codes", 1024, "of a level"),
    ):
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{text} (default {value})")
    parser.add_argument("--bf16", action="store_true", help="under autocast to bfloat16")
    parser.add_argument("--trace", help="file for a trace that chrome://tracing and Perfetto show")
    return parser.parse_args()


def profile_steps(options: argparse.Namespace, ranks: int) -> None:
    torch.manual_seed(0)
    model: Any = Autoencoder(options)
    if ranks > 1:
        model = DistributedDataParallel(model, broadcast_buffers=False)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    torch.manual_seed(int(os.environ.get("RANK", "0")))
    images = torch.randn(options.batch, 3, options.size, options.size)
    for _ in range(2):
        train_step(model, optimizer, images, options.bf16)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(options.steps):
            train_step(model, optimizer, images, options.bf16)
    if ranks == 1 or dist.get_rank() == 0:
        print(f"| part of a step, {ranks} rank{'s' if ranks > 1 else ''} | share |\n|---|---:|")
        for part, share in shares(list(profiler.events())).items():
            print(f"| {part} | {100 * share:.1f} % |")
        if options.trace:
            profiler.export_chrome_trace(options.trace)


def main() -> None:
    options = parse()
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("gloo")
    profile_steps(options, ranks)
    if ranks > 1:
        # Ends Gloo's threads, because DistributedDataParallel, which refers to the group, is gone.
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
