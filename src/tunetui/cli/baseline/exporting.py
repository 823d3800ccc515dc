"""`tunetui baseline export`: the point in the form that a server is started from elsewhere.

It makes no form (`store.exports` does) and starts nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tunetui.cli.options import USAGE, Parser, Refused

FORMS = ("shell", "yaml", "compose", "systemd", "k8s", "helm", "json")

EPILOG = """\
examples:
  tunetui baseline export sessions/llama-20261202 --as shell
  tunetui baseline export baseline.toml --as yaml --out vllm.yaml       for: vllm serve --config vllm.yaml
  tunetui baseline export baseline.toml --as k8s | kubectl apply -f -

shell, systemd: a command as it was recorded. yaml: vLLM's own --config. compose, k8s, helm: containers, where vLLM
listens on 0.0.0.0; helm is values.yaml of vLLM's production stack. json: the names of vllm bench serve --save-result.
Secrets are never in it: references to variables stand for them. What is not carried over is said at its head and on
stderr. exit codes: 0, 2 usage.
"""


def parser() -> argparse.ArgumentParser:
    """The options, as `--help` shows them. Parsing raises Refused."""
    made = Parser(
        prog="tunetui baseline export",
        description="Write a baseline's point in a form that a server is started from.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("baseline", help="a session's folder, or its baseline.toml")
    made.add_argument("--as", required=True, choices=FORMS, dest="form", help="the form")
    made.add_argument("--out", default="-", metavar="FILE", help="where to write it; - (default) is stdout")
    made.add_argument("--force", action="store_true", help="write over a file that is there")
    made.add_argument("--image", default="", help="the container image (default vllm/vllm-openai of the same version)")
    made.add_argument(
        "--simulated-anyway", action="store_true", help="export a baseline of a simulated engine; its head says so"
    )
    return made


def main(words: Sequence[str]) -> int:
    """Export as `words` ask for; returns the exit code. Raises Refused."""
    from tunetui.cli.baseline.checking import baseline_at
    from tunetui.store.exports import ExportError, exported

    options = parser().parse_args(words[1:])
    baseline = baseline_at(options.baseline)
    try:
        text, notes = exported(baseline, options.form, options.simulated_anyway, options.image)
    except ExportError as error:
        raise Refused(str(error), USAGE) from None
    write(options.out, text, options.force)
    for note in notes:
        print(f"tunetui: {note}", file=sys.stderr)
    return 0


def write(path: str, text: str, force: bool) -> None:
    """Write to a file, or to stdout for -. Raises Refused."""
    from tunetui.cli.measure import into, unwritable

    if path == "-":
        into(path, [text])
        return
    try:
        with open(path, "w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise Refused(f"{path} is there already: give another file, or --force to write over it", USAGE) from None
    except OSError as error:
        raise unwritable(path, error) from None
