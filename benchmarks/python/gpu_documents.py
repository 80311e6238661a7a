"""docs/gpu.md and a summary for the terminal, from the measurements of gpu.py."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from markers import fill

Document = dict[str, Any]
MIB = 2**20
KERNELS = 5  # of a case, on the page


def summary(document: Document) -> str:
    """The results, in lines."""
    lines = [f"card: {document['card']['name']}, torch {document['card']['torch']}"]
    if not document["on_a_card"]:
        lines.append("no card: what follows shows that it runs, its numbers mean nothing")
    lines += [f"not done: {name}" for name in document["missing"]]
    lines += [
        f"{name}: {'passed' if status == 0 else 'FAILED'}"
        for name, status in document["commands"].items()
    ]
    failed = [name for name, why in _checks(document).items() if why]
    lines.append(f"checks: {len(_checks(document)) - len(failed)} passed, {len(failed)} failed")
    for case in _cases(document):
        lines.append(f"{case['name']}: {_line(case)}")
    lines += [f"{text}: {verdict}" for text, verdict in targets(document)]
    return "\n".join(lines)


def write(document: Document, page: Path) -> int:
    """Fills the page; only measurements on a card are written to it."""
    if not document["on_a_card"]:
        print("gpu.json was written without a card; docs/gpu.md stays as it is", file=sys.stderr)
        return 1
    fill(
        page,
        {
            "state": _state(document),
            "targets": _rows(["target", "came to"], targets(document)),
            "search": _search(document),
            "steps": _steps(document),
            "profile": _profile(document),
        },
    )
    return 0


def targets(document: Document) -> list[tuple[str, str]]:
    """Every target and whether it is met."""
    found = []
    for case in _cases(document):
        if "target" in case:
            target = case["target"]
            text = f"{case['name']}: {target['wanted']:g} times as fast as {target['against']}"
            found.append((text, _verdict(target, "times")))
    for name, host in _section(document, "host").get("host", {}).items():
        others = "".join(f", {other} {time:.0f}" for other, time in host.get("others", {}).items())
        found.append((
            f"{name}: the host's part at most {host['wanted']:g} us",
            _verdict(host, "us") + others,
        ))  # fmt: skip
    return found


def _verdict(target: Document, unit: str) -> str:
    measured = target.get("measured", target.get("microseconds"))
    if measured is None:
        return "not measured"
    number = f"{measured:.0f}" if unit == "us" else f"{measured:.3g}"
    return f"{'met' if target['met'] else 'MISSED'}: {number} {unit}"


def _section(document: Document, name: str) -> Document:
    found: Document = document["sections"].get(name, {})
    return found


def _checks(document: Document) -> dict[str, str]:
    found: dict[str, str] = _section(document, "checks").get("found", {})
    return found


def _cases(document: Document) -> list[Document]:
    return [
        case for name in ("search", "steps") for case in _section(document, name).get("cases", [])
    ]


def _line(case: Document) -> str:
    times = {name: one["milliseconds"] for name, one in case["contenders"].items()}
    left_out = [f"{name} left out, {why}" for name, why in case["left_out"].items()]
    return ", ".join([*(f"{name} {time:.3g} ms" for name, time in times.items()), *left_out])


def _state(document: Document) -> str:
    card = document["card"]
    failed = [name for name, why in _checks(document).items() if why]
    kernels = _section(document, "checks").get("kernels", [])
    lines = [
        f"Run on {card['date']} at {card.get('commit', 'unknown')}: {card['name']}, torch {card['torch']}, "
        f"driver {card.get('driver', 'unknown')}, clocks (SM, memory, most, power limit) "
        f"{card.get('clocks', 'unknown')}.",
        "",
        f"- Checks: {len(_checks(document)) - len(failed)} passed, {len(failed)} failed"
        + (": " + ", ".join(failed) if failed else "")
        + ".",
        f"- CUDA kernels in the library: {', '.join(kernels) or 'none'}.",
    ]
    for status, names in _by_status(document["commands"]).items():
        lines.append(f"- {status}: {', '.join(names)}.")
    ranks = _section(document, "ranks").get("ranks")
    if ranks:
        counts = ", ".join(map(str, ranks["ranks"])) or "no"
        result = "learn what one process learns"
        failed = f"; failed: {ranks['failed']}" if ranks["failed"] else ""
        # A part that ran out of time here may come from a run of its own.
        run = f" (in a run at {ranks['commit']})" if "commit" in ranks else ""
        lines.append(f"- NCCL, {counts} ranks on the card: {result}{failed}{run}.")
    lines += [
        f"- Left out for want of {name}: {lost}." for name, lost in document["left_out"].items()
    ]
    return "\n".join(lines) + "\n"


def _by_status(commands: dict[str, int]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, status in commands.items():
        found.setdefault("Failed" if status else "Passed", []).append(name)
    return found


def _search(document: Document) -> str:
    rates = _section(document, "search").get("rates")
    if not rates:
        return "Not measured.\n"
    head = (
        f"The card gives plain torch {rates['bfloat16_tflops']:.0f} TFLOP/s in bfloat16, "
        f"{rates['float32_tflops']:.0f} in float32, and copies {rates['copy_gigabytes']:.0f} GB/s. "
        "Shares are of these, for the work that the shape asks of anyone: 2 N K D operations, "
        "and tokens, codes and indices once.\n\n"
    )
    rows = []
    for case in _section(document, "search")["cases"]:
        seconds = case["contenders"]["torchvq"]["milliseconds"] / 1e3
        rows.append((
            *(case["name"], _line(case)),
            f"{case['flops'] / seconds / rates['bfloat16_tflops'] / 1e10:.0f} %",
            f"{case['bytes'] / seconds / rates['copy_gigabytes'] / 1e7:.0f} %",
            _memory(case),
        ))  # fmt: skip
    return head + _rows(
        ["search", "times", "of the tensor rate", "of the bandwidth", "peak memory"], rows
    )


def _steps(document: Document) -> str:
    rows = [
        (case["name"], _line(case), _memory(case))
        for case in _section(document, "steps").get("cases", [])
    ]
    return _rows(["step", "times", "peak memory"], rows) if rows else "Not measured.\n"


def _profile(document: Document) -> str:
    rows = []
    for case in _section(document, "profile").get("profiles", []):
        kernels = [one for one in case["kernels"] if one["microseconds"] > 0]
        ours = [one for one in kernels if "torchvq::" in one["kernel"]]
        total, own = (sum(one["microseconds"] for one in part) for part in (kernels, ours))
        longest = [f"`{_kernel(one)}` {one['microseconds']:.0f}" for one in ours[:KERNELS]]
        rows.append((
            *(case["name"], f"{total:.0f}", f"{sum(one['launches'] for one in kernels):.0f}"),
            ", ".join(longest),
            f"{total - own:.0f}",
        ))  # fmt: skip
    head = [
        "case",
        "us on the device",
        "launches",
        "the longest kernels, us",
        "torch's kernels, us",
    ]
    return _rows(head, rows) if rows else "Not measured.\n"


def _kernel(event: Document) -> str:
    """Without namespaces, result and arguments."""
    name: str = event["kernel"].replace("(anonymous namespace)::", "").removeprefix("void ")
    return re.split("[<(]", name.removeprefix("torchvq::kernels::cuda::"))[0]


def _memory(case: Document) -> str:
    return ", ".join(
        f"{name} {one['peak_bytes'] / MIB:.0f} MiB" for name, one in case["contenders"].items()
    )


def _rows(head: list[str], rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"
