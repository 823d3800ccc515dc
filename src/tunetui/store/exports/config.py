"""A baseline as the YAML of `vllm serve --config FILE`: its flags are the keys.

vLLM reads no environment variables and no references from it: these are said, not written.
"""

from __future__ import annotations

import re
import shlex

from tunetui.core.flags import Flag, Word
from tunetui.store.exports.server import Server, path_notes
from tunetui.store.exports.text import dumped

Value = str | int | float | bool | list[str | int | float]


def render(server: Server) -> tuple[str, list[str]]:
    """The YAML, and what it does not say."""
    keys: dict[str, Value] = {"model": server.model, "host": server.host, "port": server.port}
    behind: list[str] = []
    notes: list[str] = []
    for flag in server.flags:
        values = [value for value in flag.values if isinstance(value, str)]
        if len(values) < len(flag.values):
            behind.append(" ".join(f'"${word.variable}"' if not isinstance(word, str) else word for word in flag.words))
            continue
        if not flag.name:
            behind.append(" ".join(shlex.quote(str(word)) for word in flag.words))
            continue
        key, value = _entry(flag, values)
        if key in keys:
            notes.append(f"--{flag.name} was given more than once, a key stands once: the last is in it")
        keys[key] = value
    notes += [f"set {name} where vLLM starts: it has what {what} had" for name, what in server.secrets.items()]
    if server.environment:
        told = " ".join(f"{key}={shlex.quote(value)}" for key, value in server.environment.items())
        notes.append(f"these variables are not in it, set them where vLLM starts: {told}")
    notes += path_notes(server)
    if behind:
        notes.append(f"no key can say {', '.join(behind)}: give that behind the command")
    start = " ".join(["start it with: vllm serve --config FILE.yaml", *behind])
    return dumped(keys), [start, *notes]


def _entry(flag: Flag, values: list[str]) -> tuple[str, Value]:
    """The key and value which vLLM turns into the same words again."""
    if not values:
        # Not `enable-x: false` for --no-enable-x: older versions leave such a key out without a word.
        return flag.name, True
    if len(values) == 1:
        if values[0].startswith("-") and not re.fullmatch(r"-\d+|-\d*\.\d+", values[0]):
            return f"{flag.name}={values[0]}", True  # the parser would take the value for a flag
        return flag.name, number(values[0])
    return flag.name, [number(value) for value in values]


def number(text: Word) -> str | int | float:
    """`text` as a number, where that is written just so again."""
    text = str(text)
    for kind in (int, float):
        try:
            if str(value := kind(text)) == text and text not in ("inf", "-inf", "nan"):
                return value
        except ValueError:
            continue
    return text
