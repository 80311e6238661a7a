"""Trains a tokenizer of signals and packages its two halves, to be served from C++ (examples/cpp/serve.cpp).

python examples/python/export_tokenizer.py --quantizer residual_vq --output tokenizer

writes `encode.pt2` (frames to tokens), `decode.pt2` (tokens to frames) and `frames.npy`, something to encode.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import torchvq

FRAME, DIM = 32, 8  # samples of a frame, features of what is quantized
QUANTIZERS = {
    "residual_vq": lambda: torchvq.ResidualVQ(
        dim=DIM, num_quantizers=3, codebook_size=64, kmeans_init=True
    ),
    "fsq": lambda: torchvq.FSQ(levels=[8, 5, 5, 5], dim=DIM),
    "lfq": lambda: torchvq.LFQ(codebook_size=1024, dim=DIM, commitment_loss_weight=0.25),
}


class Encode(nn.Module):
    """Frames (B, N, FRAME) to tokens (B, N) or (B, N, Q)."""

    def __init__(self, encoder: nn.Module, quantizer: nn.Module) -> None:
        super().__init__()
        self.encoder, self.quantizer = encoder, quantizer

    def forward(self, frames: Tensor) -> Tensor:
        return self.quantizer(self.encoder(frames))[1]


class Decode(nn.Module):
    """Tokens to frames."""

    def __init__(self, quantizer: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        self.quantizer, self.decoder = quantizer, decoder

    def forward(self, tokens: Tensor) -> Tensor:
        stack = isinstance(self.quantizer, torchvq.ResidualVQ)
        of = self.quantizer.get_output_from_indices if stack else self.quantizer.indices_to_codes
        return self.decoder(of(tokens))


def signals(count: int, seed: int) -> Tensor:
    """Frames (count, 64, FRAME) of decaying tones."""
    generator = torch.Generator().manual_seed(seed)
    frequency, decay = torch.rand(2, count, 1, generator=generator)
    time = torch.arange(64 * FRAME) / FRAME
    tone = torch.sin(2 * torch.pi * (0.5 + 3 * frequency) * time) * torch.exp(-decay * time / 16)
    return tone.view(count, 64, FRAME)


def train(kind: str, steps: int) -> tuple[Encode, Decode]:
    """Both halves of an autoencoder around the quantizer, in evaluation."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(FRAME, 64), nn.ReLU(), nn.Linear(64, DIM))
    decoder = nn.Sequential(nn.Linear(DIM, 64), nn.ReLU(), nn.Linear(64, FRAME))
    model = nn.ModuleList([encoder, QUANTIZERS[kind](), decoder])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(steps):
        frames = signals(16, seed=step)
        quantized, _, *losses = model[1](encoder(frames))
        error = (decoder(quantized) - frames).square().mean()
        (error + sum(loss.sum() for loss in losses)).backward()
        optimizer.step()
        optimizer.zero_grad()
    if steps:
        print(f"{kind}: squared error {error:.4f} of {frames.square().mean():.4f}")
    model.eval()
    return Encode(encoder, model[1]), Decode(model[1], decoder)


def package(model: nn.Module, example: Tensor, path: Path) -> None:
    """Compiles a model ahead of time; batch and length of its input stay free."""
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    with torch.no_grad():
        program = torch.export.export(model, (example,), dynamic_shapes=(free,))
        torch._inductor.aoti_compile_and_package(
            program,
            package_path=str(path),
            # Or the checks of inputs, which the program turns on, refuse a batch of one.
            inductor_configs={"aot_inductor.check_lowerbound": False},
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quantizer", choices=list(QUANTIZERS), default="residual_vq")
    parser.add_argument("--steps", type=int, default=300, help="training steps")
    parser.add_argument("--output", type=Path, default=Path("tokenizer"), help="folder")
    options = parser.parse_args()

    encode, decode = train(options.quantizer, options.steps)
    options.output.mkdir(parents=True, exist_ok=True)
    frames = signals(4, seed=-1)
    package(encode, frames, options.output / "encode.pt2")
    package(decode, encode(frames), options.output / "decode.pt2")
    np.save(options.output / "frames.npy", frames.numpy())
    print(f"wrote encode.pt2, decode.pt2 and frames.npy to {options.output}")


if __name__ == "__main__":
    main()
