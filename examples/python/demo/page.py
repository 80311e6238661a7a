"""The page about the run: one HTML file with all figures inside."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from html import escape
from pathlib import Path

STYLE = """
:root { --ink: #22262e; --soft: #5b616b; --line: #e3e6ea; --paper: #fff; --back: #f5f6f8; --accent: #0072B2; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink);
  font: 17px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1040px; margin: 0 auto; padding: 3rem 1.25rem 4rem; }
h1 { font-size: clamp(1.7rem, 4vw, 2.5rem); line-height: 1.2; margin: 0 0 .5rem; letter-spacing: -.02em; }
h2 { font-size: 1.3rem; margin: 0 0 .35rem; }
p { margin: 0 0 1rem; max-width: 46rem; }
.lead { color: var(--soft); font-size: 1.1rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); gap: .9rem;
  margin: 1.8rem 0 2.2rem; }
.tile, section { background: var(--paper); border: 1px solid var(--line); border-radius: 12px; }
.tile { padding: 1rem 1.1rem; }
.tile b { display: block; font-size: 1.65rem; line-height: 1.25; color: var(--accent);
  font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: .9rem; line-height: 1.4; display: block; }
section { padding: 1.6rem 1.6rem 1.3rem; margin-bottom: 1.4rem; }
figure { margin: .9rem 0 0; }
img { display: block; width: 100%; height: auto; background: #fff; border-radius: 6px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td { padding: .2rem 1.6rem .2rem 0; vertical-align: top; } td:first-child { color: var(--soft); }
pre { background: var(--back); border: 1px solid var(--line); border-radius: 8px; padding: .9rem 1rem;
  overflow-x: auto; font-size: .85rem; line-height: 1.5; }
code { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
footer { color: var(--soft); font-size: .9rem; }
@media (max-width: 600px) { section { padding: 1.1rem; } body { font-size: 16px; } }
"""


@dataclass
class Section:
    """A heading, a paragraph, and below it a figure, a table or lines of a terminal."""

    title: str
    text: str
    figure: Path | None = None
    caption: str = ""  # what the figure shows, for those who do not see it
    table: list[tuple[str, str]] | None = None
    terminal: str = ""


def write_page(
    path: Path, title: str, lead: str, tiles: list[tuple[str, str]], sections: list[Section]
) -> None:
    shown = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
        for value, name in tiles
    )
    body = "".join(map(section_html, sections))
    path.write_text(
        f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{STYLE}</style></head>
<body><main><header><h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p></header>
<div class="tiles">{shown}</div>
{body}
<footer>Written by examples/python/demo. The figures lie beside this page as PNG files.</footer>
</main></body></html>
""",
        encoding="utf-8",
    )


def section_html(section: Section) -> str:
    parts = [f"<h2>{escape(section.title)}</h2>", f"<p>{escape(section.text)}</p>"]
    if section.figure is not None:
        data = base64.b64encode(section.figure.read_bytes()).decode()
        caption = escape(section.caption or section.title, quote=True)
        parts.append(f'<figure><img alt="{caption}" src="data:image/png;base64,{data}"></figure>')
    if section.table:
        rows = "".join(
            f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>"
            for name, value in section.table
        )
        parts.append(f"<table>{rows}</table>")
    if section.terminal:
        parts.append(f"<pre><code>{escape(section.terminal)}</code></pre>")
    return f"<section>{''.join(parts)}</section>\n"
