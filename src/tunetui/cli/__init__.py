"""The commands. `tunetui` alone is the screen; a first word chooses one of the others.

Usage errors are one sentence and exit code 2; a server that cannot be had is 3.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn

from tunetui.cli.options import Refused

COMMANDS = ("measure", "sweep", "workload", "record", "baseline")  # each a module here with `main(words) -> exit code`


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """The console script. Exits with the code that the epilog of `--help` lists."""
    words = list(sys.argv[1:] if argv is None else argv)
    command = words.pop(0) if words and words[0] in COMMANDS else "tune"
    try:
        code = importlib.import_module(f"tunetui.cli.{command}").main(words)
    except Refused as refusal:
        print(f"tunetui: {refusal}", file=sys.stderr)
        sys.exit(refusal.code)
    except KeyboardInterrupt:  # outside the screen; a server that was started ends with us
        sys.exit(130)
    sys.exit(code)
