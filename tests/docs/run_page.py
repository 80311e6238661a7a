"""Runs the Python of a page, block after block, in one namespace: `python run_page.py PAGE`.

Objects that a page assumes (a model, a batch, a process group) are in setups/<page>.py, in parts that begin with
`# %% HEADING` and run before the first block below that heading; the part without a heading runs first.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from pages import ROOT, blocks

# Blocks that run elsewhere, and why.
ELSEWHERE = {
    ("docs/serving.md", "Package"): "compiles for a minute; tests/python/test_serving.py does it",
}


def setups(page: str) -> dict[str, str]:
    """Code by heading; "" for the part that runs first."""
    name = page.removeprefix("docs/").removesuffix(".md").replace("/", "-")
    file = Path(__file__).parent / "setups" / f"{name}.py"
    if not file.exists():
        return {}
    first, *parts = re.split(r"^# %% (.*)\n", file.read_text(), flags=re.MULTILINE)
    return {"": first, **dict(zip(parts[::2], parts[1::2], strict=True))}


def main(page: str) -> None:
    before = setups(page)
    scope = {"__name__": "__main__"}
    exec(compile(before.pop("", ""), f"before {page}", "exec"), scope)
    ran = 0
    for block in blocks(page):
        if block.language != "python" or (page, block.heading) in ELSEWHERE:
            continue
        code = before.pop(block.heading, "")
        exec(compile(code, f"before `{block.heading}`", "exec"), scope)
        exec(compile(block.text, f"{ROOT / page}, `{block.heading}`", "exec"), scope)
        ran += 1
    if before:
        raise SystemExit(f"{page}: no block below {sorted(before)}")
    print(f"ran {ran}")


if __name__ == "__main__":
    main(sys.argv[1])
