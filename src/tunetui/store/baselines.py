"""Baselines on disk: one TOML file each, written whole or not at all.

It knows no figures; `core.baseline` does.
"""

from __future__ import annotations

import os
import tempfile
import tomllib
from pathlib import Path

import tomli_w

from tunetui.core.baseline import Baseline, BaselineError, upgraded
from tunetui.store.schema import SchemaError, check


class StoreError(Exception):
    """A file or folder that cannot be written or read; one sentence with the path and the reason."""


def make_session_folder(sessions: Path, name: str) -> Path:
    """Make `sessions/name` (0700), with a number behind the name where it is taken. Raises StoreError."""
    for number in range(1, 1000):
        folder = sessions / (name if number == 1 else f"{name}-{number}")
        try:
            sessions.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700)
        except FileExistsError:
            if sessions.is_dir():
                continue
            raise StoreError(f"{sessions} is not a folder: give another with --sessions-dir") from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise StoreError(f"cannot write to {sessions} ({reason}): give another with --sessions-dir") from None
        return folder
    raise StoreError(f"{sessions} is full of sessions named {name}: give another with --sessions-dir")


def write_baseline(folder: Path, baseline: Baseline) -> Path:
    """Write `folder/baseline.toml` atomically (temporary file, fsync, rename). Raises StoreError; an old file stays."""
    path = folder / "baseline.toml"
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=".baseline-", dir=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                tomli_w.dump(baseline.to_tables(), file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from None
    return path


def read_baseline(path: Path) -> Baseline:
    """Read a baseline file, of an older schema too. Raises StoreError naming the file, the key and the reason."""
    try:
        document = upgraded(tomllib.loads(path.read_text("utf-8")))
        check(document)
        return Baseline.from_tables(document)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} is not TOML: {error}") from None
    except (BaselineError, SchemaError) as error:
        raise StoreError(f"{path}: {error}") from None
