"""A baseline as a command to paste into a POSIX shell: the recorded one, variables in front."""

from __future__ import annotations

import shlex

from tunetui.core.flags import Word
from tunetui.store.exports.server import Server, path_notes


def render(server: Server) -> tuple[str, list[str]]:
    """The command on one line, and what it does not say."""
    notes = [f"{name} must be set in the shell: it has what {what} had" for name, what in server.secrets.items()]
    notes += path_notes(server, command=True)
    kept = [f"{key}={shlex.quote(value)}" for key, value in server.environment.items()]
    # A flag's own reference is read by the shell; a variable that vLLM reads must be handed on.
    handed = [f'{name}="${name}"' for name in server.secrets if not name.startswith("SERVE_")]
    return " ".join([*kept, *handed, *(_word(word) for word in server.words)]) + "\n", notes


def _word(word: Word) -> str:
    return shlex.quote(word) if isinstance(word, str) else f'"${word.variable}"'
