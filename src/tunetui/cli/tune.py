"""`tunetui` itself: reads the options, builds the parts of a session, and stops the server on the way out.

It decides nothing about points.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tunetui import __version__
from tunetui.cli.options import (
    SERVER,
    USAGE,
    Parser,
    Refused,
    add_goal_options,
    add_load_options,
    fit_to,
    is_url,
    load_from,
    refuse_counts,
    workload_from,
)

if TYPE_CHECKING:
    from tunetui.demo.profiles import Profile
    from tunetui.drive.settings import Settings
    from tunetui.engine.gpu import GpuReading

PORT = 8000
SLO = ["ttft:600", "tpot:80"]

EPILOG = """\
examples:
  tunetui --demo                             no GPU and no vLLM needed: a simulated engine, and the tuning guide's case
  tunetui --model meta-llama/Llama-2-7b-chat-hf --slo ttft:600 tpot:80 --rate 12
  tunetui --model ./llama --concurrency 64 --prompt-tokens 64-512 -- --dtype bfloat16 --max-model-len 4096
  tunetui --url http://127.0.0.1:8000        watch a running server; load is sent only after you type yes

without a screen: tunetui sweep, tunetui measure, tunetui workload FILE, tunetui record (each has --help)

vLLM is found as --vllm, $TUNETUI_VLLM, `vllm` on PATH, or the module of this Python, in this order.
exit codes: 0 left by q, 2 usage, 3 no server, 129 and 143 ended by SIGHUP and SIGTERM (the server is stopped).
"""


def parser() -> argparse.ArgumentParser:
    """The options, as `--help` shows them. Parsing raises Refused."""
    made = Parser(
        prog="tunetui",
        usage="tunetui --model MODEL [options] [-- vllm flags]\n       tunetui --url URL [options]\n"
        "       tunetui --demo [PROFILE] [options] [-- vllm flags]",
        description="Step a running vLLM's settings by key, under load, and keep the point that meets the SLO.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_session_options(made)
    made.add_argument("--version", action="version", version=f"tunetui {__version__}")
    return made


def add_session_options(made: argparse.ArgumentParser) -> None:
    """The options that say which server, which goal and which load a session has."""
    server = made.add_argument_group("server")
    server.add_argument("--model", help="a Hugging Face name or a folder; starts vLLM with it")
    server.add_argument(
        "--demo",
        nargs="?",
        const="case",
        metavar="PROFILE",
        help="a simulated engine instead: case (default), 7b-24gb, 7b-80gb or 70b-4x80gb",
    )
    server.add_argument(
        "--from", metavar="BASELINE", dest="baseline", help="begin where a baseline was accepted; other options win"
    )
    server.add_argument("--url", help="attach to a running server instead: its knobs are read-only")
    server.add_argument("--vllm", metavar="CMD", help='the vLLM command, e.g. "/opt/vllm/bin/vllm serve"')
    server.add_argument("--host", default="127.0.0.1", help="where vLLM listens (default 127.0.0.1)")
    server.add_argument("--port", type=int, default=PORT, help=f"its port (default {PORT})")
    server.add_argument(
        "--max-num-seqs-ceiling",
        type=int,
        metavar="N",
        help="most sequences reachable without a restart (default 512, on cards below 40 GiB 256)",
    )
    server.add_argument(
        "--max-num-batched-tokens-ceiling",
        type=int,
        metavar="N",
        help="most tokens of a step reachable without a restart (default 8192, or the model's length up to 16384)",
    )
    goal = made.add_argument_group("objective")
    add_goal_options(goal, None, "(default ttft:600 tpot:80)")
    load = made.add_argument_group("load")
    add_load_options(load, "open loop: R requests/s (default 4)")
    load.add_argument(
        "--episode-requests",
        type=int,
        metavar="N",
        help="requests judged in an episode (default: enough for 20 bad ones, 400 for P95)",
    )
    made.add_argument(
        "--sessions-dir",
        type=Path,
        default=Path("sessions"),
        metavar="DIR",
        help="where sessions are kept (default ./sessions)",
    )  # fmt: skip


def with_baseline(words: Sequence[str]) -> list[str]:
    """`words` with those of the baseline that `--from` names, where it does. Raises Refused."""
    if not any(word == "--from" or word.startswith("--from=") for word in words):
        return list(words)
    from tunetui.cli.baseline import starting

    return starting.with_baseline(words)


def main(words: Sequence[str]) -> int:
    """Run the session that `words` ask for; returns the exit code. Raises Refused."""
    words = with_baseline(words)
    cut = words.index("--") if "--" in words else len(words)
    options = parser().parse_args(words[:cut])
    settings = settings_from(options, words[cut + 1 :])
    refuse_unusable_terminal()
    return run(settings)


def settings_from(options: argparse.Namespace, vllm_flags: Sequence[str]) -> Settings:
    """The session asked for. Raises Refused with one sentence and the next step."""
    from tunetui.core.load import Load, WorkloadError
    from tunetui.core.slo import SloError, parse_slo
    from tunetui.core.workload import default_episode_requests
    from tunetui.drive.settings import Settings
    from tunetui.engine.command import CommandError, GivenFlags, VllmCommand, VllmNotFound, find_vllm, read_flags

    profile = None if options.demo is None else demo_from(options)
    if profile is not None:
        vllm_flags = [*profile.flags, *vllm_flags]
    if bool(options.model) == bool(options.url):
        raise Refused(
            "give --model MODEL to start vLLM, --url URL to attach to one that runs, or --demo (see --help)", USAGE
        )
    try:
        slo = parse_slo(options.slo or SLO, options.percentile)
        load = load_from(options, default_rps=4.0)
        workload = workload_from(options)
        given = read_flags(vllm_flags) if options.model else GivenFlags()
        command = None
        if profile is not None:
            command = VllmCommand((sys.executable, "-m", "tunetui.demo", "--profile", options.demo), "--demo")
        elif options.model:
            command = find_vllm(options.vllm, os.environ)
    except (SloError, WorkloadError) as error:
        raise Refused(str(error), USAGE) from None
    except CommandError as error:
        raise Refused(str(error), SERVER if isinstance(error, VllmNotFound) else USAGE) from None
    if options.url and not is_url(options.url):
        raise Refused(f"cannot attach to {options.url!r}: give a URL such as http://127.0.0.1:8000", USAGE)
    if options.url and vllm_flags:
        raise Refused("vLLM flags after -- go with --model: an attached server has its own", USAGE)
    if not 0 < options.port < 65536:
        raise Refused(f"port {options.port} is not a port: give one from 1 to 65535", USAGE)
    refuse_counts(options, "episode_requests", "max_num_seqs_ceiling", "max_num_batched_tokens_ceiling")
    settings = Settings(
        slo=slo,
        load=load,
        workload=workload,
        episode_requests=options.episode_requests or default_episode_requests(slo.percentile),
        sessions_dir=options.sessions_dir,
        model=model_of(options.model or ""),
        command=command,
        given=given,
        url=(options.url or "").rstrip("/"),
        host=options.host,
        port=options.port,
        timeout_s=options.timeout,
        retries=options.retries,
        max_in_flight=options.max_in_flight,
        ceiling_seqs=options.max_num_seqs_ceiling,
        ceiling_tokens=options.max_num_batched_tokens_ceiling,
        cards=None if profile is None else cards_of(profile),
        simulated=profile is not None,
    )
    if profile is not None and load_is_left_to(options):
        seqs = given.max_num_seqs or 256
        settings = replace(settings, load=profile.load or Load(concurrency=seqs), follows_seqs=profile.load is None)
    return settings if settings.attached else without_contradiction(settings, options.fit)


def demo_from(options: argparse.Namespace) -> Profile:
    """The demo asked for; what it says and the operator does not is put into `options`. Raises Refused."""
    from tunetui.core.workload import default_episode_requests
    from tunetui.demo.profiles import PROFILES
    from tunetui.drive.engine import port_refusal

    if options.model or options.url or options.vllm:
        raise Refused("a demo has its own model and server: leave out --model, --url and --vllm", USAGE)
    if (profile := PROFILES.get(options.demo)) is None:
        raise Refused(f"no demo {options.demo!r}: give {', '.join(PROFILES)}", USAGE)
    options.model = profile.machine.model.name
    options.slo = options.slo or list(profile.slo)
    if options.trace is None:
        options.prompt_tokens = options.prompt_tokens or profile.prompt_tokens
        options.output_tokens = options.output_tokens or profile.output_tokens
    if options.episode_requests is None:  # an episode takes half as long, and decides a little less
        options.episode_requests = default_episode_requests(options.percentile) // 2
    if options.port == PORT and port_refusal(options.host, PORT):  # somebody's vLLM, say
        with socket.socket(socket.AF_INET6 if ":" in options.host else socket.AF_INET) as sock, suppress(OSError):
            sock.bind((options.host, 0))
            options.port = sock.getsockname()[1]
    return profile


def cards_of(profile: Profile) -> tuple[GpuReading, ...]:
    """What NVML would say of a demo's cards."""
    from tunetui.engine.gpu import GpuReading

    card = profile.machine.card
    memory = int(card.memory_gib * 2**30)
    return tuple(GpuReading(i, f"{card.name} (simulated)", memory, 0, None) for i in range(profile.machine.cards))


def load_is_left_to(options: argparse.Namespace) -> bool:
    """Whether nothing says how much load is sent."""
    return all(one is None for one in (options.rate, options.concurrency, options.ramp, options.trace))


def without_contradiction(settings: Settings, fit: str | None) -> Settings:
    """What cannot be had together is a usage error now, not a failed start a minute later."""
    from tunetui.drive.settings import contradiction, model_length

    length = model_length(settings.model, settings.given)
    settings = replace(settings, workload=fit_to(settings.workload, length, fit))
    if sentence := contradiction(settings):
        raise Refused(sentence, USAGE)
    return settings


def model_of(text: str) -> str:
    """The model to serve: a path with its ~ resolved, or a name. Raises Refused for a path that is not there."""
    if not text.startswith((".", "/", "~")):
        return text
    folder = Path(text).expanduser()
    if not (folder / "config.json").is_file():
        raise Refused(f"no model at {text}: give a folder with a config.json, or a Hugging Face name", USAGE)
    return str(folder) if text.startswith("~") else text


def refuse_unusable_terminal() -> None:
    """The screen needs a terminal of 60x15 that moves its cursor."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Refused("the screen needs a terminal: run tunetui from one, e.g. inside tmux", USAGE)
    if os.environ.get("TERM", "dumb") in ("dumb", ""):
        raise Refused("this terminal cannot draw (TERM=dumb): use another, e.g. TERM=xterm-256color", USAGE)
    width, height = shutil.get_terminal_size()
    with suppress(OSError):
        width, height = os.get_terminal_size(sys.stderr.fileno())
    if width < 60 or height < 15:
        raise Refused(f"the terminal is {width}x{height}, the screen needs 60x15: enlarge it", USAGE)


def session_folder(settings: Settings) -> Path:
    """A new folder for the session, once its port is free. Raises Refused."""
    from tunetui.drive.engine import port_refusal
    from tunetui.store.baselines import StoreError, make_session_folder

    if not settings.attached and (refusal := port_refusal(settings.host, settings.port)):
        raise Refused(refusal, SERVER)
    served = (settings.model or settings.url).rstrip("/").split("/")[-1]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"simulated-{served}" if settings.simulated else served).strip("-.")
    try:
        return make_session_folder(settings.sessions_dir, f"{name or 'session'}-{time.strftime('%Y%m%d-%H%M%S')}")
    except StoreError as error:
        raise Refused(str(error), USAGE) from None


def run(settings: Settings) -> int:
    """Run the app; whatever ends it, the server is stopped afterwards unless the operator leaves it running."""
    from tunetui.drive.driver import Driver
    from tunetui.ui.app import TunetuiApp

    folder = session_folder(settings)
    for name in ("COLUMNS", "LINES"):  # exported by some shells, and wrong as soon as the terminal is resized
        os.environ.pop(name, None)
    last_resort = LastResort()
    app = TunetuiApp(lambda changed: Driver(settings, folder, on_change=changed), last_resort.begin)
    try:
        app.run()
    finally:
        last_resort.cancel()
        report = end_server(app)
    with suppress(OSError):  # the terminal may be gone
        for line in report:
            print(line, file=sys.stderr)
    return app.return_code or 0


class LastResort:
    """Ends the process `after_s` seconds after a signal, unless the app has ended by then. Where the terminal is gone
    the app's last writes can hang for good (seen: one hangup in eight); the warden then stops the server."""

    def __init__(self, after_s: float = 4.0, end: Callable[[int], None] = os._exit) -> None:
        self._after_s = after_s
        self._end = end
        self._timer: threading.Timer | None = None

    def begin(self, code: int) -> None:
        """Exit with `code` when the time is up. The first call counts."""
        if self._timer is None:
            self._timer = threading.Timer(self._after_s, self._end, (code,))
            self._timer.daemon = True
            self._timer.start()

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def end_server(app: object) -> list[str]:
    """Stop the server, or leave it; the lines to print when the screen is gone."""
    from tunetui.core.session import Phase
    from tunetui.ui.app import TunetuiApp

    assert isinstance(app, TunetuiApp)
    driver, pid, url = app.driver, app.driver.engine.pid, app.driver.engine.url
    lines = []
    if driver.state.phase is Phase.FAILED and driver.state.failure:
        lines.append("tunetui: " + "  ".join(driver.state.failure[:2]))
    if app.leave_running:
        driver.leave_server()
        lines.append(f"vLLM is left running: pid {pid}, {url}; stop it with kill {pid}")
    else:
        left = driver.stop_server()
        if left:
            lines.append(f"tunetui: these processes would not end: {', '.join(map(str, left))}")
    if driver.state.baseline_path:
        lines.append(f"baseline: {driver.state.baseline_path}")
    with suppress(OSError):  # it stays where it holds something
        driver.folder.rmdir()
    return lines
