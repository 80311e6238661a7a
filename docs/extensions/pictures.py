"""A picture of each class, drawn by the class itself: two features, its codes, and the region of each.

`python docs/extensions/pictures.py FOLDER` draws them all; a build of the site does so where they are older.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from docutils import nodes
from sphinx.util.docutils import SphinxDirective
from torch import Tensor, nn

import torchvq

matplotlib.use("svg")
# The same file from the same picture; text as text.
matplotlib.rcParams.update({"svg.hashsalt": "torchvq", "svg.fonttype": "none", "font.size": 9})
import matplotlib.pyplot as plt  # noqa: E402

FOLDER = "pictures"
CODE, TOKEN, PALE = "#b0123b", "#33415c", "#8d99ae"
SIDE, EDGE = 150, 2.2
Draw = Callable[[Any], None]


def tokens(count: int = 300) -> Tensor:
    """Three quarters of a ring, and a cluster inside it: (1, count, 2)."""
    generator = torch.Generator().manual_seed(3)
    angle = torch.rand(count, generator=generator) * 4.7
    ring = torch.stack([angle.cos(), angle.sin()], -1) * 1.4
    inside = torch.arange(count)[:, None] < count // 4
    points = torch.where(inside, torch.tensor([0.35, -0.35]), ring)
    return (points + 0.17 * torch.randn(count, 2, generator=generator))[None]


def grid() -> Tensor:
    """The tokens of a picture's pixels, (1, SIDE * SIDE, 2)."""
    line = torch.linspace(-EDGE, EDGE, SIDE)
    return torch.stack(torch.meshgrid(line, line, indexing="xy"), -1).reshape(1, -1, 2)


def train(module: nn.Module, steps: int = 60, rate: float = 0.0) -> nn.Module:
    """Steps on the tokens; parameters, where there are any to learn, by Adam. In evaluation afterwards."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(parameters, rate) if rate and parameters else None
    for _ in range(steps):
        loss = module(tokens())[2].sum()
        if optimizer:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return module.eval()


def show_tokens(axes: Any) -> None:
    x, y = tokens()[0].T
    axes.scatter(x, y, s=2, color=TOKEN, alpha=0.5, linewidths=0)


def show_regions(axes: Any, indices: Tensor) -> None:
    """A pale colour for each index of the grid's tokens, (SIDE * SIDE,) or with a level's index on the last axis."""
    flat = indices.reshape(SIDE * SIDE, -1)
    _, names = torch.unique(flat, dim=0, return_inverse=True)
    colours = np.random.default_rng(4).uniform(0.72, 1.0, (int(names.max()) + 1, 3))
    pixels = colours[names.reshape(SIDE, SIDE).numpy()]
    axes.imshow(pixels, origin="lower", extent=(-EDGE, EDGE, -EDGE, EDGE), interpolation="nearest")


def show_codes(axes: Any, codes: Tensor, size: float = 26, color: str = CODE) -> None:
    x, y = codes.detach().reshape(-1, 2).T
    axes.scatter(x, y, s=size, color=color, edgecolors="white", linewidths=0.7, zorder=3)


@torch.no_grad()
def quantized(module: nn.Module, axes: Any, size: float = 26) -> None:
    """Regions and codes as the module's own output says."""
    output, indices, *_ = module(grid())
    groups = indices.shape[0] if indices.dim() == 4 else 1
    if groups > 1:
        indices = indices.movedim(0, -2).flatten(-2)
    show_regions(axes, indices[0])
    show_tokens(axes)
    show_codes(axes, torch.unique(output[0].round(decimals=4), dim=0), size)


def vector_quantize(axes: Any) -> None:
    """24 codes, learnt by moving averages, and which latents become which."""
    quantized(train(torchvq.VectorQuantize(2, 24, kmeans_init=True)), axes)


def residual_vq(axes: Any) -> None:
    """6 codes (large), and 5 more that are added to each (small)."""
    stack = train(torchvq.ResidualVQ(dim=2, codebook_size=[6, 5], kmeans_init=True))
    quantized(stack, axes, 10)
    show_codes(axes, stack.layers[0].codebook, 60)


def grouped_residual_vq(axes: Any) -> None:
    """A codebook for each feature: every pair of codes is a code of both."""
    quantized(
        train(
            torchvq.GroupedResidualVQ(
                dim=2, groups=2, num_quantizers=1, codebook_size=6, kmeans_init=True
            )
        ),
        axes,
    )


def sim_vq(axes: Any) -> None:
    """24 frozen codes (grey), and where the learnt transform puts them."""
    torch.manual_seed(2)
    module = torchvq.SimVQ(2, 24, codebook_transform=nn.Sequential(
        nn.Linear(2, 32), nn.SiLU(), nn.Linear(32, 2)))  # fmt: skip
    train(module, 400, 0.01)
    quantized(module, axes)
    show_codes(axes, module.frozen_codebook, 12, PALE)
    for start, end in zip(module.frozen_codebook, module.codebook.detach(), strict=True):
        axes.plot(*torch.stack([start, end]).T, color=PALE, linewidth=0.6)


def residual_sim_vq(axes: Any) -> None:
    """Two levels of 6 frozen codes, each behind a transform of its own."""
    torch.manual_seed(1)
    stack = train(torchvq.ResidualSimVQ(dim=2, num_quantizers=2, codebook_size=6), 400, 0.02)
    quantized(stack, axes, 10)
    show_codes(axes, stack.layers[0].codebook, 60)


def fsq(axes: Any) -> None:
    """6 and 5 levels, bounded by tanh: the outer ones are wider."""
    quantized(torchvq.FSQ([6, 5]).eval(), axes)


def residual_fsq(axes: Any) -> None:
    """Two quantizers of 3 x 3 levels; the second divides what the first has left."""
    stack = torchvq.ResidualFSQ(levels=[3, 3], num_quantizers=2, dim=2).eval()
    quantized(stack, axes, 10)


def grouped_residual_fsq(axes: Any) -> None:
    """Each feature with a stack of its own: 4 levels, then 4 more."""
    quantized(
        torchvq.GroupedResidualFSQ(dim=2, groups=2, levels=[4], num_quantizers=2).eval(), axes, 10
    )


def lfq(axes: Any) -> None:
    """Two signs, four codes: no codebook is searched."""
    quantized(torchvq.LFQ(dim=2, codebook_size=4, commitment_loss_weight=0.25).eval(), axes)


def residual_lfq(axes: Any) -> None:
    """Three levels of two signs, each half as long as the one before."""
    quantized(
        torchvq.ResidualLFQ(
            dim=2, codebook_size=4, num_quantizers=3, commitment_loss_weight=0.25
        ).eval(),
        axes,
        10,
    )


def grouped_residual_lfq(axes: Any) -> None:
    """Each feature with a stack of its own: a sign, and one of half its length."""
    quantized(
        torchvq.GroupedResidualLFQ(
            dim=2, groups=2, codebook_size=2, num_quantizers=2, commitment_loss_weight=0.25
        ).eval(),
        axes,
        10,
    )


def evo_lfq(axes: Any) -> None:
    """Codes of 16 bits, one a row, after 0, 5 and 20 generations that were selected for their ones."""
    torch.manual_seed(0)
    module = torchvq.EvoLFQ(
        nn.Identity(), nn.Identity(), dim=16, codebook_size=2**16, pop_size=20,
        commitment_loss_weight=0.25,
    ).eval()  # fmt: skip
    bits = module.init_random_population(20)
    history = [bits]
    ones = lambda decoded, bits: bits.float().sum(-1)  # noqa: E731
    history += [result.pop_bits for result in module.evolve(ones, bits, generations=20)]
    rows = [history[generation].float() for generation in (0, 5, 20)]
    gap = torch.full((20, 2), 0.5)
    picture = torch.cat([rows[0], gap, rows[1], gap, rows[2]], 1)
    axes.imshow(picture, cmap="RdGy_r", vmin=-0.6, vmax=1.6, interpolation="nearest")


def fsp(axes: Any) -> None:
    """In training latents become noise around them (grey); in evaluation the centre of their region."""
    module = torchvq.FSP([6, 5])
    noisy = module(tokens())[0].detach()[0]
    quantized(module.eval(), axes)
    axes.scatter(*noisy.T, s=2, color=PALE, linewidths=0, zorder=2)


def latent_quantize(axes: Any) -> None:
    """6 and 5 values, each feature's own, which have moved to the latents."""
    module = torchvq.LatentQuantize([6, 5], 2, quantization_loss_weight=1.0, channel_first=False)
    quantized(train(module, 300, 0.02), axes)


def binary_mapper(axes: Any) -> None:
    """Three logits give each of eight codes a probability; one of them is drawn, or the likeliest taken."""
    logits = torch.tensor([[1.1, -0.4, 0.8]])
    indices = torch.arange(8)
    bits = indices[:, None].bitwise_right_shift(torch.arange(3)).bitwise_and(1)
    p = torch.where(bits == 1, logits.sigmoid(), (-logits).sigmoid()).prod(-1)
    chosen = torchvq.BinaryMapper(3).eval()(logits, return_indices=True).indices.item()
    axes.bar(indices, p, color=[CODE if i == chosen else PALE for i in range(8)])
    axes.set_xticks(range(8), [f"{i:03b}" for i in range(8)])
    axes.set_aspect(8 / 0.4)


def hierarchical_vq(axes: Any) -> None:
    """The sum of the scales 1, 2, 4 and 8, and the map that they quantize."""
    torch.manual_seed(0)
    line = torch.linspace(-1, 1, 16)
    y, x = torch.meshgrid(line, line, indexing="ij")
    maps = torch.stack([(x - a).square().add((y - b).square()).mul(-4).exp()
                        for a in (-0.5, 0.0, 0.5) for b in (-0.4, 0.4)])[:, None]  # fmt: skip
    maps = maps + 0.4 * (x > 0)
    module = torchvq.HierarchicalVQ(dim=1, codebook_size=64, scales=(1, 2, 4, 8),
                                    accept_image_fmap=True, quant_resi=0.0)  # fmt: skip
    for _ in range(30):
        module(maps)
    _, indices, _ = module.eval()(maps)
    shown = []
    for count in range(1, 5):
        kept = [i if at < count else torch.full_like(i, -1) for at, i in enumerate(indices)]
        shown.append(module.get_output_from_indices(kept, (16, 16))[0, 0].detach())
    gap = torch.full((16, 2), float("nan"))
    parts = [part for picture in [*shown, maps[0, 0]] for part in (picture, gap)][:-1]
    axes.imshow(torch.cat(parts, 1), cmap="magma", interpolation="nearest")


def random_projection_quantizer(axes: Any) -> None:
    """A frozen random projection, and 8 frozen codes that are compared by direction."""
    torch.manual_seed(5)
    module = torchvq.RandomProjectionQuantizer(
        dim=2, codebook_size=8, codebook_dim=2, norm=False
    ).eval()
    show_regions(axes, module(grid())[0])
    show_tokens(axes)


def sequential(axes: Any) -> None:
    """Any modules around one quantizer, whose indices and loss come back with the output."""
    names = ["Linear", "VectorQuantize", "Linear"]
    for place, name in enumerate(names):
        color = CODE if name == "VectorQuantize" else TOKEN
        axes.text(
            0, 0.8 * (2 - place), name, ha="center", va="center", color="white",
            bbox=dict(boxstyle="round,pad=0.6", facecolor=color, edgecolor="none"),
        )  # fmt: skip
    arrow = dict(arrowstyle="->", color=TOKEN)
    for start, end in ((2.4, 2.1), (1.9, 1.1), (0.9, 0.1), (-0.1, -0.4)):
        axes.annotate("", (0, end - 0.2), (0, start - 0.2), arrowprops=arrow, zorder=0)
    axes.annotate("", (1.3, 0.8), (0.5, 0.8), arrowprops=arrow)
    axes.text(1.35, 0.8, "indices,\nloss", va="center")
    axes.set_xlim(-1, 2.2)
    axes.set_ylim(-0.7, 2.4)


PICTURES: dict[str, Draw] = {
    draw.__name__: draw
    for draw in (
        vector_quantize, residual_vq, grouped_residual_vq, sim_vq, residual_sim_vq, fsq, residual_fsq,
        grouped_residual_fsq, lfq, residual_lfq, grouped_residual_lfq, evo_lfq, fsp, latent_quantize,
        binary_mapper, hierarchical_vq, random_projection_quantizer, sequential,
    )
}  # fmt: skip


def draw(name: str, file: Path) -> None:
    """One of them, as SVG."""
    torch.manual_seed(0)
    figure, axes = plt.subplots(figsize=(3.4, 3.4))
    PICTURES[name](axes)
    if axes.get_images():
        # What lies outside of the regions, as a code that nobody chose may, is cut off.
        axes.set(xticks=[], yticks=[], xlim=axes.get_images()[0].get_extent()[:2])
        axes.set_ylim(axes.get_images()[0].get_extent()[2:])
    if name == "sequential":
        axes.axis("off")
    for side in axes.spines.values():
        side.set_visible(False)
    figure.savefig(file, bbox_inches="tight", transparent=True, metadata={"Date": None})
    plt.close(figure)


def draw_all(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in PICTURES:
        draw(name, folder / f"{name}.svg")


def _drawn(app: Any) -> None:
    folder = Path(app.srcdir) / FOLDER
    newest = Path(__file__).stat().st_mtime
    files = [folder / f"{name}.svg" for name in PICTURES]
    if not all(file.exists() and file.stat().st_mtime > newest for file in files):
        draw_all(folder)


class PictureDirective(SphinxDirective):
    """`picture` with the name of one: the picture, and below it what its function says."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        says = " ".join((PICTURES[name].__doc__ or "").split())
        figure = f"```{{figure}} /{FOLDER}/{name}.svg\n:alt: codes of {name}\n:width: 300px\n"
        return self.parse_text_to_nodes(f"{figure}\n{says}\n```\n")


def setup(app: Any) -> dict[str, Any]:
    app.add_directive("picture", PictureDirective)
    app.connect("builder-inited", _drawn)
    return {"version": "1", "parallel_read_safe": True}


if __name__ == "__main__":
    draw_all(Path(sys.argv[1]))
