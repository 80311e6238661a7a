"""Copies the results of the examples into docs/: files to docs/examples/, tables into docs/examples.md.

python tools/examples_page.py examples-output   after `make examples`
python tools/examples_page.py                   the tables alone, from what lies in docs/examples/
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
RESULTS = DOCS / "examples"
SOUNDS = ("speech.wav", "speech_1kbps.wav", "speech_2kbps.wav", "speech_3kbps.wav")

PICTURES = {
    "image_autoencoders": "originals, and the same pictures through VQ, FSQ, LFQ and SimVQ",
    "hierarchical": "pictures from 1, 5, 14, 30, 55 and 104 tokens, and the originals",
    "generate": "twelve generated pictures of each of ten kinds of clothes",
    "audio_codec": "spectrograms of a sentence: the original, and at 1, 2, 3 and 6 kbit/s",
}

Record = dict[str, Any]


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def image_autoencoders(record: Record) -> str:
    cells = [
        [name, f"{r['psnr']:.2f}", f"{r['codes']}", f"{r['used']:.1%}", f"{r['perplexity']:.0f}"]
        for name, r in record["table"].items()
    ]
    return table(["quantizer", "PSNR, dB", "codes", "used", "perplexity"], cells)


def hierarchical(record: Record) -> str:
    rows = record["table"]
    cells = [
        [f"{r['scales']}", f"{r['tokens']}", f"{r['bits']:.0f}", f"{r['psnr']:.2f}"] for r in rows
    ]
    return table(["scales", "tokens", "bits", "PSNR, dB"], cells)


def audio_codec(record: Record) -> str:
    rows = [row for row in record["table"] if row["levels"] in (1, 2, 4, 6, 8, 12)]
    return sounds([{"codec": "this one", **row} for row in rows])


def other_codecs(record: Record) -> str:
    return sounds(record["table"])


def sounds(rows: list[Record]) -> str:
    header = ["codec", "kbit/s", "SI-SDR, dB", "log-mel error, dB"]
    cells = [
        [r["codec"], f"{r['kbps']:g}", f"{r['si_sdr']:.1f}", f"{r['log_mel']:.1f}"] for r in rows
    ]
    return table(header, cells)


def generate(record: Record) -> str:
    rows = [
        ["PSNR of the tokenizer on unseen pictures", f"{record['psnr']:.2f} dB"],
        ["bits per token of unseen pictures, by the transformer", f"{record['bits']:.2f}"],
        ["the same by how frequent each token is, context unknown", f"{record['bits_alone']:.2f}"],
    ]
    return table(["what", "value"], rows)


TABLES = {
    "image_autoencoders": image_autoencoders,
    "hierarchical": hierarchical,
    "audio_codec": audio_codec,
    "other_codecs": other_codecs,
    "generate": generate,
}


def recorded() -> list[str]:
    """The examples whose runs are in docs/examples/."""
    return [name for name in TABLES if (RESULTS / f"{name}.json").exists()]


def machine(record: Record) -> str:
    run = record["run"]
    threads = "one thread" if run["threads"] == 1 else f"{run['threads']} threads"
    return (
        f"Measured at commit {run['commit']}: {run['processor_seconds']} s of processor time on {threads} of an "
        f"{run['processor']}, torch {run['torch']}.\n"
    )


def fill(text: str, name: str, record: Record) -> str:
    """The page with the table of an example between its markers."""
    pattern = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
    parts = [TABLES[name](record), machine(record)]
    if name == "audio_codec":
        links = ", ".join(f"[{file}](examples/{file})" for file in SOUNDS)
        parts.insert(0, f"To hear: {links}.\n")
    if name in PICTURES:
        parts.insert(0, f"![{PICTURES[name]}](examples/{name}.png)\n")
    content = "\n".join(parts)
    text, found = pattern.subn(lambda match: match[1] + content + match[2], text)
    if found != 1:
        raise ValueError(
            f"expected docs/examples.md to have the markers of {name} once, but found {found}"
        )
    return text


def collect(output: Path) -> None:
    """Copies pictures, sounds and figures of the runs under a folder; models are not copied."""
    RESULTS.mkdir(exist_ok=True)
    wanted = [f"{name}.{kind}" for name in TABLES for kind in ("json", "png")]
    for file in (*wanted, *SOUNDS):
        for found in output.glob(f"*/{file}"):
            shutil.copyfile(found, RESULTS / file)


def main() -> None:
    if len(sys.argv) > 1:
        collect(Path(sys.argv[1]))
    page = DOCS / "examples.md"
    text = page.read_text()
    for name in recorded():
        text = fill(text, name, json.loads((RESULTS / f"{name}.json").read_text()))
    page.write_text(text)


if __name__ == "__main__":
    main()
