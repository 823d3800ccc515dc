"""The vLLM command: where it is found, what the operator's flags say, and the argv of a start.

It starts nothing.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tunetui.core.flags import flags_in, split_command
from tunetui.core.knobs import MemoryFlag, Point, knob_argv
from tunetui.live.tunetui_live.block import ENVIRONMENT_KEY

API_SERVER_MODULE = "vllm.entrypoints.openai.api_server"
SCHEDULER = "tunetui_live.scheduler.make_scheduler"

# Environment variables of a start that a baseline must not carry.
SECRET_WORDS = ("TOKEN", "KEY", "SECRET", "PASSWORD", "CREDENTIAL")
# vLLM's flags whose values are secrets.
SECRET_FLAGS = ("--api-key", "--hf-token")
# What a start depends on, besides the flags.
ENVIRONMENT_PREFIXES = ("VLLM_", "CUDA_", "HF_HUB_OFFLINE", "HF_HOME", "OMP_NUM_THREADS", "NCCL_", "HIP_", "ROCR_")


class CommandError(Exception):
    """No vLLM was found, or the flags given for it cannot be read; one sentence with the next step."""


class VllmNotFound(CommandError):
    """There is no vLLM to start; one sentence with the next step."""


@dataclass(frozen=True, slots=True)
class VllmCommand:
    """How to run vLLM's server: the words before its flags, and where they were found."""

    words: tuple[str, ...]
    source: str

    @property
    def takes_model_as_word(self) -> bool:
        """`vllm serve MODEL`, against `--model MODEL` of the module and of other commands."""
        return self.words[-1] == "serve"


def find_vllm(explicit: str | None, environment: Mapping[str, str]) -> VllmCommand:
    """`--vllm`, then $TUNETUI_VLLM, then `vllm` on PATH, then the module of this interpreter.

    Raises VllmNotFound with the next step where there is none.
    """
    for given, source in ((explicit, "--vllm"), (environment.get("TUNETUI_VLLM") or None, "TUNETUI_VLLM")):
        if given is not None:
            try:
                words = shlex.split(given)
            except ValueError:  # an open quote
                words = []
            if not words or shutil.which(words[0], path=environment.get("PATH")) is None:
                raise VllmNotFound(f"no command {given!r} ({source}): give the path of a vllm that is installed")
            if Path(words[0]).name == "vllm" and len(words) == 1:
                words.append("serve")
            return VllmCommand(tuple(words), source)
    found = shutil.which("vllm", path=environment.get("PATH"))
    if found:
        return VllmCommand((found, "serve"), "PATH")
    if importlib.util.find_spec("vllm") is not None:
        return VllmCommand((sys.executable, "-m", API_SERVER_MODULE), "this Python")
    raise VllmNotFound(
        "no vLLM here: install it (pip install vllm), or name its command with --vllm or in TUNETUI_VLLM, "
        'e.g. --vllm "/opt/vllm/bin/vllm serve"'
    )


@dataclass(frozen=True, slots=True)
class GivenFlags:
    """What the operator gave after `--`: the knobs taken out of it (None: not given) and the rest, word for word."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    chunked_prefill: bool | None = None
    long_prefill_token_threshold: int | None = None
    utilization: float | None = None
    kv_cache_bytes: int | None = None
    prefix_caching: bool | None = None
    max_model_len: int | None = None
    served_model_name: str | None = None
    rest: tuple[str, ...] = ()

    @property
    def parallel(self) -> str:
        """Why one scheduler is not the only one, or an empty string."""
        if (value_of(self.rest, "--data-parallel-size", "-dp") or "1") != "1":
            return "data parallelism: each engine core has a scheduler of its own"
        if value_of(self.rest, "--data-parallel-rank", "-dpn") is not None:
            return "data parallelism: this is one of several servers"
        if value_of(self.rest, "--scheduler-cls") is not None:
            return "another scheduler class was given"
        return ""

    @property
    def blocks_override(self) -> str:
        """The number of KV blocks that was given, whatever the memory; or an empty string."""
        return value_of(self.rest, "--num-gpu-blocks-override") or ""

    @property
    def several_cards(self) -> bool:
        """Whether several cards share the model's layers, so that a card's figures are not the engine's."""
        return (value_of(self.rest, "--tensor-parallel-size", "-tp") or "1") != "1"


def value_of(words: Sequence[str], *names: str) -> str | None:
    """The value of a flag with one of these names, or None."""
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") in names:
            return value if equals else (words[index + 1] if index + 1 < len(words) else "")
    return None


_SIZES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def _human_int(text: str) -> int:
    """vLLM's human-readable integers: 1k is 1,000 and 1K is 1,024."""
    if text and text[-1] in _SIZES:
        return int(float(text[:-1]) * _SIZES[text[-1]])
    return int(text)


def read_flags(words: Sequence[str]) -> GivenFlags:
    """Take our knobs out of the operator's vLLM flags. Raises CommandError for one that cannot be read or is ours."""
    given = GivenFlags()
    rest: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        name, equals, value = word.partition("=")
        name = name.replace("_", "-") if name.startswith("--") else name
        index += 1
        if name in ("--enable-chunked-prefill", "--no-enable-chunked-prefill"):
            given = replace(given, chunked_prefill=not name.startswith("--no-"))
        elif name in ("--enable-prefix-caching", "--no-enable-prefix-caching"):
            given = replace(given, prefix_caching=not name.startswith("--no-"))
        elif name in ("--model", "--host", "--port"):
            raise CommandError(f"give {name} to tunetui itself, before the --")
        elif name in _INSTEAD:
            raise CommandError(f"give {_INSTEAD[name]} instead of {name}: vLLM starts only with the two in order")
        elif name in _VALUED:
            if not equals:
                if index >= len(words):
                    raise CommandError(f"{name} needs a value")
                value = words[index]
                index += 1
            field, read = _VALUED[name]
            try:
                given = replace(given, **{field: read(value)})  # type: ignore[arg-type]
            except (ValueError, OverflowError):
                raise CommandError(f"cannot read {value!r} as the value of {name}") from None
            if name in ("--max-model-len", "--served-model-name"):
                rest += [name, value]
        else:
            rest.append(word)
    if given.kv_cache_bytes is not None and given.utilization is not None:
        # The knob is the size; vLLM still refuses to start where the share is not free.
        rest += ["--gpu-memory-utilization", f"{given.utilization:g}"]
    return replace(given, rest=tuple(rest))


def _count(text: str) -> int:
    """A human-readable integer of 1 or more. Raises ValueError."""
    value = _human_int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _zero_or_more(text: str) -> int:
    """A human-readable integer of 0 or more. Raises ValueError."""
    return 0 if text == "0" else _count(text)


def _share(text: str) -> float:
    """A share of the card, above 0 and at most 1. Raises ValueError."""
    value = float(text)
    if not 0 < value <= 1:
        raise ValueError(text)
    return value


def _length(text: str) -> int | None:
    """A model length; None where vLLM is to find the one that fits (`auto`, -1). Raises ValueError."""
    return None if text in ("auto", "-1") else _count(text)


_INSTEAD = {"--max-num-active-seqs": "--max-num-seqs", "--max-num-scheduled-tokens": "--max-num-batched-tokens"}
_VALUED: dict[str, tuple[str, Callable[[str], object]]] = {
    "--max-num-seqs": ("max_num_seqs", _count),
    "--max-num-batched-tokens": ("max_num_batched_tokens", _count),
    "--long-prefill-token-threshold": ("long_prefill_token_threshold", _zero_or_more),
    "--gpu-memory-utilization": ("utilization", _share),
    "--kv-cache-memory-bytes": ("kv_cache_bytes", _count),
    "--max-model-len": ("max_model_len", _length),
    "--served-model-name": ("served_model_name", str),
}


def serve_argv(
    command: VllmCommand,
    model: str,
    host: str,
    port: int,
    point: Point,
    memory_flag: MemoryFlag,
    rest: Sequence[str],
    live: bool,
) -> tuple[str, ...]:
    """The argv of a start with every knob explicit; `live` adds our scheduler class."""
    argv = [*command.words]
    argv += [model] if command.takes_model_as_word else ["--model", model]
    argv += ["--host", host, "--port", str(port), *knob_argv(point, memory_flag)]
    if live:
        argv += ["--scheduler-cls", SCHEDULER]
    return (*argv, *rest)


_NOT_OF_A_SESSION = ("model", "host", "port", "scheduler-cls", "profile")


def flags_of(argv: Sequence[str]) -> tuple[str, ...]:
    """The flags in a server's argv as a session takes them after `--`: without the command, the model, where it
    listens, and a scheduler class."""
    _, flags = flags_in(split_command(argv)[1])
    return tuple(str(word) for flag in flags if flag.name not in _NOT_OF_A_SESSION for word in flag.words)


def without_secrets(argv: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """`argv` as a baseline may carry it, and the flags that were left out of it with their values."""
    kept: list[str] = []
    left_out: list[str] = []
    secret = False
    for word in argv:
        name = word.partition("=")[0].replace("_", "-")
        if name in SECRET_FLAGS:
            secret = "=" not in word
            left_out.append(name)
        elif secret and not word.startswith("--"):
            continue  # several keys may follow one flag
        else:
            secret = False
            kept.append(word)
    return tuple(kept), tuple(left_out)


def kept_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a start depends on, for a baseline: no secrets, nothing of ours."""
    return {
        key: value
        for key, value in sorted(environment.items())
        if key.startswith(ENVIRONMENT_PREFIXES) and not any(word in key.upper() for word in SECRET_WORDS)
    }


def server_environment(environment: Mapping[str, str], live_path: Path | None, block: Path | None) -> dict[str, str]:
    """The environment of a start. `live_path` is the folder that holds nothing but our top-level package."""
    result = dict(environment)
    result.pop(ENVIRONMENT_KEY, None)
    if live_path is not None and block is not None:
        result["PYTHONPATH"] = os.pathsep.join(p for p in (str(live_path), environment.get("PYTHONPATH", "")) if p)
        result[ENVIRONMENT_KEY] = str(block)
    return result
