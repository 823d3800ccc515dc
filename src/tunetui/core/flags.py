"""A vLLM command line as flags with their values, told apart the way vLLM's own parser does.

It knows no list of vLLM's flags, so a word behind a flag is its value; it reads no file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")
_NAME = re.compile(r"--?[A-Za-z][A-Za-z0-9_.+-]*")

# The long names of vLLM's short flags.
LONG = {
    "-tp": "tensor-parallel-size", "-pp": "pipeline-parallel-size", "-dp": "data-parallel-size",
    "-dpn": "data-parallel-rank", "-dpr": "data-parallel-start-rank", "-dpl": "data-parallel-size-local",
    "-dpa": "data-parallel-address", "-dpp": "data-parallel-rpc-port", "-dpb": "data-parallel-backend",
    "-dph": "data-parallel-hybrid-lb", "-dpe": "data-parallel-external-lb", "-dcp": "decode-context-parallel-size",
    "-pcp": "prefill-context-parallel-size", "-ep": "enable-expert-parallel", "-n": "nnodes", "-r": "node-rank",
    "-q": "quantization", "-sc": "speculative-config", "-dc": "diffusion-config",
    "-cc": "compilation-config", "-ac": "attention-config",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reference:
    """A value that must not be written down: the environment variable that has it where the server starts."""

    variable: str


Word = str | Reference


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag as it was written (`--max_num_seqs`, `-tp`), with its values; `glued` is the form `--name=value`."""

    written: str
    values: tuple[Word, ...] = ()
    glued: bool = False

    @property
    def name(self) -> str:
        """Its long name without the dashes, or an empty string for a short flag that has none that is known."""
        first, dot, rest = self.written.partition(".")
        name = first.removeprefix("--").replace("_", "-") if first.startswith("--") else LONG.get(first, "")
        return name and name + dot + rest

    @property
    def words(self) -> tuple[Word, ...]:
        """The words of the command line."""
        if self.glued and isinstance(self.values[0], str):
            return (f"{self.written}={self.values[0]}",)
        return (self.written, *self.values)

    @property
    def value(self) -> str | None:
        """Its value, where it has exactly one that may be written down."""
        return self.values[0] if len(self.values) == 1 and isinstance(self.values[0], str) else None


def is_flag(word: str) -> bool:
    """Whether vLLM's parser takes `word` for a flag: a negative number and a text with spaces are values."""
    return bool(_NAME.fullmatch(word.partition("=")[0])) and not _NEGATIVE.fullmatch(word)


def flags_in(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[Flag, ...]]:
    """The words before the first flag, and the flags."""
    before: list[str] = []
    found: list[Flag] = []
    for word in words:
        if is_flag(word):
            name, equals, value = word.partition("=")
            found.append(Flag(name, (value,) if equals else (), bool(equals)))
        elif not found:
            before.append(word)
        else:
            last = found[-1]
            if last.glued:  # `--name=value more`: two words, as vLLM has it
                last = Flag(last.written, last.values)
            found[-1] = Flag(last.written, (*last.values, word))
    return tuple(before), tuple(found)


def split_command(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The command that serves (`vllm serve`, `python -m MODULE`), and the words behind it."""
    if "serve" in words:
        cut = list(words).index("serve") + 1
    elif "-m" in words[:-1]:
        cut = list(words).index("-m") + 2
    else:
        cut = next((at for at, word in enumerate(words) if word.startswith("--")), len(words))
    return tuple(words[:cut]), tuple(words[cut:])
