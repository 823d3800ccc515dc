"""The commands in the text of a shell script: quotes, line ends, plain variables. It runs nothing; loops are words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

UNKNOWN = "\0"  # stands before a reference that only the shell can fill in
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BRACED = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(:?-([^}]*))?\}")
_ENDS = ";&|()\n"


class ScriptError(ValueError):
    """A text that is no script: one sentence with its line."""


@dataclass(slots=True)
class Command:
    """One command: where it begins, the variables set for it, and its words."""

    line: int
    words: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)


def commands(text: str) -> Iterator[Command]:
    """The commands of `text`, with the variables that it sets itself filled in. Raises ScriptError."""
    reader = _Reader(text)
    while reader.at < len(text):
        command = reader.command()
        if command.words or command.variables:
            yield command


class _Reader:
    """Goes through a script; `known` are the variables that it has set so far."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.known: dict[str, str] = {}

    def command(self) -> Command:
        """The next command, up to its end; where output goes (`> log`) is left out."""
        found, redirected = Command(self._line()), False
        while self.at < len(self.text):
            c = self.text[self.at]
            if self.text.startswith("\\\n", self.at):
                self.at += 2
            elif c == "&" and self.text[self.at - 1 : self.at] in (">", "<"):
                self.at += 1  # 2>&1
            elif c in _ENDS:
                self.at += 1
                break
            elif c in " \t\r":
                self.at += 1
            elif c == "#":
                self.at = (self.text + "\n").index("\n", self.at)
            elif c in "<>":
                if found.words and found.words[-1].isdigit() and self.text[self.at - 1].isdigit():
                    found.words.pop()  # the 2 of 2>
                self.at += 1
                redirected = True
            else:
                if not found.words and not found.variables:
                    found.line = self._line()
                words = self._word()
                if not redirected:
                    found.words += words
                redirected = False
        return self._with_variables(found)

    def _line(self) -> int:
        return self.text.count("\n", 0, self.at) + 1

    def _with_variables(self, found: Command) -> Command:
        """`A=1 vllm ...` sets A for this command, `A=1` and `export A=1` for all that follow."""
        exported = found.words[:1] == ["export"]
        words = found.words[1:] if exported else found.words
        while words:
            name, equals, value = words[0].partition("=")
            if not equals or not _NAME.fullmatch(name):
                break
            found.variables[name] = value
            words = words[1:]
        found.words = ["export"] if exported else words
        if exported or not words:
            self.known |= found.variables
        return found

    def _word(self) -> list[str]:
        """The word that begins here; an unquoted variable may be several, or none."""
        words, begun = [""], False
        while self.at < len(self.text) and (c := self.text[self.at]) not in " \t\r<>" + _ENDS:
            if c == "'":
                words[-1] += self._until_quote()
                begun = True
            elif c == '"':
                words[-1] += self._double()
                begun = True
            elif c == "\\":
                words[-1] += self.text[self.at + 1 : self.at + 2].replace("\n", "")
                self.at += 2
            elif c in "$`":
                first, *more = re.split(r"[ \t\n]+", self._reference())
                words[-1] += first
                words += more
            else:
                words[-1] += c
                self.at += 1
        return words if begun else [word for word in words if word]

    def _until_quote(self) -> str:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            raise ScriptError(f"line {self._line()}: a ' is not closed: write the other one")
        found = self.text[self.at + 1 : end]
        self.at = end + 1
        return found

    def _double(self) -> str:
        line, found = self._line(), ""
        self.at += 1
        while self.at < len(self.text):
            c = self.text[self.at]
            if c == '"':
                self.at += 1
                return found
            if c == "\\" and self.text[self.at + 1 : self.at + 2] in tuple('$`"\\\n'):
                found += self.text[self.at + 1].replace("\n", "")
                self.at += 2
            elif c in "$`":
                found += self._reference()
            else:
                found += c
                self.at += 1
        raise ScriptError(f'line {line}: a " is not closed: write the other one')

    def _reference(self) -> str:
        """What a `$NAME` or `${NAME:-DEFAULT}` stands for; behind UNKNOWN what only the shell can say."""
        begin = self.at
        self.at += 1
        if self.text[begin] == "`" or self.text.startswith("(", self.at):
            end = self.text.find("`" if self.text[begin] == "`" else ")", self.at)
            self.at = len(self.text) if end < 0 else end + 1
        elif braced := _BRACED.match(self.text, self.at):
            self.at = braced.end()
            if braced[1] in self.known:
                return self.known[braced[1]]
            if braced[3]:
                return braced[3]
        elif named := _NAME.match(self.text, self.at):
            self.at = named.end()
            if named[0] in self.known:
                return self.known[named[0]]
        elif self.text.startswith("{", self.at):
            self.at = self.text.find("}", self.at) + 1 or len(self.text)
        elif self.text[self.at : self.at + 1] not in tuple("@*#?$!0123456789"):
            return "$"  # of no variable
        else:
            self.at += 1
        return UNKNOWN + re.sub(r"\s", "", self.text[begin : self.at])
