"""Reads the public declarations of a header, with their comments: enough C++ for include/torchvq, and no more.

The headers are formatted by clang-format and their comments are in one form, so scopes and declarations can be told by
brackets alone. Bodies, initialisers and what is private or in a namespace `detail` are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

BRACKETS = {"(": ")", "{": "}", "[": "]"}
RECORD = re.compile(r"^(template\s*<.*>\s*)?(class|struct|enum class|enum|concept)\b", re.DOTALL)
# What says something to a compiler or a linker, and nothing to a reader.
NOISE = re.compile(r"(\b(TORCHVQ_API|inline|explicit)|\[\[nodiscard\]\])\s+")
# In front of the brace of an initialiser: `=`, a variable, or a member in a constructor's list.
INITIALISED = re.compile(r"\)\s*=[^()]*$|^[^(]*$|\)\s*:(?!:).*\w$", re.DOTALL)


@dataclass
class Declaration:
    """One declaration: a kind of Sphinx's C++ domain, its text there, and the lines of its comment."""

    kind: str
    text: str
    comment: list[str]
    members: list[Declaration] = field(default_factory=list)


def declarations_of(header: Path) -> list[Declaration]:
    """The public declarations of a header in its order, under their full names."""
    return list(_Scope(_without_preprocessor(header.read_text())).read())


def _without_preprocessor(text: str) -> str:
    text = re.sub(r"^#.*(\\\n.*)*$", "", text, flags=re.MULTILINE)
    text = re.sub(r'extern "C" \{|FORWARD_HAS_DEFAULT_ARGS\(\{.*?\}\)', "", text, flags=re.DOTALL)
    return re.sub(r"(?<!/)//(?!/).*", "", text)


@dataclass
class _Scope:
    """A namespace, a class, or a file: its text, its full name, and whether it begins private."""

    text: str
    name: str = ""
    owner: str = ""  # the class whose body this is
    public: bool = True
    at: int = 0

    def read(self) -> Iterator[Declaration]:
        comment: list[str] = []
        while self.at < len(self.text):
            if found := self._match(r"\s+"):
                continue
            if found := self._match(r"///(?!<) ?(.*)"):
                comment.append(found[1])
            elif found := self._match(r"(public|private|protected)\s*:"):
                self.public, comment = found[1] == "public", []
            elif found := self._match(r"namespace\s+([\w:]+)\s*\{"):
                yield from self._namespace(found[1])
                comment = []
            elif self._match(r"(using [\w:<>]+::\w+|namespace \w+ = [\w:]+)?;|\}"):
                comment = []
            else:
                declared = self._declaration(comment)
                comment = []
                if declared and self.public:
                    yield declared

    def _match(self, pattern: str) -> re.Match[str] | None:
        found = re.compile(pattern).match(self.text, self.at)
        if found:
            self.at = found.end()
        return found

    def _namespace(self, name: str) -> Iterator[Declaration]:
        body = self._until_closed("{")
        if name != "detail":
            yield from _Scope(body, f"{self.name}::{name}" if self.name else name).read()

    def _until_closed(self, opening: str) -> str:
        """What stands before the bracket that closes the one just passed; the place is behind it then."""
        start, depth = self.at, 1
        closing = BRACKETS[opening]
        while depth:
            letter = self.text[self.at]
            depth += (letter == opening) - (letter == closing)
            self.at += 1
        return self.text[start : self.at - 1]

    def _declaration(self, comment: list[str]) -> Declaration | None:
        head, body = self._head_and_body()
        comment = [*comment, *self._comment_behind()]
        head = NOISE.sub("", " ".join(head.split()) + " ").strip()
        macro = re.match(r"([A-Z][A-Z0-9_]+)\((.*?)\)(?:\s*=.*)?$", head)
        if macro:
            return self._of_macro(macro[1], macro[2], comment)
        record = RECORD.match(head)
        if record and record[2] != "concept" and body is not None:
            return self._record(record[2], head, body, comment)
        hidden = not self.public or re.search(r"\boverride\b|= delete$|\bfriend\b", head)
        if not head or record or hidden:
            return None
        return self._plain(head, comment)

    def _head_and_body(self) -> tuple[str, str | None]:
        """Up to the `;` or the body of a declaration; an initialiser in braces belongs to the head."""
        start, depth = self.at, 0
        while True:
            letter = self.text[self.at]
            self.at += 1
            if letter in "([":
                depth += 1
            elif letter in ")]":
                depth -= 1
            elif letter == ";" and depth == 0:
                return self.text[start : self.at - 1], None
            elif letter == "{":
                head = self.text[start : self.at - 1]
                body = self._until_closed("{")
                record = RECORD.match(NOISE.sub("", head.strip()))
                if depth == 0 and (record or not INITIALISED.search(head)):
                    self._match(r"\s*;")
                    return head, body

    def _comment_behind(self) -> list[str]:
        lines: list[str] = []
        while found := self._match(r"[ \t]*///< ?(.*)\n?" if not lines else r"\s*///< *(.*)\n?"):
            lines.append(found[1])
        return lines

    def _of_macro(self, name: str, inside: str, comment: list[str]) -> Declaration | None:
        if name == "TORCH_ARG":
            kind, _, option = inside.rpartition(",")
            # The other function of the macro, which reads the option, has the same name.
            text = f"{self._last_name()} &{option.strip()}({kind.strip()} value)"
            return Declaration("function", text, comment)
        if name == "TORCH_MODULE":
            text = f"{self._full(inside)} : public torch::nn::ModuleHolder<{inside}Impl>"
            return Declaration("class", text, comment or [f"The handle of a {inside}Impl."])
        return None

    def _last_name(self) -> str:
        return self.owner.rpartition("::")[2]

    def _full(self, name: str) -> str:
        return name if self.owner or not self.name else f"{self.name}::{name}"

    def _record(self, kind: str, head: str, body: str, comment: list[str]) -> Declaration:
        template, keyword, rest = re.match(  # type: ignore[union-attr]
            r"(template <.*?> (?=class|struct))?(class|struct|enum class|enum) (.*)", head
        ).groups()
        name = re.match(r"\w+", rest)[0]  # type: ignore[index]
        kind = {"enum class": "enum-class"}.get(keyword, keyword)
        text = f"{template or ''}{self._full(name)}{rest[len(name) :].replace(' final', '')}"
        if keyword.startswith("enum"):
            return Declaration(kind, text, comment, list(_enumerators(body)))
        inside = _Scope(body, "", f"{self.owner}::{name}", public=keyword == "struct")
        return Declaration(kind, text, comment, list(inside.read()))

    def _plain(self, head: str, comment: list[str]) -> Declaration:
        if alias := re.match(r"using (\w+) = (.*)", head):
            return Declaration("type", f"{self._full(alias[1])} = {alias[2]}", comment)
        head = _without_initialisers(head)
        flat = _without_template_arguments(head)
        call = re.search(r"([\w~]+|operator\s*\S+?)\s*\(", flat)
        if (call and not 0 <= flat.find("=") < call.start()) or "operator" in head:
            assert call
            return Declaration("function", self._named(head, call.start(1)), comment)
        head = re.sub(r"(?<![= ])\{[^{}=]*\}$", "", head)
        kind, *more = _split(head)
        found = re.match(r"(.*?)(\w+)(\s*=.*|\[.*)?$", kind)
        assert found, head
        first = self._named(kind, found.start(2))
        rest = [f"{found[1]}{self._full(name.strip())}" for name in more]
        return Declaration("var", "\n".join([first, *rest]), comment)

    def _named(self, head: str, place: int) -> str:
        return head[:place] + self._full(head[place:])


def _without_template_arguments(text: str) -> str:
    """The same, with blanks where something stands in pointed brackets."""
    out, depth = "", 0
    for letter in text:
        depth -= letter == ">" and depth > 0
        out += " " if depth else letter
        depth += letter == "<"
    return out


def _split(text: str) -> list[str]:
    """At commas outside of all brackets: `int a, b`."""
    flat, depth, parts = _without_template_arguments(text), 0, [""]
    for letter, shown in zip(flat, text, strict=True):
        depth += (letter in "({") - (letter in ")}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += shown
    return parts


def _without_initialisers(head: str) -> str:
    """Of a constructor: without `: member(value), ...`."""
    depth = 0
    for place, letter in enumerate(head):
        depth += (letter == "(") - (letter == ")")
        if letter == ":" and depth == 0 and ")" in head[:place]:
            if "::" in (head[place : place + 2], head[place - 1 : place + 1]):
                continue
            return head[:place].strip()
    return head


def _enumerators(body: str) -> Iterator[Declaration]:
    comment: list[str] = []
    for line in body.splitlines():
        if found := re.match(r"\s*///(?!<) ?(.*)", line):
            comment.append(found[1])
            continue
        for name in re.findall(r"(\w+)(?:\s*=[^,]*)?(?:,|$)", re.sub(r"///<.*", "", line).strip()):
            behind = re.search(r"///< ?(.*)", line)
            yield Declaration("enumerator", name, [*comment, *([behind[1]] if behind else [])])
            comment = []
