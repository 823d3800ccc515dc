"""A vLLM's command line or `--config` YAML as the start of a session: its model and flags, and what is not taken over.

It knows no list of vLLM's flags: what is not tunetui's own, or a secret, goes on word for word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePath
from typing import Any

import yaml

from tunetui.core.flags import Flag, flags_in, is_flag, split_command
from tunetui.store.exports.secrets import is_secret_flag, is_secret_variable, looks_secret, variable_of
from tunetui.store.scripts import UNKNOWN, Command, ScriptError, commands

_OWN = "it is tunetui's own option: give it before the --"
WHY_NOT = {
    "host": _OWN,
    "port": _OWN,
    "scheduler-cls": "refused: tunetui starts vLLM with its own scheduler, to step settings live",
    "max-num-active-seqs": "tunetui steps --max-num-seqs: give its value there",
    "max-num-scheduled-tokens": "tunetui steps --max-num-batched-tokens: give its value there",
}
_EXPORTED = ("VLLM_", "CUDA_", "HF_", "NCCL_", "OMP_", "HIP_", "ROCR_")


class ImportingError(ValueError):
    """What cannot be read as a vLLM's start; one sentence with the line or key."""


@dataclass(slots=True)
class Imported:
    """The start of a session. `not_taken` says what was left out, and why; `notes` how something was read."""

    model: str
    flags: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    not_taken: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def from_words(words: Sequence[str]) -> Imported:
    """Of a command line as words. Raises ImportingError."""
    words = list(words)
    variables: dict[str, str] = {}
    while words and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*=.*", words[0], re.DOTALL):
        name, _, variables[name] = words.pop(0).partition("=")
    if not _starts_vllm(words):
        raise ImportingError("this is no vLLM command: give `vllm serve MODEL ...` or `python -m vllm.entrypoints...`")
    return _imported(Command(0, words, variables), {})


def from_script(text: str) -> Imported:
    """Of a text with one vLLM command line. Raises ImportingError."""
    found: list[Command] = []
    exported: dict[str, str] = {}
    try:
        for command in commands(text):
            if _starts_vllm(command.words):
                found.append(command)
            elif command.words[:1] == ["export"] and not found:
                exported |= {k: v for k, v in command.variables.items() if k.startswith(_EXPORTED)}
    except ScriptError as error:
        raise ImportingError(str(error)) from None
    if not found:
        raise ImportingError("no vLLM command in it: a line must have `vllm serve MODEL` or `python -m vllm...`")
    if len(found) > 1:
        lines = ", ".join(str(command.line) for command in found)
        raise ImportingError(f"several vLLM commands in it (lines {lines}): leave one")
    return _imported(found[0], exported)


def from_yaml(text: str) -> Imported:
    """Of a file for `vllm serve --config`. Raises ImportingError."""
    try:
        document = yaml.safe_load(text)
        node = yaml.compose(text, yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ImportingError(f"{line}this is not YAML ({error.problem}): correct it") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ImportingError(f"this is not YAML ({str(error).splitlines()[0]}): correct it") from None
    if not isinstance(document, dict) or not isinstance(node, yaml.MappingNode):
        raise ImportingError("line 1: no `key: value` lines, which vLLM's --config has: give such a file")
    lines = {key.value: key.start_mark.line + 1 for key, _ in node.value}
    words: list[str] = []
    notes: list[str] = []
    for key, value in document.items():
        where = f"line {lines.get(str(key), 1)}: {key}"
        if not isinstance(key, str) or not is_flag(f"--{key}") or key.startswith("-"):
            raise ImportingError(f"{where} is not the name of a flag: write it without dashes, e.g. max-num-seqs")
        words += _of_key(key, value, where, notes)
    found = _from_flags((), flags_in(words)[1])
    found.notes += notes
    return found


def _of_key(key: str, value: Any, where: str, notes: list[str]) -> list[str]:
    """The words that vLLM makes of a key. Raises ImportingError."""
    if value is None:
        raise ImportingError(f"{where} has no value: write one, or true for a switch")
    if isinstance(value, bool):
        if value:
            return [f"--{key}"]
        if not key.startswith("no-"):
            notes.append(f"{key}: false is read as --no-{key}; leave it out where vLLM has no such flag")
        return [] if key.startswith("no-") else [f"--no-{key}"]
    if isinstance(value, dict):
        try:
            return [f"--{key}", json.dumps(value)]
        except (TypeError, ValueError):
            raise ImportingError(f"{where} has a value that JSON cannot say: quote dates and keys") from None
    if isinstance(value, list):
        if any(isinstance(one, dict | list) or one is None or is_flag(str(one)) for one in value):
            raise ImportingError(f"{where} is a list of more than plain values: write what vLLM's flag takes")
        return [f"--{key}", *map(str, value)] if value else []
    return [f"--{key}={value}"] if is_flag(str(value)) else [f"--{key}", str(value)]


def _starts_vllm(words: Sequence[str]) -> bool:
    pairs = list(pairwise(words))
    return any(
        (PurePath(one).name == "vllm" and two == "serve") or (one == "-m" and two.startswith("vllm.entrypoints"))
        for one, two in pairs
    )


def _imported(command: Command, exported: dict[str, str]) -> Imported:
    """Of one command. Raises ImportingError with its line."""
    where = f"line {command.line}: " if command.line else ""
    positional, flags = flags_in(split_command(command.words)[1])
    if len(positional) > 1:
        raise ImportingError(
            f"{where}{shown(positional[1])!r} is behind the model and is no flag: vLLM takes one model"
        )
    try:
        found = _from_flags(positional, flags)
    except ImportingError as error:
        raise ImportingError(f"{where}{error}") from None
    for name, value in (exported | command.variables).items():
        if value == f"{UNKNOWN}${name}":
            continue  # handed on as the shell has it, and so it is to a session
        if is_secret_variable(name) or looks_secret(value):
            found.not_taken.append((name, "it looks like a secret: keep it in the environment"))
        elif UNKNOWN in value:
            found.not_taken.append((name, f"only the shell can fill in {shown(value)}: set it yourself"))
        else:
            found.environment[name] = value
    return found


def _from_flags(positional: Sequence[str], flags: Sequence[Flag]) -> Imported:
    """Sorts the flags into those that are taken over and those that are not. Raises ImportingError."""
    found = Imported(positional[0] if positional else "")
    kept: list[str] = []
    for flag in flags:
        values = [value for value in flag.values if isinstance(value, str)]
        if flag.name in ("model", "model-tag"):
            if len(values) != 1:
                raise ImportingError("model needs one value")
            found.model = found.model if positional else values[0]
        elif flag.name == "config":
            raise ImportingError(
                f"--config names a file: import that, {shown(' '.join(values))}, and add the other flags"
            )
        elif reason := _why_not(flag, values):
            found.not_taken.append((f"--{flag.name}" if flag.name else flag.written, reason))
        else:
            kept += [str(word) for word in flag.words]
    if not found.model:
        raise ImportingError("no model in it: write it right behind `vllm serve`, or as `model`")
    if UNKNOWN in found.model:
        raise ImportingError(f"the model is {shown(found.model)}, which only the shell knows: write its name")
    found.flags = tuple(kept)
    return found


def _why_not(flag: Flag, values: Sequence[str]) -> str:
    """Why a flag is not taken over, or an empty string."""
    if flag.name in WHY_NOT:
        return WHY_NOT[flag.name]
    if is_secret_flag(flag.name):
        return f"it is a secret: keep it in the environment, as {variable_of(flag.name)}"
    if any(looks_secret(value) for value in values):
        return "its value looks like a secret: give it yourself, behind the --"
    unknown = next((value for value in values if UNKNOWN in value), None)
    return "" if unknown is None else f"only the shell can fill in {shown(unknown)}: give it yourself, behind the --"


def shown(text: str) -> str:
    """A word as it stood in the script."""
    return text.replace(UNKNOWN, "")
