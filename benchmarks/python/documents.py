"""Tables for docs/, made from the JSON of the results and put between markers, so that no number is typed.

<!-- begin nearest_code -->
the text here is replaced
<!-- end nearest_code -->
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import benchmark_documents
from benchmark_documents import targets_of
from harness import read_json
from markers import fill

LEARNING = "learning_table"
LEARNING_RESIDUAL = "learning_residual"
LEARNING_REFINE = "learning_refine"
LEARNING_LFQ = "learning_lfq"
LEARNING_LFQ_WEIGHTS = "learning_lfq_weights"
QUANTIZERS = "quantizers"
MIB = 2**20

Document = dict[str, Any]


def write(results: Path, docs: Path, suites: tuple[str, ...]) -> None:
    """Fills docs/benchmarks.md, docs/learning.md, docs/choosing.md and docs/which.md from the results that exist."""
    if documents := read(results, suites):
        fill(docs / "benchmarks.md", benchmark_documents.parts(documents, suites, _table))
    learnt = results / f"{LEARNING}.json"
    if learnt.exists():
        learned, choosing = _learning(read_json(learnt), results)
        fill(docs / "learning.md", learned)
        fill(docs / "choosing.md", choosing)
    stacks = results / f"{LEARNING_RESIDUAL}.json"
    if stacks.exists():
        document = read_json(stacks)
        parts = {
            "stacks": _stacks(document),
            "stacks_targets": _targets([document]),
            "stacks_machine": _machine([document]),
        }
        fill(docs / "learning.md", parts)
    refined = results / f"{LEARNING_REFINE}.json"
    if refined.exists():
        document = read_json(refined)
        parts = {
            "refined": _refined(document),
            "refined_targets": _targets([document]),
            "refined_machine": _machine([document]),
        }
        fill(docs / "learning.md", parts)
    signs = results / f"{LEARNING_LFQ}.json"
    if signs.exists():
        document = read_json(signs)
        parts = {
            "lfq": _signs(document),
            "lfq_small": _small_latents(document),
            "lfq_machine": _machine([document]),
        }
        fill(docs / "learning.md", parts)
    weights = results / f"{LEARNING_LFQ_WEIGHTS}.json"
    if weights.exists():
        document = read_json(weights)
        parts = {"lfq_weights": _weights(document), "lfq_weights_machine": _machine([document])}
        fill(docs / "learning.md", parts)
    compared = results / f"{QUANTIZERS}.json"
    if compared.exists():
        document = read_json(compared)
        fill(docs / "which.md", {"quantizers": _compared(document) + "\n" + _machine([document])})


def read(results: Path, suites: tuple[str, ...]) -> dict[str, Document]:
    """The existing results, by suite."""
    files = {name: results / f"{name}.json" for name in suites}
    return {name: read_json(file) for name, file in files.items() if file.exists()}


def _table(header: list[str], rows: list[list[str]]) -> str:
    rules = ["---:" if all(map(_numeric, column)) else "---" for column in zip(*rows, strict=True)]
    lines = [header, rules or ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _numeric(cell: str) -> bool:
    return not cell or cell[0].isdigit() or cell[0] == "-"


def _stacks(document: Document) -> str:
    rows = []
    for run in document["runs"]:
        alike = {None: "", True: "yes", False: "**no**"}[run.get("two_ranks_alike")]
        rows.append(
            [
                run["data"],
                run["name"],
                run["who"],
                str(run["beam"]),
                f"{run['error_over_faiss']:.3f}",
                f"{run['use_first']:.1%}",
                f"{run['use_last']:.1%}",
                alike,
            ]
        )
    header = ["data", "settings", "who", "beam", "error over faiss", "use, first level", "last"]
    return _table([*header, "two ranks alike"], rows)


def _refined(document: Document) -> str:
    """The error over that of faiss, by the beam that encodes."""
    beams = ("1", "5", "16")
    rows = []
    for run in document["runs"]:
        ratios = run["error_over_faiss"]
        cells = [f"{ratios[beam]:.3f}" if beam in ratios else "" for beam in beams]
        rows.append([run["data"], run["name"], run["who"], *cells])
    return _table(["data", "settings", "who", *(f"beam {beam}" for beam in beams)], rows)


def _signs(document: Document) -> str:
    rows = [
        [
            run["name"],
            run["who"],
            f"{run['error']:.5f}",
            str(run["codes"]),
            f"{run['entropy_bits']:.2f}",
            f"{run['soft_entropy_bits']:.2f}",
            f"{run['gradient']:.2g}",
        ]
        for run in document["runs"]
    ]
    header = ["settings", "who", "mean squared error", "codes in use", "entropy, bits"]
    return _table([*header, "batch entropy in training, bits", "norm of its gradient"], rows)


def _weights(document: Document) -> str:
    """Means over the seeds, by size and weights; the recommended ones in bold."""
    # Imported here, as in `_learning`.
    from learning_lfq_weights import is_recommended

    found: dict[tuple[int, float, float], list[dict[str, Any]]] = {}
    for run in document["runs"]:
        found.setdefault((run["bits"], run["entropy"], run["commitment"]), []).append(run)
    rows = []
    for weights, runs in sorted(found.items()):
        bold = "**" if is_recommended(runs[0]) else ""
        psnr, entropy = (
            sum(run[key] for run in runs) / len(runs) for key in ("psnr", "entropy_bits")
        )
        uses = ", ".join(f"{run['use']:.0%}" for run in runs)
        names = [f"{bold}{weight:g}{bold}" for weight in weights]
        rows.append([*names, str(len(runs)), f"{psnr:.2f}", uses, f"{entropy:.2f}"])
    header = ["bits", "entropy", "commitment", "seeds", "PSNR, dB", "use, seed by seed"]
    return _table([*header, "entropy of the use, bits"], rows)


def _small_latents(document: Document) -> str:
    rows = [
        [
            row["who"],
            str(row["steps"]),
            f"{row['first_gradient']:.2g}",
            f"{row['codes_before']} → {row['codes']}",
            f"{row['entropy_bits_before']:.2f} → {row['entropy_bits']:.2f}",
        ]
        for row in document["small"]
    ]
    header = ["who", "steps", "gradient norm of the first", "codes in use"]
    return _table([*header, "entropy of their use, bits"], rows)


def _machine(documents: list[Document]) -> str:
    """Machine, versions, commit and date, once for all suites in which they agree."""
    lines = []
    for document in documents:
        machine = document["machine"]
        quick = " **Quick run: the numbers are noise.**" if document["quick"] else ""
        lines.append(
            f"{machine['cpu']}, {machine['cores']} cores ({machine['level']}), torch {machine['torch']}, "
            f"faiss {machine['faiss']}, commit {machine['commit']}, {machine['date']}.{quick}\n"
        )
    return "\n".join(dict.fromkeys(lines))


def _machines_of_runs(runs: list[dict[str, Any]]) -> str:
    """The same for runs that were made later than the rest."""
    found: dict[tuple[str, ...], int] = {}
    for run in runs:
        if own := run.get("machine"):
            cores = f"{own['cpu']}, {own['cores']} cores ({own['level']})"
            key = (run["who"], cores, own["commit"], own["date"])
            found[key] = found.get(key, 0) + 1
    return "".join(
        f"\n{count} of the runs ({who}): {cores}, commit {commit}, {date}.\n"
        for (who, cores, commit, date), count in found.items()
    )


def _targets(documents: list[Document]) -> str:
    rows = []
    for document in documents:
        for target in targets_of(document):
            relation = "at most" if target.at_most else "at least"
            verdict = "met" if target.met else "**missed**"
            rows.append(
                [
                    target.text,
                    target.case,
                    f"{relation} {target.wanted:g}",
                    f"{target.measured:.3g}",
                    verdict,
                ]
            )
    met = sum(row[-1] == "met" for row in rows)
    return f"{met} of {len(rows)} are met.\n\n" + _table(
        ["target", "case", "wanted", "measured", ""], rows
    )


def _compared(document: Document) -> str:
    """A row for each quantizer, see quantizers.py."""
    rows = []
    for row in document["rows"]:
        lost, use = ([run[key] for run in row["learnt"]] for key in ("lost", "use"))
        rows.append(
            [
                row["name"],
                f"{row['bits']:.3g}",
                f"{sum(lost) / len(lost):.1%}",
                f"{sum(use) / len(use):.0%}",
                f"{row['training_us'] / 1000:.2g} ms",
                f"{row['encoding_us'] / 1000:.2g} ms",
                f"{row['bytes'] / MIB:.0f} MiB",
            ]
        )
    names = ["quantizer", "bits", "error", "use", "training step", "encoding", "memory"]
    return _table(names, rows)


def _learning(document: Document, pictures: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The learning table for learning.md, one marker per task, and the part for choosing.md; draws its pictures."""
    # Imported here, so that the other tables can be written without the reference.
    import learning_charts
    import learning_documents
    import learning_table

    machine = _machine([document]) + _machines_of_runs(document["runs"])
    learning_charts.draw(document["runs"], learning_table.rows(), pictures)
    return learning_documents.tables(document["runs"], learning_table.rows(), machine, _table)
