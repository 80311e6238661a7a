"""Every deliberate difference from ``vector_quantize_pytorch``, read from ``differences.txt``."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from torchvq.migrate._touches import TOUCHES

_FILE = Path(__file__).with_name("differences.txt")
_HEAD = "| situation | vector-quantize-pytorch | torchvq | switch |\n|---|---|---|---|"
# Differences of a level that also hold for its stack.
_LEVELS = {"ResidualVQ": "VectorQuantize", "GroupedResidualVQ": "VectorQuantize"}
_OF_LEVELS = {
    "unused-codes",
    "rotation-near-zero",
    "diversity-loss",
    "dead-codes",
    "orthogonal-ema",
    "mixed-gradient",
}


@dataclass(frozen=True)
class Difference:
    """A line of docs/migrating.md.

    Attributes:
        key: its name, the same in reports and tests.
        situation, theirs, ours: what the page says.
        switch: "yes" where ``vqp_compat=True`` brings the old numbers back, or "no: " and the reason.
    """

    key: str
    situation: str
    theirs: str
    ours: str
    switch: str

    @property
    def restored(self) -> bool:
        """Whether the switch brings the old numbers back."""
        return self.switch == "yes"

    def as_text(self) -> str:
        """The row of the page."""
        return f"| {self.situation} | {self.theirs} | {self.ours} | {self.switch} |"


@dataclass(frozen=True)
class Section:
    """The differences of a group of classes."""

    title: str
    classes: tuple[str, ...]
    lines: tuple[Difference, ...]
    remark: str

    def as_text(self) -> str:
        """The section of the page."""
        table = "\n".join([_HEAD, *(line.as_text() for line in self.lines)])
        return "\n\n".join(filter(None, [f"## {self.title}", table, self.remark])) + "\n"


@cache
def sections() -> tuple[Section, ...]:
    """All differences, in the order of the page."""
    blocks = _FILE.read_text(encoding="utf-8").split("\n## ")[1:]
    return tuple(_section(block) for block in blocks)


def lines_of(name: str) -> tuple[Difference, ...]:
    """The differences of a class, those of its levels included."""
    found = [line for section in sections() if name in section.classes for line in section.lines]
    if name in _LEVELS:
        found += [line for line in lines_of(_LEVELS[name]) if line.key in _OF_LEVELS]
    return tuple(found)


def touching(name: str, options: Mapping[str, Any]) -> tuple[list[Difference], list[Difference]]:
    """The differences that touch a class with these options (all of them), and those that may by how it is called."""
    certain, possible = [], []
    for line in lines_of(name):
        touches = TOUCHES.get(line.key)
        if touches is None:
            possible.append(line)
        elif touches(options):
            certain.append(line)
    return certain, possible


def as_text() -> str:
    """The tables of docs/migrating.md."""
    return "\n".join(section.as_text() for section in sections())


def _section(block: str) -> Section:
    title, classes, *rest = block.strip().splitlines()
    names = tuple(name.strip() for name in classes.strip("[]").split(","))
    remark = "\n".join(line[2:] for line in rest if line.startswith("> "))
    return Section(title, names, tuple(_lines(rest)), remark)


def _lines(rows: list[str]) -> Iterator[Difference]:
    for row in rows:
        if not row.startswith("> "):
            yield Difference(*(cell.strip() for cell in row.split(" | ")))
