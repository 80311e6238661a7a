"""Monitor: records the use of codebooks at each step, and warns when they collapse."""

import json
import os
import warnings
from numbers import Real
from pathlib import Path
from typing import Any, Protocol, TextIO

import torch.distributed as dist
from torch import nn

from torchvq._base.arguments import expect_kind, integer
from torchvq._base.options import expect
from torchvq._base.ranks import group_of
from torchvq._base.torch_private import WRAPPER_NAMES
from torchvq._codebook.collapse import CollapseLimits, CollapseWarning, LevelWatch
from torchvq._codebook.stats import CodebookStats, read_stats
from torchvq.random_projection_quantizer import RandomProjectionQuantizer
from torchvq.vector_quantize import VectorQuantize

_PANELS = {
    "perplexity": "perplexity",
    "usage": "codes in use, %",
    "dead": "dead codes, %",
    "replaced": "codes replaced in the step, %",
}
_BLOCK = 1 << 16  # bytes read at once


class ScalarWriter(Protocol):
    """The part of ``torch.utils.tensorboard.SummaryWriter`` that ``Monitor`` calls."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any:
        """Records a number of a step."""


class Monitor:
    """Records the ``stats()`` of all quantizers inside a module, and warns of collapse.

    Args:
        module: any module; every ``VectorQuantize`` inside, so every level of a ``ResidualVQ`` and every codebook of a
            ``HierarchicalVQ``, is watched under its name in the module. Other quantizers keep no statistics.
        json_lines: a file to which one line per level and record is appended; see ``read_json_lines``.
        writer: a ``SummaryWriter`` of TensorBoard, or any object with its ``add_scalar``; tags are
            ``<tag>/<name>/<statistic>``.
        tag: the beginning of tags. Default: ``torchvq``.
        every: record each step that is a multiple of this. Default: 1.
        synced: statistics of the tokens of all ranks: two messages per record and process group, so every rank must
            have a Monitor and call ``step``. Default: False, this rank's tokens.
        limits: when to warn; None: never. Default: see ``CollapseLimits``.

    Rank 0 writes and warns; on other ranks ``step`` only returns the numbers. Warnings are ``CollapseWarning``, once
    for each level and cause: falling perplexity, dead codes, codes that are replaced all the time.

    Raises:
        ValueError: no quantizer to watch, ``every`` or a limit out of range. TypeError: ``module`` is no module,
            ``every`` or ``window`` no integer, another limit no number.

    Example:
        >>> vq = VectorQuantize(dim=8, codebook_size=16)
        >>> monitor = Monitor(vq, json_lines="run.jsonl")
        >>> for step in range(100):
        ...     _ = vq(torch.randn(1, 64, 8))
        ...     _ = monitor.step(step)
        >>> monitor.plot("run.png")
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        json_lines: str | os.PathLike[str] | None = None,
        writer: ScalarWriter | None = None,
        tag: str = "torchvq",
        every: int = 1,
        synced: bool = False,
        limits: CollapseLimits | None = CollapseLimits(),  # noqa: B008 (immutable)
    ) -> None:
        expect_kind("Monitor", "module", module, nn.Module, "a torch.nn.Module")
        self.quantizers = _quantizers(module)
        if not self.quantizers:
            raise ValueError(
                "Monitor: expected module to contain a VectorQuantize or a stack or hierarchy of them, "
                f"but got {type(module).__name__} without one"
            )
        every = _count("every", every)
        self.json_lines = None if json_lines is None else Path(json_lines)
        self.writer = writer
        self.tag = tag
        self.every = every
        self.synced = synced
        self._next = 0
        self._file: TextIO | None = None
        self._watches: dict[str, LevelWatch] = {}
        if limits is not None:
            limits = _checked(limits)
            self._watches = {name: LevelWatch(name, limits) for name in self.quantizers}

    def step(self, step: int | None = None) -> dict[str, CodebookStats]:
        """Records the last training forward; call it once per step, after the forward.

        Args:
            step: the number of the step. Default: one more than that of the last call, from 0.

        Returns:
            Statistics by the quantizer's name; empty if ``every`` skips the step.

        Raises:
            TypeError: ``step`` is no integer; nothing is recorded.
        """
        step = self._next if step is None else integer("Monitor", "step", step)
        self._next = step + 1
        if step % self.every != 0:
            return {}
        found = self._read()
        if not dist.is_available() or not dist.is_initialized() or dist.get_rank() == 0:
            self._write(found, step)
            for name, watch in self._watches.items():
                for message in watch.add(found[name], _codes(self.quantizers[name]), step):
                    warnings.warn(message, CollapseWarning, stacklevel=2)
        return found

    def _read(self) -> dict[str, CodebookStats]:
        groups: dict[str, list[str]] = {}
        for name, vq in self.quantizers.items():
            groups.setdefault(group_of(vq) if self.synced else "", []).append(name)
        found: dict[str, CodebookStats] = {}
        for names in groups.values():
            levels = [self.quantizers[name] for name in names]
            found |= zip(names, read_stats(levels, self.synced), strict=True)
        return {name: found[name] for name in self.quantizers}

    def _write(self, found: dict[str, CodebookStats], step: int) -> None:
        if self.writer is not None:
            for name, stats in found.items():
                for statistic, value in stats._asdict().items():
                    self.writer.add_scalar(f"{self.tag}/{name}/{statistic}", value, step)
        if self.json_lines is None:
            return
        if self._file is None:
            self.json_lines.parent.mkdir(parents=True, exist_ok=True)
            _drop_cut_line(self.json_lines)
            self._file = self.json_lines.open("a", encoding="utf-8")
        for name, stats in found.items():
            place = {"step": step, "quantizer": name, "codes": _codes(self.quantizers[name])}
            self._file.write(json.dumps(place | stats._asdict()) + "\n")
        # Readers of the file see all steps, also during the run and after it was killed.
        self._file.flush()

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Plots the records of ``json_lines``, including those of earlier runs; see ``plot_json_lines``."""
        if self.json_lines is None:
            raise ValueError("Monitor: expected json_lines for a plot, but got None")
        plot_json_lines(self.json_lines, path)

    def close(self) -> None:
        """Closes the file; a later ``step`` opens it again. Does not close the writer."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> "Monitor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _count(what: str, value: int) -> int:
    count = integer("Monitor", what, value)
    expect("Monitor", count >= 1, what, "at least 1", count)
    return count


def _checked(limits: CollapseLimits) -> CollapseLimits:
    expect_kind("Monitor", "limits", limits, CollapseLimits, "CollapseLimits or None")
    fractions = limits._asdict()
    window = _count("the window of limits", fractions.pop("window"))
    for name, value in fractions.items():
        if not isinstance(value, Real):
            raise TypeError(f"Monitor: expected {name} of limits to be a number, but got {value!r}")
        expect("Monitor", 0 <= float(value) <= 1, f"{name} of limits", "in [0, 1]", value)
    return limits._replace(window=window)


def _quantizers(module: nn.Module) -> dict[str, VectorQuantize]:
    """By name, without the codes that never learn, of which there are no statistics."""
    found = {}
    # DistributedDataParallel only wraps the module.
    prefix = "module." if [name for name, _ in module.named_children()] == ["module"] else ""
    fixed = {part.vq for part in module.modules() if isinstance(part, RandomProjectionQuantizer)}
    for name, part in module.named_modules():
        if isinstance(part, VectorQuantize) and part not in fixed:
            own = ".".join(part for part in name.split(".") if part not in WRAPPER_NAMES)
            found[own.removeprefix(prefix) or "quantizer"] = part
    return found


def _codes(vq: VectorQuantize) -> int:
    """Codes of the last step, which may have been assigned in another number than that of the options."""
    return vq.step_counts.numel()


# Reading -----------------------------------------------------------------------------------------------------------


def _drop_cut_line(path: Path) -> None:
    """Removes the line that a killed run has left without its end, if any."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        start = end = file.seek(0, os.SEEK_END)
        tail = b""
        # From the end, because a log may be long.
        while start > 0 and b"\n" not in tail:
            start = max(start - _BLOCK, 0)
            file.seek(start)
            tail = file.read(end - start)
        last = tail[tail.rfind(b"\n") + 1 :]
        if last.endswith(b"}"):
            file.seek(end)
            file.write(b"\n")
        else:
            file.truncate(end - len(last))


def read_json_lines(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The lines of a Monitor: ``step``, ``quantizer``, ``codes`` and the fields of ``CodebookStats``.

    A truncated last line, of a run that was killed, is left out. ValueError for any other line that a Monitor does not
    write.
    """
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    whole, last = lines[:-1], lines[-1]
    found = []
    for number, line in enumerate([*whole, last] if last.endswith("}") else whole, 1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not _is_record(record):
            raise ValueError(
                f"read_json_lines: expected line {number} of {path} to be a record of a Monitor, but got {line!r}"
            )
        found.append(record)
    return found


def _is_record(record: Any) -> bool:
    """Whether a Monitor writes this; a later one may write further fields."""
    if not isinstance(record, dict) or not isinstance(record.get("quantizer"), str):
        return False
    numbers = [type(record.get(field)) in (int, float) for field in CodebookStats._fields]
    integers = type(record.get("step")) is type(record.get("codes")) is int
    return all(numbers) and integers and record["codes"] > 0


def plot_json_lines(source: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Plots perplexity, use, dead and replaced codes over the steps, one line per level, with matplotlib.

    Args:
        source: the file of a Monitor. If a step was written twice (a resumed run), the last record counts.
        path: the picture; its suffix sets the format.

    Raises:
        ImportError: matplotlib is missing. ValueError: the file holds no record.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "plot_json_lines: expected matplotlib to be installed, but it is not; `pip install matplotlib`"
        ) from error
    levels: dict[str, dict[int, dict[str, Any]]] = {}
    for record in read_json_lines(source):
        levels.setdefault(record["quantizer"], {})[record["step"]] = record
    if not levels:
        raise ValueError(f"plot_json_lines: expected {source} to hold records, but got none")
    figure = Figure(figsize=(10, 6.5), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(2, 2).flat, _PANELS.items(), strict=True):
        for level, records in levels.items():
            steps = sorted(records)
            axes.plot(steps, [_drawn(records[step], name) for step in steps], label=level, lw=1)
        axes.set(title=title, xlabel="step")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    figure.axes[0].legend(fontsize="small")
    figure.savefig(path)


def _drawn(record: dict[str, Any], name: str) -> float:
    if name == "usage":
        return 100.0 * float(record[name])
    value = float(record[name])
    return value if name == "perplexity" else 100.0 * value / float(record["codes"])
