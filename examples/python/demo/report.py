"""From a trained model to the figures and sentences of the page."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import figures
import torch
from codes import MARGIN, code_patches
from data import Pictures
from model import DOWNSCALE, VQAutoencoder
from page import Section, write_page
from roundtrip import RoundTrip
from torch import Tensor
from train import History, Quality, to_unit


@dataclass
class Result:
    """All that the page tells of."""

    pictures: Pictures
    model: VQAutoencoder
    history: History
    quality: Quality
    seconds: float
    settings: list[tuple[str, str]]
    sample: Tensor  # (N, C, H, W), uint8: test pictures
    tokens: Tensor  # their tokens
    decoded: Tensor  # and what comes back, in [0, 1]
    patches: Tensor  # (K, C, P, P): what the decoder paints for each code
    cpp: RoundTrip | None

    @property
    def tokens_per_picture(self) -> int:
        return (self.pictures.size // DOWNSCALE) ** 2

    @property
    def bits(self) -> float:
        """Per picture, every token written with as many bits as the codebook needs."""
        return self.tokens_per_picture * math.log2(max(self.model.quantizer.codebook_size, 2))

    @property
    def coded_bits(self) -> float:
        """Per picture, with an entropy coder that knows how frequent the codes are."""
        return self.tokens_per_picture * math.log2(max(self.quality.perplexity, 1))

    @property
    def raw_bits(self) -> int:
        return 8 * self.pictures.channels * self.pictures.size**2


def make_result(
    pictures: Pictures,
    model: VQAutoencoder,
    history: History,
    quality: Quality,
    seconds: float,
    settings: list[tuple[str, str]],
) -> Result:
    """Adds the sample of test pictures that the page shows."""
    sample = pictures.test[: 24 if pictures.size <= 32 else 12]
    with torch.no_grad():
        model.eval()
        tokens = model.encode(to_unit(sample))
        decoded = model.decode(tokens)
        many = torch.cat([model.encode(to_unit(part)) for part in pictures.test[:2000].split(250)])
    patches = code_patches(model, many)
    return Result(
        pictures, model, history, quality, seconds, settings, sample, tokens, decoded, patches, None
    )


def write_report(result: Result, folder: Path) -> Path:
    """Writes figures and page into `folder` and returns the page."""
    page = folder / "index.html"
    lead = (
        f"An autoencoder trained for {result.seconds:.0f} seconds on {result.pictures.name} turns each picture "
        f"into {result.tokens_per_picture} tokens, each one of {result.model.quantizer.codebook_size} codes that "
        f"torchvq.VectorQuantize learnt on the way, and turns these tokens back into the picture."
    )
    sections = [
        reconstructions(result, folder),
        tokens(result, folder),
        codebook(result, folder),
        projection(result, folder),
        usage(result, folder),
        training(result, folder),
        cpp(result, folder),
        settings(result),
    ]
    write_page(page, f"{result.pictures.name} in tokens", lead, tiles(result), sections)
    return page


def tiles(result: Result) -> list[tuple[str, str]]:
    quality = result.quality
    return [
        (f"{quality.psnr:.2f} dB", "PSNR on unseen pictures"),
        (f"{quality.used:.0%}", f"of {len(quality.counts)} codes used"),
        (f"{quality.perplexity:.0f}", "perplexity of the codes"),
        (f"{result.bits:.0f} bits", f"per picture, instead of {result.raw_bits}"),
        (f"{result.raw_bits / result.bits:.0f} : 1", "smaller than the pixels"),
    ]


def reconstructions(result: Result, folder: Path) -> Section:
    rows = [("original", to_unit(result.sample)), ("from tokens", result.decoded)]
    columns = 12 if result.pictures.size <= 32 else 6
    return Section(
        "Originals and reconstructions",
        "Test pictures, which the training has not seen. Below each original, what the decoder makes of its tokens.",
        figures.rows_of_pictures(rows, folder / "reconstructions.png", columns),
        "rows of original pictures, below each its reconstruction",
    )


def tokens(result: Result, folder: Path) -> Section:
    return Section(
        "A picture is a small table of numbers",
        "In the middle, all that is kept: one number for each square of "
        f"{DOWNSCALE} x {DOWNSCALE} pixels, coloured from dark codes to bright ones.",
        figures.token_maps(
            result.patches,
            to_unit(result.sample[:2]),
            result.tokens[:2],
            result.decoded[:2],
            folder / "tokens.png",
        ),
        "two pictures, the numbers of their tokens in a grid, and the pictures decoded from them",
    )


def codebook(result: Result, folder: Path) -> Section:
    return Section(
        "The codebook",
        f"Each of the {len(result.quality.counts)} codes as the decoder paints it: {DOWNSCALE} x {DOWNSCALE} "
        f"pixels of its token and {MARGIN} more on each side, the mean over test pictures. Those that look "
        "alike lie beside each other.",
        figures.codebook(result.patches, folder / "codebook.png"),
        "a grid of small patches, one for each code",
    )


def projection(result: Result, folder: Path) -> Section:
    return Section(
        "Where the codes lie",
        "The code vectors seen from the direction in which they differ most. Large and bright dots are frequent codes; "
        "some codes show their patch.",
        figures.projection(
            result.model.quantizer.codebook,
            result.patches,
            result.quality,
            folder / "projection.png",
        ),
        "scatter plot of the codes in the plane of their principal components",
    )


def usage(result: Result, folder: Path) -> Section:
    quality = result.quality
    unused = int((quality.counts == 0).sum())
    return Section(
        "How often each code is used",
        f"Over {len(result.pictures.test)} test pictures. "
        + (
            "No code is left unused. "
            if unused == 0
            else f"{unused} of {len(quality.counts)} codes do not occur. "
        )
        + f"A coder that knows these frequencies would need {result.coded_bits:.0f} bits for a picture "
        f"instead of {result.bits:.0f}.",
        figures.histogram(quality, folder / "usage.png"),
        "bar chart of the share of each code, sorted",
    )


def training(result: Result, folder: Path) -> Section:
    return Section(
        "The training",
        "The codebook begins as the k-means centres of the first batch and follows the encoder by moving averages; "
        "codes that fall out of use are put back where the data is.",
        figures.training(
            result.history, result.model.quantizer.codebook_size, folder / "training.png"
        ),
        "curves of PSNR, loss, share of codes used and perplexity over the training steps",
    )


def cpp(result: Result, folder: Path) -> Section:
    title = "The same tokens, decoded in C++"
    if result.cpp is None:
        return Section(
            title,
            "Not shown in this run: the C++ example was not built. `make demo` builds it "
            "(or cmake with -DTORCHVQ_BUILD_EXAMPLES=ON), and the next run of this demo will find it.",
        )
    trip = result.cpp
    shown = 12 if result.pictures.size <= 32 else 6
    difference = (trip.pictures - (255 * result.decoded).round() / 255).abs()
    rows = [
        ("Python", result.decoded[:shown]),
        ("C++", trip.pictures[:shown]),
        ("difference", 1 - difference[:shown]),
    ]
    return Section(
        title,
        f"{trip.program} reads tokens, codebook and decoder from one safetensors file and decodes them with "
        "libtorchvq and torch::nn. The third row is white where both agree to the last of 256 shades.",
        figures.rows_of_pictures(rows, folder / "cpp.png", shown),
        "pictures decoded in Python, the same decoded in C++, and their difference",
        table=[
            ("largest difference of a code vector", f"{trip.codes_difference:.3g}"),
            (
                "largest difference of a pixel (0 to 1, before rounding)",
                f"{trip.pictures_difference:.3g}",
            ),
            ("pixels that differ in the files", f"{int((difference > 0).sum())}"),
        ],
        terminal=trip.said,
    )


def settings(result: Result) -> Section:
    return Section(
        "The settings of this run",
        "The same seed and the same number of threads on the same machine give the same numbers.",
        table=result.settings,
    )
