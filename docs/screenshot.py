"""Draws a tmux pane as an SVG, in its colours: `python docs/screenshot.py TMUX-TARGET docs/screen.svg`.

The picture in the README is made with it from a real session; it invents nothing and edits nothing.
"""

from __future__ import annotations

import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

BACKGROUND = (18, 18, 18)  # of the app's theme: tmux leaves cells in the default background out
THEME = TerminalTheme(
    BACKGROUND,
    (224, 224, 224),
    [
        (18, 18, 18), (205, 60, 60), (60, 170, 90), (200, 160, 60),
        (70, 120, 220), (170, 90, 190), (60, 170, 180), (224, 224, 224),
    ],
    [
        (110, 110, 110), (240, 90, 90), (90, 210, 120), (235, 195, 90),
        (100, 150, 250), (200, 120, 220), (90, 210, 220), (250, 250, 250),
    ],
)  # fmt: skip


def main(target: str, path: Path) -> None:
    """Capture the pane and write the SVG; fonts are the reader's own monospace ones."""
    capture = ["tmux", "capture-pane", "-e", "-p", "-t", target]
    size = ["tmux", "display-message", "-p", "-t", target, "#{pane_width}"]
    lines = subprocess.run(capture, capture_output=True, text=True, check=True).stdout.rstrip("\n").split("\n")
    width = int(subprocess.run(size, capture_output=True, text=True, check=True).stdout)
    console = Console(record=True, width=width, file=StringIO(), color_system="truecolor", force_terminal=True)
    for line in lines:
        text = Text.from_ansi(line)
        text.pad_right(width - text.cell_len)
        text.stylize_before(Style(bgcolor="rgb(18,18,18)"))
        console.print(text, no_wrap=True, overflow="crop")
    svg = console.export_svg(title="tunetui", theme=THEME)
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S)
    path.write_text(re.sub(r"Fira Code", "DejaVu Sans Mono, Menlo, Consolas", svg), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
