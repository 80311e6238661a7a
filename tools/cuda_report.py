"""Reports what ptxas says of each CUDA kernel: registers, shared memory, stack and spills on every architecture.

    python tools/cuda_report.py BUILD     fails on spills, traps, and more registers than LIMITS allows
    python tools/cuda_report.py BUILD --docs   writes the table of docs/design/gpu.md, too

A kernel's limit is the number of registers at which the intended number of its blocks fits a multiprocessor; other
kernels have DEFAULT_LIMIT.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

DEFAULT_LIMIT = 128
LIMITS = {
    "scan_half": 128,  # two blocks of 256 threads
    "find_centers": 64,  # a block of 1024 threads
    "find_dead": 64,
    "look_at_sizes": 64,
    "move_sizes": 64,
    "place_bins": 64,
}

ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\S+)'")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")
ARGUMENTS = re.compile(r"\(.*\)$")


@dataclass
class Use:
    registers: int = 0
    shared: int = 0
    stack: int = 0
    spills: int = 0


def read_report(text: str) -> dict[tuple[str, str], Use]:
    """The use of resources by (mangled kernel, architecture)."""
    uses: dict[tuple[str, str], Use] = {}
    current = Use()
    for line in text.splitlines():
        if entry := ENTRY.search(line):
            current = uses.setdefault((entry[1], entry[2]), Use())
        elif spills := SPILLS.search(line):
            current.stack = int(spills[1])
            current.spills = int(spills[2]) + int(spills[3])
        elif registers := REGISTERS.search(line):
            current.registers = int(registers[1])
            current.shared = int(registers[2] or 0)
    return uses


def plain_names(mangled: list[str]) -> dict[str, str]:
    """Readable names: without namespaces, result and arguments."""
    command = ["c++filt", "--no-params", *mangled]
    demangled = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    names = {}
    for symbol, name in zip(mangled, demangled.splitlines(), strict=True):
        name = name.replace("(anonymous namespace)::", "").replace("torchvq::kernels::cuda::", "")
        names[symbol] = ARGUMENTS.sub("", name.removeprefix("void "))
    return names


def faults_of(name: str, architecture: str, use: Use) -> list[str]:
    limit = LIMITS.get(name.split("<")[0], DEFAULT_LIMIT)
    faults = []
    if use.spills:
        faults.append(f"{name} spills {use.spills} bytes on {architecture}")
    if use.registers > limit:
        faults.append(f"{name} takes {use.registers} registers on {architecture}, over {limit}")
    return faults


def print_table(source: str, uses: dict[tuple[str, str], Use], names: dict[str, str]) -> None:
    by_kernel: dict[str, dict[str, Use]] = defaultdict(dict)
    for (symbol, architecture), use in uses.items():
        by_kernel[names[symbol]][architecture] = use
    print(f"{source}: registers + bytes of static shared memory (+ stack)")
    for name, of_architecture in sorted(by_kernel.items()):
        cells = [
            f"{architecture} {use.registers}+{use.shared}" + (f"+{use.stack}" if use.stack else "")
            for architecture, use in sorted(of_architecture.items())
        ]
        print(f"  {name:44} {'  '.join(cells)}")


PAGE = Path(__file__).parents[1] / "docs/design/gpu.md"
BEGIN, END = "<!-- begin compile report -->\n", "<!-- end compile report -->\n"


def page_table(reports: dict[Path, dict[tuple[str, str], Use]], total: str) -> str:
    """A row per source: its kernels, the most registers of one of them on each architecture, spills, size."""
    architectures = sorted(
        {architecture for uses in reports.values() for _, architecture in uses},
        key=lambda name: int(re.sub(r"\D", "", name)),
    )
    lines = [
        f"| source | kernels | {' | '.join(architectures)} | spills, bytes | object, KiB |",
        "|---|---|" + "---|" * (len(architectures) + 2),
    ]
    for path, uses in reports.items():
        most = [
            max(use.registers for (_, name), use in uses.items() if name == architecture)
            for architecture in architectures
        ]
        row = [
            f"`{path.name.removesuffix('.o.ptxas')}`",
            len({symbol for symbol, _ in uses}),
            *most,
            sum(use.spills for use in uses.values()),
            round(path.with_suffix("").stat().st_size / 1024),
        ]
        lines.append(f"| {' | '.join(str(cell) for cell in row)} |")
    return "\n".join(lines) + f"\n\n{total}\n"


def write_page(table: str) -> None:
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(before + BEGIN + table + END + rest.split(END)[1])


# Sources that only call the driver.
WITHOUT_KERNELS = {"support"}


def report(path: Path) -> list[str]:
    uses = read_report(path.read_text())
    if path.name.removesuffix(".cu.o.ptxas") in WITHOUT_KERNELS:
        return []
    if not uses:
        return [f"{path}: no kernel was compiled for an architecture"]
    names = plain_names(sorted({symbol for symbol, _ in uses}))
    print_table(path.name.removesuffix(".o.ptxas"), uses, names)
    return [
        fault
        for (symbol, architecture), use in uses.items()
        for fault in faults_of(names[symbol], architecture, use)
    ]


def traps_of(source: Path, command: list[str]) -> list[str]:
    """nvcc has no warning for code that it cannot compile for a card, such as a reference to a constant of the host: it
    puts a trap there, which ends the kernel."""
    with tempfile.NamedTemporaryFile(suffix=".ptx") as file:
        subprocess.run(
            [*command, "-arch=compute_80", "-ptx", str(source), "-o", file.name], check=True
        )
        count = Path(file.name).read_text().count("trap;")
    return [f"{source} has {count} traps"] if count else []


def traps(build: Path) -> list[str]:
    command = (build / "nvcc.txt").read_text().split("\n")[:-1]
    sources = sorted((Path(__file__).parents[1] / "src/kernels/cuda").glob("*.cu"))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [
            fault
            for found in pool.map(lambda one: traps_of(one, command), sources)
            for fault in found
        ]


def undefined_of_cuda(library: Path) -> list[str]:
    """Undefined CUDA symbols of a library, which could not be loaded where CUDA is not installed."""
    command = ["nm", "-D", "--undefined-only", str(library)]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return [f"{library} needs {name}" for name in names if re.match(r"(__)?cu(da)?[A-Z_]", name)]


def main() -> int:
    build = Path(sys.argv[1])
    reports = sorted((build / "src").rglob("*.ptxas"))
    faults = [fault for path in reports for fault in report(path)]
    library = build / "src" / "libtorchvq.so"
    size = library.stat().st_size / 2**20
    objects = sum(path.with_suffix("").stat().st_size for path in reports) / 2**20
    print(f"{library}: {size:.1f} MiB, of which the CUDA kernels are {objects:.1f}")
    if "--docs" in sys.argv:
        uses = {path: read_report(path.read_text()) for path in reports}
        total = f"The library takes {size:.1f} MiB, of which the CUDA kernels are {objects:.1f}."
        write_page(page_table({path: use for path, use in uses.items() if use}, total))
    faults += undefined_of_cuda(library) + traps(build)
    for fault in faults:
        print(f"  {fault}")
    return 1 if faults or not reports else 0


if __name__ == "__main__":
    sys.exit(main())
