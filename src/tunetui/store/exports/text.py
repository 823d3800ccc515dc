"""What the formats share in writing: comments that stay comments, and YAML in which a text stays a text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml


def comments(lines: Iterable[str]) -> str:
    """Each line behind a `#`; what is not printable is replaced, so that none ends the comment."""
    return "".join(f"# {printable(line)}\n" for line in lines)


def printable(text: str) -> str:
    """`text` on one line, without control characters."""
    return "".join(c if c.isprintable() else "?" for c in text)


class Quoted(str):
    """A text that is quoted in YAML whatever it looks like: readers differ about plain `1e3`, `0o7` or `on`."""


class _Dumper(yaml.SafeDumper):
    """PyYAML's own, with quoted texts, lists indented, and no aliases."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _plain(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # Only double quotes carry every character: PyYAML reads some line ends in other styles as spaces.
    style = '"' if isinstance(text, Quoted) or not text.isprintable() else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style=style)


for _kind in (str, Quoted):
    _Dumper.add_representer(_kind, _plain)


def dumped(document: Any) -> str:
    """`document` as YAML, keys in their own order, lines not folded."""
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**30)
    return text
