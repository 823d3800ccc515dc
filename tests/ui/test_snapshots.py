"""The screen on the tuning guide's case, as pictures that are kept: figures of the simulated engine in virtual time.

`pytest tests/ui/test_snapshots.py --snapshot-update` makes the pictures anew. Look at them before you keep them.
"""

from __future__ import annotations

import difflib
import html
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.image import SVGImageSnapshotExtension
from textual.pilot import Pilot
from ui.stub import make_app, screen_text, until
from ui.virtual_case import Walk

from tunetui.ui.app import TunetuiApp

CELL = 12.2  # the width of a cell in these pictures
TEXT = re.compile(r'<text [^>]*?x="([\d.]+)"[^>]*?-line-(\d+)\)">(.*?)</text>')
JUDGED = 60  # requests of an episode that is under way


def at_256() -> Walk:
    """The first point, and no verdict yet."""
    walk = Walk()
    walk.look(lambda state: state.measurement is not None and state.measurement.judged >= JUDGED)
    return walk


def at_384() -> Walk:
    """Long prefills stand before the decodes of more sequences."""
    walk = Walk()
    point = walk.look(lambda state: bool(state.rows)).point
    assert point is not None
    walk.step(replace(point, max_num_seqs=384))
    walk.look(lambda state: state.measurement is not None and state.measurement.judged >= JUDGED)
    return walk


def at_320_chunked() -> Walk:
    """The point that the guide accepts."""
    walk = at_384()
    point = walk.state.point
    assert point is not None
    walk.step(replace(point, max_num_seqs=320, max_num_batched_tokens=8192, chunked_prefill=True))
    walk.look(lambda state: len(state.rows) == 3)
    return walk


WALKS = {"256-undecided": at_256, "384-fails": at_384, "320-chunked-passes": at_320_chunked}


@pytest.mark.parametrize("size", [(80, 24), (120, 36)], ids=lambda size: "{}x{}".format(*size))
@pytest.mark.parametrize("walk", WALKS.values(), ids=WALKS)
async def test_the_case_looks_as_it_did(
    walk: Callable[[], Walk],
    size: tuple[int, int],
    snapshot: SnapshotAssertion,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = walk()
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("tunetui.ui.app.time", SimpleNamespace(monotonic=lambda: case.now_s))
    app, _ = make_app(case.state)
    app.theme = "textual-dark"  # whatever the environment prefers
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: screen_text(app).count("now") == 2)  # both charts have their axes
        seen = await picture(pilot, app)
    kept = snapshot(extension_class=SVGImageSnapshotExtension)
    if seen != kept:
        path = tmp_path / "screen.svg"
        path.write_text(seen, "utf-8")
        pytest.fail(explanation(Path(kept.executions[0].snapshot_location), path), pytrace=False)


async def picture(pilot: Pilot[int], app: TunetuiApp) -> str:
    """The screen once nothing in it moves any more."""
    before, seen = "", exported(app)
    while seen != before:
        await pilot.pause()
        before, seen = seen, exported(app)
    return seen


def exported(app: TunetuiApp) -> str:
    """The screen as it is, without the number that is another one for every picture."""
    return re.sub(r"\bterminal-\d+-", "terminal-", app.export_screenshot(title="tunetui", simplify=True))


def rows_of(svg: str) -> list[str]:
    """The text in a picture, row by row."""
    rows: dict[int, str] = {}
    for left, row, text in TEXT.findall(svg):
        before = rows.get(int(row), "").ljust(round(float(left) / CELL))
        rows[int(row)] = before + html.unescape(text).replace("\xa0", " ")
    return [rows.get(row, "").rstrip() for row in range(max(rows, default=-1) + 1)]


def explanation(kept: Path, seen: Path) -> str:
    """Which rows differ, where both pictures are, and how to keep the new one."""
    before, now = (rows_of(path.read_text("utf-8")) if path.exists() else [] for path in (kept, seen))
    differ = list(difflib.unified_diff(before, now, lineterm="", n=0))[2:]
    return "\n".join(
        (
            "the screen is another (+) than the picture that is kept (-):",
            *(differ or ["every row reads the same: the colours differ"]),
            f"look at {seen}\nbeside {kept}",
            "if the new one is right: uv run pytest tests/ui/test_snapshots.py --snapshot-update",
        )
    )
