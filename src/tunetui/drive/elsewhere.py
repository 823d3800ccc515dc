"""Runs a function in a process of its own, so that what takes seconds of a CPU holds up neither keys nor load.

It keeps no process: each call starts one, which ends with its answer or its caller.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import pickle
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")
NICE = 10
PR_SET_PDEATHSIG = 1  # linux/prctl.h


class ElsewhereError(RuntimeError):
    """The function did not come to an answer; the message is one sentence."""


async def elsewhere(function: Callable[..., T], *arguments: object) -> T:
    """`function(*arguments)`; both, and the answer, must be picklable. Cancelled, it ends the process at once.

    Raises ElsewhereError where the function raises or the process dies.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", __name__,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        answer, complaint = await process.communicate(pickle.dumps((function, arguments)))
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode != 0:
        last = complaint.decode(errors="replace").strip().splitlines()[-1:]
        raise ElsewhereError(f"a helper process ended with {process.returncode}: {' '.join(last)}")
    result: T = pickle.loads(answer)
    return result


def _main() -> None:
    """In the child: as long as its parent lives, and behind everything else that runs."""
    parent = os.getppid()
    with suppress(AttributeError, OSError):  # not Linux: it ends when it has its answer
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            return
    with suppress(OSError):
        os.nice(NICE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    function, arguments = pickle.load(sys.stdin.buffer)
    pickle.dump(function(*arguments), sys.stdout.buffer)


if __name__ == "__main__":
    _main()
