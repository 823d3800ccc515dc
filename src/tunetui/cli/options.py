"""What the commands share: refusals in one sentence with an exit code, and the reading of common options.

It runs nothing.
"""

from __future__ import annotations

import argparse
import re
from typing import NoReturn
from urllib.parse import urlsplit

USAGE, SERVER = 2, 3


class Refused(Exception):
    """One sentence for the operator, and the exit code."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, where argparse would print the usage first."""

    def error(self, message: str) -> NoReturn:
        raise Refused(f"{message} (see --help)", USAGE)


def is_url(text: str) -> bool:
    """Whether a server can be asked for at `text`."""
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises ValueError for one that is none
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and not re.search(r"\s", text)
