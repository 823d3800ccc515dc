"""`tunetui baseline import`: a session's start from the command line or YAML of a vLLM that runs elsewhere.

It starts nothing: it says the `tunetui` command.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunetui.cli.options import USAGE, Parser, Refused

if TYPE_CHECKING:
    from tunetui.store.imports import Imported

EPILOG = """\
examples:
  tunetui baseline import vllm.yaml                                     a file for vllm serve --config
  tunetui baseline import start.sh                                      a script with one vLLM command
  tunetui baseline import -- vllm serve MODEL --max-num-seqs 128

The command that starts a session there goes to stdout; what is not taken over, and why, to stderr.
exit codes: 0, 2 for what cannot be read.
"""


def parser() -> argparse.ArgumentParser:
    """The options, as `--help` shows them. Parsing raises Refused."""
    made = Parser(
        prog="tunetui baseline import",
        usage="tunetui baseline import [--json] FILE\n       tunetui baseline import [--json] -- vllm serve MODEL ...",
        description="Say how to start a session with the settings of a vLLM.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("file", nargs="?", help="a .yaml file for vllm serve --config, or a script with one vLLM command")
    made.add_argument("--json", action="store_true", help="print the model, the flags and the rest as JSON")
    return made


def main(words: Sequence[str]) -> int:
    """Import as `words` ask for; returns the exit code. Raises Refused."""
    words = list(words[1:])
    cut = words.index("--") if "--" in words else len(words)
    options = parser().parse_args(words[:cut])
    found = imported(options.file, words[cut + 1 :])
    if options.json:
        print(json.dumps(data(found), indent=2, ensure_ascii=False))
    else:
        print(command(found))
    for what, why in found.not_taken:
        print(f"tunetui: {what} is not taken over: {why}", file=sys.stderr)
    for note in found.notes:
        print(f"tunetui: {note}", file=sys.stderr)
    return 0


def imported(file: str | None, words: Sequence[str]) -> Imported:
    """What is in the file, or in the command. Raises Refused."""
    from tunetui.engine.command import CommandError, read_flags
    from tunetui.store.imports import ImportingError, from_script, from_words, from_yaml

    if (file is None) == (not words):
        raise Refused("give a FILE, or a command behind --, e.g. -- vllm serve MODEL", USAGE)
    where = "" if file is None else f"{file}: "
    try:
        if file is None:
            found = from_script(words[0]) if len(words) == 1 else from_words(words)
        elif Path(file).suffix == ".toml":
            raise Refused(f"{file} looks like a baseline: start there with tunetui --from {shlex.quote(file)}", USAGE)
        else:
            read = from_yaml if Path(file).suffix in (".yaml", ".yml") else from_script
            found = read(Path(file).read_text("utf-8"))
        read_flags(found.flags)
    except (ImportingError, CommandError) as error:
        raise Refused(f"{where}{error}", USAGE) from None
    except UnicodeDecodeError:
        raise Refused(f"{file} is not text: give a YAML file or a script", USAGE) from None
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        reason = getattr(error, "strerror", None) or str(error)
        raise Refused(f"cannot read {file} ({reason}): give a file, or a command behind --", USAGE) from None
    return found


def command(found: Imported) -> str:
    """The command that starts a session there."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in found.environment.items()]
    words = ["tunetui", "--model", found.model, *(["--", *found.flags] if found.flags else [])]
    return " ".join([*variables, shlex.join(words)])


def data(found: Imported) -> dict[str, Any]:
    """The same as JSON holds it."""
    return {
        "model": found.model,
        "flags": list(found.flags),
        "environment": found.environment,
        "not_taken": [{"what": what, "why": why} for what, why in found.not_taken],
        "notes": found.notes,
        "command": command(found),
    }
