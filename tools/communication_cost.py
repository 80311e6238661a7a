"""The cost model of docs/distributed.md: bytes that a training step sends on any number of ranks, as table and picture.

    python tools/communication_cost.py                      the table
    python tools/communication_cost.py --draw FILE.svg      the picture, up to 10,000 ranks
    python tools/communication_cost.py --delay 1e-3 --bandwidth 125e6 --ranks 64 --codes 8192 --dim 64 --levels 4

tests/distributed/test_cost_model.py compares the bytes with those that the engine sends.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

RANKS = (2, 8, 64, 512, 4096, 10000)
# The limit of reduction="float": up to here, counts in limbs of 12 bits are exact.
FLOAT_RANKS = 4096

WORD = 8
HEADER_WORDS = 8
COUNT_LIMBS, WORD_LIMBS = 3, 6
OFFER_SHARE, OFFER_BYTES = 8, 8192


@dataclass(frozen=True)
class Step:
    """A training step of all codebooks of a module: ``levels`` of them, over all groups."""

    codes: int
    dim: int
    levels: int = 1
    heads: int = 1
    ranks: int = 2
    exact: bool = True
    wide: bool = False  # float64 tokens
    replaces: bool = False  # dead codes
    every: int = 1  # steps that share a message

    @property
    def number(self) -> int:
        """Bytes of a floating-point number in the message."""
        return 8 if self.wide else 4

    @property
    def statistics(self) -> int:
        """Bytes of the counts and sums of one codebook."""
        rows = self.heads * self.codes
        if self.exact:
            return rows * WORD * (1 + (2 if self.wide else 1) * self.dim)
        return rows * self.number * (COUNT_LIMBS + self.dim)

    @property
    def word(self) -> int:
        """Bytes that an int64 takes in the message."""
        return WORD if self.exact else WORD_LIMBS * self.number

    @property
    def offered(self) -> int:
        """Candidates for dead codes that each rank sends along, per codebook."""
        if not self.replaces:
            return 0
        room = max(self.statistics // OFFER_SHARE, OFFER_BYTES)
        row = 1 + _words(self.dim * self.number)
        return min(self.codes, room // (self.ranks * self.heads * self.word * row))

    @property
    def message(self) -> int:
        """Bytes of the all-reduce: the same on all ranks, and no more if several steps share it."""
        header = HEADER_WORDS * (WORD if self.exact else COUNT_LIMBS * self.number)
        candidates = self.heads * self.offered
        words = candidates + _words(candidates * self.dim * self.number)
        return header + self.levels * (self.statistics + self.ranks * words * self.word)

    @property
    def gathered(self) -> int:
        """Bytes of a rank in the second message, which sends all candidates if every codebook has too few."""
        return self.levels * self.heads * self.codes * (WORD + self.dim * self.number)


def _words(size: int) -> int:
    return -(-size // WORD)


class Cost(NamedTuple):
    """Messages of a rank in a collective, one after the other, and the bytes that it sends."""

    messages: int
    sent: float  # bytes

    def seconds(self, delay: float, bandwidth: float, every: int = 1) -> float:
        """Seconds per step, if `every` steps share the message."""
        return (self.messages * delay + self.sent / bandwidth) / every


def ring(size: int, ranks: int) -> Cost:
    """An all-reduce around a ring: every rank passes each of its parts on, twice around."""
    return Cost(2 * (ranks - 1), 2 * size * (ranks - 1) / ranks)


def tree(size: int, ranks: int) -> Cost:
    """An all-reduce up and down a tree: the whole message twice, in as many steps as the tree is high."""
    return Cost(2 * math.ceil(math.log2(ranks)), 2 * size)


ALGORITHMS: dict[str, Callable[[int, int], Cost]] = {"ring": ring, "tree": tree}
EXAMPLE = Step(codes=1024, dim=128, levels=8, replaces=True)


def table(step: Step = EXAMPLE, ranks: Iterable[int] = RANKS) -> str:
    names = ["ranks", "message, exact", "float", "candidates of a rank"]
    names += ["ring: messages", "tree: messages", "ring: sent", "tree: sent"]
    lines = ["| " + " | ".join(names) + " |\n", "|---:" * 8 + "|\n"]
    for count in ranks:
        exact = replace(step, ranks=count)
        shortened = _mib(replace(exact, exact=False).message) if count <= FLOAT_RANKS else "-"
        around, upward = ring(exact.message, count), tree(exact.message, count)
        cells = [
            *[f"{count:,}", _mib(exact.message), shortened, f"{exact.offered}"],
            *[f"{around.messages:,}", f"{upward.messages}", _mib(around.sent), _mib(upward.sent)],
        ]
        lines.append("| " + " | ".join(cells) + " |\n")
    return "".join(lines)


def _mib(size: float) -> str:
    return f"{size / 2**20:.2f} MiB"


def draw(path: Path, step: Step = EXAMPLE, delay: float = 50e-6, bandwidth: float = 1.25e9) -> None:
    """Predicted seconds of the collective over the number of ranks."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "torchvq", "svg.fonttype": "none", "font.size": 9})
    import matplotlib.pyplot as plt

    counts = sorted({round(2 * 5000 ** (i / 60)) for i in range(61)})
    figure, axes = plt.subplots(figsize=(6.5, 3.6))
    for exact, dashes in [(True, "-"), (False, "--")]:
        for name, algorithm in ALGORITHMS.items():
            ranks = [count for count in counts if exact or count <= FLOAT_RANKS]
            sizes = [replace(step, ranks=count, exact=exact).message for count in ranks]
            seconds = [
                algorithm(size, count).seconds(delay, bandwidth)
                for size, count in zip(sizes, ranks, strict=True)
            ]
            label = f"{name}, {'exact' if exact else 'float'}"
            axes.loglog(ranks, [1e3 * s for s in seconds], dashes, label=label)
    every = 8
    sizes = [replace(step, ranks=count).message for count in counts]
    shared = [
        ring(size, count).seconds(delay, bandwidth, every)
        for size, count in zip(sizes, counts, strict=True)
    ]
    axes.loglog(counts, [1e3 * s for s in shared], ":", label=f"ring, exact, sync_every={every}")
    axes.set_xlabel("ranks")
    axes.set_ylabel("predicted ms of the all-reduce, per step")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--draw", type=Path)
    parser.add_argument("--ranks", type=int, nargs="*", default=RANKS)
    parser.add_argument("--delay", type=float, default=50e-6, help="seconds of a message")
    parser.add_argument("--bandwidth", type=float, default=1.25e9, help="bytes a second")
    for name in ("codes", "dim", "levels", "every"):
        parser.add_argument(f"--{name}", type=int, default=getattr(EXAMPLE, name))
    given = parser.parse_args()
    step = replace(
        EXAMPLE, codes=given.codes, dim=given.dim, levels=given.levels, every=given.every
    )
    print(table(step, given.ranks), end="")
    for count in given.ranks:
        size = replace(step, ranks=count).message
        costs = {name: of(size, count) for name, of in ALGORITHMS.items()}
        text = ", ".join(
            f"{name} {1e3 * cost.seconds(given.delay, given.bandwidth, step.every):.2f} ms"
            for name, cost in costs.items()
        )
        print(f"{count} ranks, predicted for a step: {text}")
    if given.draw is not None:
        draw(given.draw, step, given.delay, given.bandwidth)


if __name__ == "__main__":
    main()
