"""The directive `cpp-header`: the public declarations of a header of include/torchvq, with their comments.

```{eval-rst}
.. cpp-header:: modules/sim_vq.h
```

Names behind the header pick some of its declarations. `cpp-folder` shows all headers of a folder that no page shows by
itself. Every public declaration stands on one page: the build warns of one that stands on none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cpp_declarations import Declaration, declarations_of
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "include" / "torchvq"
SHOWN = "torchvq_headers_shown"
log = logging.getLogger(__name__)


def rst_of(declared: Declaration, indent: str = "") -> Iterator[str]:
    """A declaration and its members as directives of Sphinx's C++ domain."""
    first, *more = declared.text.split("\n")
    yield f"{indent}.. cpp:{declared.kind}:: {first}"
    # Several names of one declaration stand one below the other.
    yield from (f"{indent}{' ' * (len(declared.kind) + 11)}{name}" for name in more)
    yield ""
    inner = indent + "   "
    for line in comment_as_rst(declared.comment):
        yield inner + line if line else ""
    yield ""
    for member in declared.members:
        yield from rst_of(member, inner)


def comment_as_rst(lines: list[str]) -> Iterator[str]:
    """`Word   text` and `@param name  text` become fields, fenced code becomes blocks, all else is text."""
    place = 0
    while place < len(lines):
        line = lines[place]
        place += 1
        if line.strip().startswith("```"):
            end = next(i for i in range(place, len(lines)) if lines[i].strip() == "```")
            yield from (
                "",
                ".. code-block:: cpp",
                "",
                *("   " + code for code in lines[place:end]),
                "",
            )
            place = end + 1
        elif found := re.match(
            r"(@param +\w+|@return|[A-Z][a-z]+(?:-[a-z]+)?)(?:  +|(?<=n) +(?=\S))(.*)", line
        ):
            if found[1][0] != "@" and "  " not in line[: found.start(2)]:
                yield escaped(line)
                continue
            more = []
            while place < len(lines) and (
                lines[place].startswith("   ") or _goes_on(lines, place, found)
            ):
                more.append(lines[place])
                place += 1
            yield from _field(found[1], found[2], more)
        else:
            # A sum that goes on in the next line is no list.
            yield re.sub(r"^\+ ", r"\+ ", escaped(line.strip()))


def _goes_on(lines: list[str], place: int, found: re.Match[str]) -> bool:
    """clang-format breaks long lines of a field without their indent."""
    return bool(re.match(r"[a-z(<+]", lines[place])) and not lines[place].startswith("@")


def _field(name: str, text: str, more: list[str]) -> Iterator[str]:
    yield ""
    if name.startswith("@"):
        name = name[1:].replace("return", "returns")
    if name == "Formula":
        yield ":Formula:"
        yield "   .. code-block:: text"
        yield ""
        yield from ("      " + line.strip() for line in [text, *more])
    elif name == "Example":
        yield ":Example:"
        yield "   .. code-block:: cpp"
        yield ""
        yield from ("      " + line.strip() for line in [text, *more])
    else:
        yield f":{name}: {escaped(' '.join(line.strip() for line in [text, *more]))}"
    yield ""


def escaped(text: str) -> str:
    """Text without any mark of reStructuredText; `code` becomes literal."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return re.sub(r"([\\*|_`])", r"\\\1", text)
    plain = [re.sub(r"([\\*|_])", r"\\\1", part) for part in parts[::2]]
    out = plain[0]
    for code, rest in zip(parts[1::2], plain[1:], strict=True):
        out += f"``{code}``" + ("\\ " if rest[:1].isalnum() else "") + rest
    return out


def name_of(declared: Declaration) -> str:
    """The last part of a name, by which a page picks it."""
    text = declared.text.split("\n")[0]
    text = text.split("(")[0] if declared.kind == "function" else text
    text = re.sub(r"^template <.*?> (?=\w+::)", "", text).split(" : ")[0].split(" = ")[0]
    return re.findall(r"\w+(?=$|<)", text)[-1] if re.findall(r"\w+(?=$|<)", text) else text


class HeaderDirective(SphinxDirective):
    """`.. cpp-header:: modules/sim_vq.h [NAME...]`"""

    required_arguments = 1
    optional_arguments = 20

    def run(self) -> list[nodes.Node]:
        return self.show(self.arguments[0], set(self.arguments[1:]))

    def show(self, header: str, names: set[str]) -> list[nodes.Node]:
        path = INCLUDE / header
        self.env.note_dependency(str(path))
        shown = getattr(self.env, SHOWN).setdefault(self.env.docname, {})
        picked = [d for d in declarations_of(path) if not names or name_of(d) in names]
        missing = names - {name_of(declared) for declared in picked}
        if missing:
            raise self.error(f"cpp-header: expected {header} to declare {sorted(missing)}")
        shown.setdefault(header, []).extend(name_of(declared) for declared in picked)
        text = [f"``#include <torchvq/{header}>``", ""]
        for declared in picked:
            text += list(rst_of(declared))
        return self.parse_text_to_nodes("\n".join(text), allow_section_headings=False)


class FolderDirective(HeaderDirective):
    """`.. cpp-folder:: ops`, but for the headers that are named behind it."""

    def run(self) -> list[nodes.Node]:
        folder, *left_out = self.arguments
        out: list[nodes.Node] = []
        for path in sorted((INCLUDE / folder).glob("*.h")):
            if path.name in left_out or not declarations_of(path):
                continue
            section = nodes.section(ids=[nodes.make_id(path.stem) + "-h"])
            section += nodes.title(text=path.name)
            section += self.show(str(path.relative_to(INCLUDE)), set())
            out.append(section)
        return out


def check(app: Sphinx, env: Any) -> None:
    """Warns of public declarations that stand on no page, or on several."""
    shown: dict[str, list[str]] = {}
    for headers in getattr(env, SHOWN).values():
        for header, names in headers.items():
            shown.setdefault(header, []).extend(names)
    for path in sorted(INCLUDE.rglob("*.h")):
        header = str(path.relative_to(INCLUDE))
        missing = {name_of(d) for d in declarations_of(path)} - set(shown.get(header, []))
        if missing:
            log.warning("%s: no page shows %s", header, ", ".join(sorted(missing)))


def _forget(app: Sphinx, env: Any, docname: str) -> None:
    getattr(env, SHOWN).pop(docname, None)


def _begin(app: Sphinx) -> None:
    if not hasattr(app.env, SHOWN):
        setattr(app.env, SHOWN, {})


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("cpp-header", HeaderDirective)
    app.add_directive("cpp-folder", FolderDirective)
    app.connect("builder-inited", _begin)
    app.connect("env-purge-doc", _forget)
    app.connect("env-check-consistency", check)
    return {"version": "1", "parallel_read_safe": False}
