"""A baseline as a systemd service unit. systemd has quoting rules of its own (systemd.syntax, systemd.service)."""

from __future__ import annotations

import re

from tunetui.core.flags import Word
from tunetui.store.exports.server import Server, path_notes
from tunetui.store.exports.text import printable

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def render(server: Server) -> tuple[str, list[str]]:
    """The unit, and what it does not say."""
    file = f"/etc/vllm/{server.name}.env"
    environment = [f"Environment={quoted(f'{key}={value}')}" for key, value in server.environment.items()]
    if server.secrets or server.wants_hf_token:
        environment.append(f"EnvironmentFile={'' if server.secrets else '-'}{file}")
    lines = [
        "[Unit]",
        f"Description={_specifiers(_one_line(f'vLLM serving {server.model}'))}",
        "Wants=network-online.target",
        "After=network-online.target",
        "",
        "[Service]",
        "Type=exec",
        *environment,
        f"ExecStart={' '.join(_word(word) for word in server.words)}",
        "Restart=on-failure",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n", _notes(server, file)


def _notes(server: Server, file: str) -> list[str]:
    notes = [
        "it runs as root unless you add User= to [Service]",
        "no TimeoutStartSec is set: Type=exec counts as started before the model is loaded, so none applies",
    ]
    notes += [f"put {name}=... into {file}: it has what {what} had" for name, what in server.secrets.items()]
    program = server.command[0]
    if "/" not in program:
        notes.append(
            f"systemd looks for {program} in its own path only: write where it is, e.g. /opt/vllm/bin/{program}"
        )
    elif not program.startswith("/"):
        notes.append(f"systemd takes no relative path: write where {program} is")
    if server.model_is_local and not server.model.startswith("/"):
        notes.append("the model's path is relative: add WorkingDirectory= to [Service]")
    return [*notes, *path_notes(server, command=True)]


def _word(word: Word) -> str:
    """A word of ExecStart=, where `$` begins a variable."""
    return quoted(word.replace("$", "$$")) if isinstance(word, str) else f'"${{{word.variable}}}"'


def quoted(text: str) -> str:
    """One item of a unit file's list, in double quotes where it needs them."""
    text = _specifiers(text)
    if re.fullmatch(r"[\w@%+=:,./$-]+", text, re.ASCII):
        return text
    return (
        '"'
        + "".join(_ESCAPES.get(c) or (f"\\x{ord(c):02x}" if ord(c) < 32 or ord(c) == 127 else c) for c in text)
        + '"'
    )


def _one_line(text: str) -> str:
    """A text without quotes or escapes: a backslash at its end would go on with the next line."""
    return printable(text).replace("\\", "?")


def _specifiers(text: str) -> str:
    return text.replace("%", "%%")
