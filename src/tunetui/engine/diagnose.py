"""Why the server ended: the last meaningful lines of its log, what they mean, and what to do.

It knows only what the log and the exit code say; it does not look at the machine. The rules are data, from the messages
of vLLM 0.10 to 0.32, PyTorch, Transformers and the Hugging Face client.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from tunetui.core.ceilings import Shortage, ShortageKind

EVIDENCE_LINES = 6
EVIDENCE_CAP = 600
LINES_LOOKED_AT = 5000
_VALUE_CAP = 160


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One sentence with the numbers in it, what to do next, and the log lines it rests on, oldest first; `shortage`
    where the start ended for want of memory, which a lower ceiling may meet."""

    sentence: str
    next_step: str
    evidence: tuple[str, ...]
    shortage: Shortage | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """A message, and what it means. Named groups of the pattern fill the `{name}` of both texts; `free` and
    `total` of a shortage of free memory say how much of the device a start can have."""

    pattern: re.Pattern[str]
    sentence: str
    next_step: str
    shortage: ShortageKind | None = None


def _rule(pattern: str, sentence: str, next_step: str, shortage: ShortageKind | None = None) -> Rule:
    return Rule(re.compile(pattern), sentence, next_step, shortage)


# The first rule that matches any line wins: causes come before their consequences.
RULES: tuple[Rule, ...] = (
    _rule(r"unrecognized arguments: (?P<flags>.+)", "this vLLM does not know {flags}",
          "leave the flag out, or use a vLLM version that has it"),
    _rule(r"error: argument (?P<flag>\S+): (?P<why>.+)", "vLLM refused {flag}: {why}", "correct that value"),
    _rule(r"No module named '?vllm'?(?![\w.])", "vLLM is not installed for the Python that was started",
          "give the command of your vLLM with --vllm or TUNETUI_VLLM"),
    _rule(r"PackageNotFoundError: No package metadata was found for (?P<name>vllm\S*)",
          "this vLLM lacks the package metadata its `vllm` command reads",
          "use the module form: --vllm 'python -m vllm.entrypoints.openai.api_server'"),
    _rule(r"Address already in use|address already in use", "the port is taken by another process",
          "take another port, or end the process that holds it"),
    _rule(r"Free memory on device (?P<device>\S+) \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than "
          r"desired GPU memory utilization \((?P<util>[\d.]+), (?P<want>[\d.]+) GiB\)",
          "only {free} of {total} GiB are free on {device}, and gpu-memory-utilization {util} asks for {want} GiB",
          "lower gpu-memory-utilization, or end what holds the card (an engine core of an earlier server?)",
          ShortageKind.UTILIZATION),
    _rule(r"Free memory on device \S* ?\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than",
          "only {free} of {total} GiB are free on the card, less than gpu-memory-utilization asks for",
          "lower gpu-memory-utilization, or end what holds the card", ShortageKind.UTILIZATION),
    _rule(r"Available memory on node (?P<node>\S+) \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\).{0,80}?less than "
          r"requested memory for kv \((?P<want>-[\d.]+)",
          "the CPU worker alone takes more than gpu-memory-utilization allows: {want} GiB are left for the KV cache",
          "raise gpu-memory-utilization (it counts for CPU memory too)", ShortageKind.KV_CACHE),
    _rule(r"Available memory on node (?P<node>\S+) \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\).{0,80}?less than "
          r"desired CPU memory utilization",
          "only {free} of {total} GiB are available on memory node {node}, less than was asked for",
          "lower gpu-memory-utilization (it counts for CPU memory too)", ShortageKind.UTILIZATION),
    _rule(r"Available memory on node (?P<node>\S+) \((?P<left>[\d.]+)/(?P<size>[\d.]+) GiB\).{0,80}?less than "
          r"requested memory for kv",
          "only {left} of {size} GiB are available on memory node {node}, less than was asked for",
          "lower gpu-memory-utilization (it counts for CPU memory too) or the explicit KV cache size",
          ShortageKind.UTILIZATION),
    _rule(r"No available memory for the cache blocks", "after the weights no memory was left for the KV cache",
          "raise gpu-memory-utilization, or lower max-num-seqs, max-num-batched-tokens or the model's size",
          ShortageKind.KV_CACHE),
    _rule(r"max seq len \((?P<length>\d+)\), \((?P<need>[\d.]+) GiB KV cache is needed, which is larger than the "
          r"available KV cache memory \((?P<have>[\d.]+) GiB\).{0,60}?estimated maximum model length is (?P<fits>\d+)",
          "one request of {length} tokens needs {need} GiB of KV cache and {have} GiB are there: {fits} tokens fit",
          "set --max-model-len to at most {fits}, or raise gpu-memory-utilization", ShortageKind.KV_CACHE),
    _rule(r"max seq len \((?P<length>\d+)\), \((?P<need>[\d.]+) GiB KV cache is needed, which is larger than the "
          r"available KV cache memory \((?P<have>[\d.]+) GiB\)",
          "one request of {length} tokens needs {need} GiB of KV cache and only {have} GiB are there",
          "lower --max-model-len, or raise gpu-memory-utilization", ShortageKind.KV_CACHE),
    _rule(r"max_num_batched_tokens \((?P<tokens>\d+)\) must be greater than or equal to max_num_seqs \((?P<seqs>\d+)\)",
          "max-num-batched-tokens {tokens} is below max-num-seqs {seqs}",
          "raise max-num-batched-tokens to at least {seqs}, or lower max-num-seqs"),
    _rule(r"max_num_batched_tokens \((?P<tokens>\d+)\) is smaller than max_model_len \((?P<length>\d+)\)",
          "chunked prefill is off, and max-num-batched-tokens {tokens} is below the model length {length}",
          "raise max-num-batched-tokens to at least {length}, lower --max-model-len, or switch chunked prefill on"),
    _rule(r"max_num_active_seqs \((?P<active>\d+)\) cannot be greater than max_num_seqs \((?P<seqs>\d+)\)",
          "max-num-active-seqs {active} is above max-num-seqs {seqs}", "lower max-num-active-seqs to at most {seqs}"),
    _rule(r"long_prefill_token_threshold \((?P<threshold>\d+)\) cannot be greater than the max_model_len "
          r"\((?P<length>\d+)\)", "long-prefill-token-threshold {threshold} is above the model length {length}",
          "lower it to at most {length}"),
    _rule(r"User-specified max_model_len \((?P<asked>\d+)\) is greater than the derived max_model_len \((?P<why>[^)]*)",
          "--max-model-len {asked} is more than the model was made for ({why})", "lower --max-model-len"),
    _rule(r"out of memory occurred when warming up sampler with (?P<seqs>\d+) dummy requests",
          "the card ran out of memory warming up the sampler with {seqs} requests",
          "lower max-num-seqs below {seqs}, or gpu-memory-utilization", ShortageKind.SAMPLER),
    _rule(r"max_num_seqs \((?P<seqs>\d+)\) exceeds available Mamba cache blocks \((?P<blocks>\d+)\)",
          "max-num-seqs {seqs} is more than the {blocks} Mamba cache blocks there are",
          "lower max-num-seqs to at most {blocks}, or raise gpu-memory-utilization"),
    _rule(r"Tried to allocate (?P<want>[\d.]+ [KMG]iB)\..{0,80}?total capacity of (?P<total>[\d.]+ [KMG]iB) of which "
          r"(?P<free>[\d.]+ [KMG]iB) is free",
          "the card ran out of memory: {want} were wanted and {free} of {total} were free",
          "lower gpu-memory-utilization, max-num-seqs or max-num-batched-tokens", ShortageKind.OTHER),
    _rule(r"CUDA out of memory|CUDA error: out of memory|OutOfMemoryError", "the card ran out of memory",
          "lower gpu-memory-utilization, max-num-seqs or max-num-batched-tokens", ShortageKind.OTHER),
    _rule(r"Failed to infer device type", "vLLM found no device that it can run on",
          "check the driver (nvidia-smi), or whether this is a vLLM build for another device"),
    _rule(r"NVML_ERROR|CUDA driver version is insufficient|no NVIDIA driver|No CUDA GPUs are available",
          "the NVIDIA driver or card cannot be used", "check nvidia-smi and CUDA_VISIBLE_DEVICES"),
    _rule(r"gated repo|is a gated|GatedRepoError|403 Client Error", "the model's repository is gated",
          "ask for access on its page at huggingface.co, then set HF_TOKEN"),
    _rule(r"401 Client Error|Invalid (?:user )?(?:token|username or password)",
          "the model hub refused the login: the repository is private, gated or unknown, or HF_TOKEN is wrong",
          "check the model's name and HF_TOKEN"),
    _rule(r"Repo id must be.{0,60}?: '(?P<model>[^']+)'", "the model {model} is neither a folder here nor a repository",
          "correct the path or the repository's name"),
    _rule(r"(?<!\S)(?P<model>\S{1,200}) does not appear to have a file named (?P<file>[\w.]+\w)",
          "the model {model} has no {file}",
          "give a folder or repository that holds the model's config.json, weights and tokenizer"),
    _rule(r"(?<!\S)(?P<model>\S{1,200}) is not a local folder",
          "the model {model} is neither a folder here nor a known repository",
          "correct the path or name; a private repository needs HF_TOKEN"),
    _rule(r"Invalid repository ID or local directory specified: '(?P<model>[^']*)'",
          "the model {model} is neither a folder with a model's config nor a known repository",
          "correct the path or the repository's name"),
    _rule(r"RepositoryNotFoundError|Repository Not Found|404 Client Error", "the model's repository does not exist",
          "correct the repository's name; a private one needs HF_TOKEN"),
    _rule(r"LocalEntryNotFoundError|OfflineModeIsEnabled|offline mode is enabled|outgoing traffic has been disabled",
          "the model is not in the local cache, and downloads are switched off or the hub was not reached",
          "download the model first, unset HF_HUB_OFFLINE, or give a local folder"),
    _rule(r"couldn't connect to|Max retries exceeded|Name or service not known|Temporary failure in name resolution",
          "the model hub cannot be reached from here", "check the network, or give a local folder"),
    _rule(r"No space left on device", "the disk is full", "free space where the model cache and the run's folder lie"),
    _rule(r"died unexpectedly \(exit code: -9\)|code -9\b",
          "a worker was killed by signal 9: the host ran out of memory",
          "free host memory, or lower what the server asks for"),
    _rule(r"DefaultCPUAllocator: can't allocate memory", "the host ran out of memory",
          "free host memory, or lower what the server asks for", ShortageKind.OTHER),
    _rule(r"^MemoryError|Cannot allocate memory",
          "the host ran out of memory", "free host memory, or lower what the server asks for"),
    _rule(r"ModuleNotFoundError: No module named '(?P<name>[\w.]+)'", "the Python module {name} is missing",
          "install it where vLLM is installed"),
    _rule(r"ImportError: (?P<why>.+)", "vLLM or one of its libraries cannot be imported: {why}",
          "repair that installation; libraries of another torch are the usual reason"),
)  # fmt: skip

_PREFIX = re.compile(
    r"^(?:\([^()]{0,80}\) ?)?(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d "
    r"\[[^\]]{0,80}\] ?|(?P<uvicorn>DEBUG|INFO|WARNING|ERROR|CRITICAL): {1,6})?"
)
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_][\w.]{0,120}(?:Error|Exception|Interrupt|NotFound|IsEnabled)\b|\S{1,200}: No module)"
)
_CRASH = re.compile(
    r"^(?:Killed|Aborted|Segmentation fault|Bus error|Fatal Python error|terminate called)"
    r"|^\S{1,80}: error: |^\S{1,80}: fatal"
)
# What says that the weights are in memory.
_LOADED = ("Loading weights took", "Model loading took")
# What every failed start says after its cause.
_CONSEQUENCE = re.compile(
    r"Engine core initialization failed|EngineCore failed to start|See (?:root cause|stack trace)|died unexpectedly|"
    r"validation errors? for |EngineDeadError|EngineCore encountered a fatal error"
)


def diagnose(lines: Sequence[str], exit_code: int | None) -> Diagnosis:
    """What these log lines (cleaned, oldest first) and the exit code (negative for a signal) say of the end."""
    payloads = [_payload(line[:8000]) for line in lines[-LINES_LOOKED_AT:]]
    spoken = [text for level, text in payloads if text.strip() and level not in ("DEBUG", "INFO", "WARNING")]
    for rule in RULES:
        for text in spoken:
            match = rule.pattern.search(text) if not _is_source(text) else None
            if match is not None:
                values = {key: value[:_VALUE_CAP].strip() for key, value in match.groupdict(default="?").items()}
                evidence = _evidence(spoken, text)
                sentence, next_step = rule.sentence.format(**values), rule.next_step.format(**values)
                return Diagnosis(sentence, next_step, evidence, _shortage(rule.shortage, match.groupdict(), lines))
    return _without_rule(spoken, [text for _, text in payloads], exit_code)


def _shortage(kind: ShortageKind | None, said: dict[str, str | None], lines: Sequence[str]) -> Shortage | None:
    """The shortage that a rule stands for. A card that is full before the weights are loaded is too small for them."""
    if kind is None or (kind is ShortageKind.OTHER and not any(mark in line for line in lines for mark in _LOADED)):
        return None
    free_share = None
    if kind is ShortageKind.UTILIZATION and "free" in said:
        with suppress(ValueError, ZeroDivisionError):
            free_share = float(said["free"] or "") / float(said["total"] or "")
    return Shortage(kind, free_share)


def _without_rule(spoken: list[str], every: list[str], exit_code: int | None) -> Diagnosis:
    evidence = _evidence(spoken, None) or tuple(_short(text) for text in every if text.strip())[-EVIDENCE_LINES:]
    if exit_code in (-9, 137):
        return Diagnosis(
            "the server was killed by signal 9: most often the host ran out of memory",
            "see the kernel's log (dmesg); free host memory or lower what the server asks for",
            evidence,
        )
    if exit_code is not None and exit_code < 0:
        return Diagnosis(f"the server was ended by signal {-exit_code}", "see the log's last lines", evidence)
    how = "ended" if exit_code is None else f"ended with exit code {exit_code}"
    return Diagnosis(f"the server {how} for a reason that is not known here", "see the log's last lines", evidence)


def _payload(line: str) -> tuple[str, str]:
    """The level of a log line ('' when it has none) and the line without vLLM's prefix."""
    match = _PREFIX.match(line)
    if match is None:
        return "", line
    return match["level"] or match["uvicorn"] or "", line[match.end() :]


def _is_source(text: str) -> bool:
    """A traceback's file and code lines, which quote messages without their numbers."""
    return text.startswith(("    ", "  File "))


def _evidence(spoken: list[str], cause: str | None) -> tuple[str, ...]:
    """The exception and crash lines, each once, the cause always among them, without the consequences of a cause."""
    telling: dict[str, None] = {}
    for text in spoken:
        pydantic = text.startswith("  Value error, ")
        if text == cause or pydantic or (not text.startswith(" ") and (_EXCEPTION.search(text) or _CRASH.search(text))):
            telling.setdefault(_short(text))
    causes = [text for text in telling if not _CONSEQUENCE.search(text)]
    kept = (causes or list(telling))[-EVIDENCE_LINES:]
    if cause is not None and _short(cause) not in kept:
        kept = [_short(cause), *kept[1 - EVIDENCE_LINES :]]
    return tuple(kept)


def _short(text: str) -> str:
    text = text.strip()
    return text if len(text) <= EVIDENCE_CAP else text[:EVIDENCE_CAP] + "…"
