"""`tunetui baseline`: what a team keeps. Each thing that can be done with baselines is a module here."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from tunetui.cli.options import USAGE, Refused

# What each does, in a few words for --help; a module here with `main(words) -> exit code`.
ACTIONS = {
    "check": "start the engine from a baseline and say whether it holds",
    "export": "the point as a command, YAML, Compose, systemd, Kubernetes, Helm or JSON",
    "import": "a session's start from a vLLM command line or YAML",
}
MODULES = {"check": "checking", "export": "exporting", "import": "importing"}


def usage() -> str:
    """What `--help` shows."""
    lines = [f"  {name:<8} {text}" for name, text in ACTIONS.items()]
    return "\n".join(["usage: tunetui baseline ACTION ... (each has --help)", "", *lines])


def main(words: Sequence[str]) -> int:
    """Do what the first word says. Raises Refused."""
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0 if words else USAGE
    if words[0] not in ACTIONS:
        raise Refused(f"no action {words[0]!r}: give one of {', '.join(ACTIONS)}", USAGE)
    module = importlib.import_module(f"tunetui.cli.baseline.{MODULES[words[0]]}")
    code: int = module.main(list(words))  # the action's own word stays: a module may have two
    return code
