"""The figures of the page. Colours are Okabe and Ito's and cividis, which colour-blind people can tell apart."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from codes import on_a_grid, principal_components
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.offsetbox import AnnotationBbox, OffsetImage
from numpy.typing import NDArray
from torch import Tensor
from train import History, Quality

BLUE, ORANGE, GREEN, GREY, INK = "#0072B2", "#D55E00", "#009E73", "#8a8f98", "#22262e"
PAPER = (0.66, 0.74, 0.84)  # on which black, grey and white patches show

plt.rcParams.update(
    {
        "font.size": 11,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": "#c4c8cf",
        "axes.titlesize": 12,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "#eceef1",
        "xtick.color": "#5b616b",
        "ytick.color": "#5b616b",
        "legend.frameon": False,
        "savefig.facecolor": "white",
    }
)


def save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, dpi=150, bbox_inches="tight", pad_inches=0.08)
    plt.close(figure)
    return path


def picture(pixels: Tensor) -> NDArray[np.float32]:
    """(C, H, W) in [0, 1] as matplotlib draws it: (H, W, 3)."""
    image = pixels.float().clamp(0, 1).permute(1, 2, 0)
    return image.expand(-1, -1, 3).numpy()


def mosaic(
    pictures: Tensor, columns: int, gap: int = 1, paper: tuple[float, ...] = (1, 1, 1)
) -> NDArray[np.float32]:
    """Pictures (N, C, H, W) side by side, row by row, on paper of that colour."""
    rows = math.ceil(len(pictures) / columns)
    height, width = pictures.shape[-2] + gap, pictures.shape[-1] + gap
    canvas = np.full((rows * height + gap, columns * width + gap, 3), paper, np.float32)
    for place, pixels in enumerate(pictures):
        y, x = gap + place // columns * height, gap + place % columns * width
        canvas[y : y + pictures.shape[-2], x : x + pictures.shape[-1]] = picture(pixels)
    return canvas


def draw(axes: Axes, image: NDArray[np.float32]) -> None:
    axes.imshow(image, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def rows_of_pictures(rows: list[tuple[str, Tensor]], path: Path, columns: int = 12) -> Path:
    """Labelled rows of pictures, one above the other; more than `columns` pictures begin another group of rows."""
    groups = range(0, len(rows[0][1]), columns)
    columns = min(columns, len(rows[0][1]))
    lines = len(groups) * len(rows)
    figure, axes = plt.subplots(
        lines, 1, figsize=(11, 11 / columns * lines * 1.04), squeeze=False, layout="constrained"
    )
    figure.get_layout_engine().set(h_pad=0.02, hspace=0.0)  # type: ignore[union-attr]
    for line, ax in enumerate(axes[:, 0]):
        name, pictures = rows[line % len(rows)]
        part = pictures[groups[line // len(rows)] :][:columns]
        if len(part) < columns:
            part = torch.cat([part, part.new_ones(columns - len(part), *part.shape[1:])])
        draw(ax, mosaic(part, columns, gap=max(part.shape[-1] // 14, 1)))
        ax.set_ylabel(name, rotation=0, ha="right", va="center", labelpad=8, fontsize=11)
    return save(figure, path)


def training(history: History, codebook_size: int, path: Path) -> Path:
    """Error, loss, codes used and perplexity over the steps."""
    figure, axes = plt.subplots(2, 2, figsize=(11, 5.6), sharex=True, layout="constrained")
    (quality, loss), (used, perplexity) = axes
    quality.plot(history.step, history.psnr, color=BLUE, lw=1.8, label="training, last 50 steps")
    quality.plot(
        history.test_step,
        history.test_psnr,
        "o",
        color=ORANGE,
        ms=5,
        label="unseen pictures",
        zorder=3,
    )
    quality.set_title("Reconstruction (PSNR, dB; higher is better)")
    quality.legend(loc="lower right")
    loss.plot(history.step, history.loss, color=BLUE, lw=1.8)
    loss.set_yscale("log")
    loss.set_title("Loss (logarithmic)")
    used.plot(history.step, [100 * value for value in history.used], color=GREEN, lw=1.8)
    used.set_ylim(0, 104)
    used.set_title("Codes used in the last 50 steps (%)")
    perplexity.plot(history.step, history.perplexity, color=GREEN, lw=1.8)
    perplexity.axhline(codebook_size, color=GREY, ls="--", lw=1.2)
    perplexity.annotate(
        f"{codebook_size} codes, all equally often",
        (1, codebook_size),
        xycoords=("axes fraction", "data"),
        xytext=(0, -5),
        textcoords="offset points",
        ha="right",
        va="top",
        fontsize=9.5,
        color="#5b616b",
    )
    perplexity.set_ylim(0, codebook_size * 1.04)
    perplexity.set_title("Perplexity: how many codes share the work")
    for ax in axes[1]:
        ax.set_xlabel("training step")
    return save(figure, path)


def codebook(patches: Tensor, path: Path) -> Path:
    """The patches (K, C, P, P) of all codes, those of similar looks beside each other."""
    columns = min(len(patches), max(round(math.sqrt(2 * len(patches))), 1))
    order = on_a_grid(principal_components(patches.flatten(1))[0], columns)
    image = mosaic(patches[order], columns, gap=1, paper=PAPER)
    figure, ax = plt.subplots(
        figsize=(11, 11 * image.shape[0] / image.shape[1]), layout="constrained"
    )
    draw(ax, image)
    return save(figure, path)


def projection(
    codes: Tensor, patches: Tensor, quality: Quality, path: Path, thumbnails: int = 64
) -> Path:
    """The codes (K, D) in the plane of their two main directions, with the patches of some of them."""
    points, share = principal_components(codes)
    parts = (100 * quality.counts / quality.counts.sum().clamp_min(1)).numpy()
    figure, ax = plt.subplots(figsize=(11, 6.4), layout="constrained")
    dots = ax.scatter(
        *points.T.numpy(),
        s=14 + 150 * parts / max(parts.max(), 1e-9),
        c=parts,
        cmap="cividis",
        lw=0,
    )
    for code in far_apart(points, min(thumbnails, len(points))):
        box = OffsetImage(picture(patches[code]), zoom=2.6, interpolation="nearest")
        edge = {"edgecolor": "#aab0ba", "lw": 0.8}
        at = tuple(points[code].tolist())
        ax.add_artist(AnnotationBbox(box, at, pad=0.12, bboxprops=edge, zorder=3))
    ax.margins(0.06)
    ax.set_xlabel("first principal component of the codes")
    ax.set_ylabel("second")
    ax.set_title(f"{len(points)} codes; this plane holds {share:.0%} of their variance")
    bar = figure.colorbar(dots, ax=ax, pad=0.01, aspect=36)
    bar.set_label("share of the test tokens (%)")
    bar.outline.set_visible(False)  # type: ignore[operator]
    return save(figure, path)


def far_apart(points: Tensor, count: int) -> list[int]:
    """Indices of points none of which is close to another: each is the farthest from those before it."""
    chosen = [int(points.square().sum(1).argmax())]
    nearest = (points - points[chosen[0]]).square().sum(1)
    while len(chosen) < count:
        chosen.append(int(nearest.argmax()))
        nearest = torch.minimum(nearest, (points - points[chosen[-1]]).square().sum(1))
    return chosen


def histogram(quality: Quality, path: Path) -> Path:
    """How often each code occurs on the test pictures, most frequent first."""
    parts = 100 * quality.counts.sort(descending=True).values / quality.counts.sum().clamp_min(1)
    even = 100 / len(parts)
    figure, ax = plt.subplots(figsize=(11, 3.2), layout="constrained")
    ax.bar(np.arange(1, len(parts) + 1), parts.numpy(), width=1.0, color=BLUE, lw=0)
    ax.axhline(even, color=ORANGE, ls="--", lw=1.4)
    ax.annotate(
        f"even use: {even:.2g} %",
        (1, even),
        xycoords=("axes fraction", "data"),
        xytext=(0, 4),
        textcoords="offset points",
        ha="right",
        color=ORANGE,
    )
    ax.set_xlim(0.5, len(parts) + 0.5)
    ax.set_xlabel("codes, the most frequent first")
    ax.set_ylabel("share of tokens (%)")
    return save(figure, path)


def token_maps(
    patches: Tensor, originals: Tensor, tokens: Tensor, decoded: Tensor, path: Path
) -> Path:
    """Pictures, the tokens they become, coloured from dark to bright codes, and what comes back."""
    order = patches.flatten(1).mean(1).argsort().argsort()
    tint = plt.get_cmap("cividis")(order.numpy() / max(len(order) - 1, 1))
    figure, axes = plt.subplots(
        len(tokens), 3, figsize=(11, 3.75 * len(tokens)), squeeze=False, layout="constrained"
    )
    for row, (original, codes, image) in enumerate(zip(originals, tokens, decoded, strict=True)):
        draw(axes[row, 0], picture(original))
        draw(axes[row, 1], tint[codes.numpy()][..., :3])
        draw(axes[row, 2], picture(image))
        label_tokens(axes[row, 1], codes, tint)
    side = " x ".join(map(str, tokens.shape[1:]))
    pixels = " x ".join(map(str, originals.shape[-2:]))
    titles = (f"original, {pixels} pixels", f"its {side} tokens", "decoded from the tokens")
    for ax, title in zip(axes[0], titles, strict=True):
        ax.set_title(title, loc="center")
    return save(figure, path)


def label_tokens(ax: Axes, codes: Tensor, tint: NDArray[np.float64]) -> None:
    """Writes the numbers of the codes into their cells, where there is room for them."""
    if max(codes.shape) > 10:
        return
    for (y, x), code in np.ndenumerate(codes.numpy()):
        dark = tint[code][:3] @ (0.3, 0.59, 0.11) < 0.5
        ax.text(
            x, y, str(code), ha="center", va="center", fontsize=8, color="white" if dark else INK
        )
