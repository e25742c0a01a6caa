"""A strict reader of the page: balanced tags, ids, headings, links, and everything that could load something."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br", "img", "link", "input", "hr", "source", "wbr", "col", "base"}


@dataclass
class Seen:
    problems: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    records: list[str] = field(default_factory=list)
    untitled: int = 0
    headings: list[int] = field(default_factory=list)
    tags: dict[str, int] = field(default_factory=dict)
    loads: list[str] = field(default_factory=list)
    handlers: list[str] = field(default_factory=list)
    unscoped: int = 0
    text: str = ""


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen = Seen()
        self.untitled = False  # an <svg> has just begun that still has to say what it shows

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open[-1] != tag:
            self.seen.problems.append(f"</{tag}> at {self.getpos()} closes {self.open[-3:]}")
        else:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            self.seen.loads += re.findall(r"@import[^;]*|url\([^)]*\)", data)
        else:
            self.seen.text += data

    def _note(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        s, values = self.seen, dict(attrs)
        if self.untitled and tag != "title":
            s.untitled += 1
        self.untitled = tag == "svg" and "aria-hidden" not in values and "aria-label" not in values
        s.tags[tag] = s.tags.get(tag, 0) + 1
        if values.get("id"):
            s.ids.append(str(values["id"]))
        if re.fullmatch(r"h[1-6]", tag):
            s.headings.append(int(tag[1]))
        if tag == "th" and "scope" not in values:
            s.unscoped += 1
        for name, value in attrs:
            text = value or ""
            if name in {"href", "xlink:href"} and text.startswith("#"):
                s.targets.append(text[1:])
            elif tag == "a" and name == "href" and re.fullmatch(r"(\.\./)?\.?[\w%-][\w%.-]*(/[\w%-][\w%.-]*)*", text):
                s.records.append(text)  # a file beside the page, which only a reader's click opens
            elif name in {"src", "href", "xlink:href", "srcset", "action", "data", "poster", "formaction"}:
                s.loads.append(f"{tag} {name}={text}")
            elif name.startswith("on"):
                s.handlers.append(f"{tag} {name}")
            elif "url(" in text or "@import" in text:
                s.loads.append(f"{tag} {name}={text}")


def read(html: str) -> Seen:
    reader = _Reader()
    reader.feed(html)
    reader.close()
    if reader.open:
        reader.seen.problems.append(f"never closed: {reader.open}")
    return reader.seen
