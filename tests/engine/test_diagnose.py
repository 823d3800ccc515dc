"""What a failed start says, cause by cause, with vLLM's own messages around it."""

# ruff: noqa: E501 (the messages are as long as vLLM writes them)

from __future__ import annotations

import time

import pytest

from tunetui.core.ceilings import Shortage, ShortageKind
from tunetui.engine.diagnose import EVIDENCE_LINES, RULES, diagnose

CORE = "(EngineCore pid=21) ERROR 11-20 10:00:00 [core.py:1510] "
NOISE = [
    "(APIServer pid=11) WARNING 11-20 10:00:00 [system_utils.py:255] This can cause fd limit errors like `OSError: "
    "[Errno 24] Too many open files`. Address already in use is another.",
    "(APIServer pid=11) INFO 11-20 10:00:00 [model.py:733] Resolved architecture: LlamaForCausalLM",
]
AFTERMATH = [
    "(EngineCore pid=21) ERROR 11-20 10:00:04 [multiproc_executor.py:315] Worker proc VllmWorker-0 died unexpectedly "
    "(exit code: 0), shutting down executor.",
    "Process EngineCore:",
    "Traceback (most recent call last):",
    '  File "api_server.py", line 1, in <module>',
    "    run()",
    "    ^^^^^",
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}",
]


def in_core(message: str) -> list[str]:
    """As the engine core logs it: prefixed, with a traceback that quotes the message's source, then once more plain."""
    body = ["EngineCore failed to start.", "Traceback (most recent call last):", '  File "core.py", line 1, in f',
            "    raise ValueError(", message]  # fmt: skip
    return [*NOISE, *(CORE + line for line in body), *AFTERMATH[:4], message, *AFTERMATH]


TABLE = [
    (["usage: api_server.py [-h]", "                     [model_tag]",
      "api_server.py: error: unrecognized arguments: --bogus-flag 3"], 2,
     "this vLLM does not know --bogus-flag 3", "leave the flag out"),
    (["api_server.py: error: argument --max-num-seqs: invalid int value: 'x'"], 2,
     "vLLM refused --max-num-seqs: invalid int value: 'x'", "correct"),
    (["/usr/bin/python3: No module named vllm"], 1, "vLLM is not installed", "--vllm"),
    (["ModuleNotFoundError: No module named 'vllm'"], 1, "vLLM is not installed", "--vllm"),
    (["/usr/bin/python3: Error while finding module specification for 'vllm.entrypoints.openai.api_server' "
      "(ModuleNotFoundError: No module named 'vllm')"], 1, "vLLM is not installed", "--vllm"),
    (["importlib.metadata.PackageNotFoundError: No package metadata was found for vllm"], 1,
     "lacks the package metadata", "module form"),
    (["ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 8000): address already in use"], 1,
     "the port is taken", "another port"),
    ([*NOISE, "OSError: [Errno 98] Address already in use"], 1, "the port is taken", "another port"),
    (in_core("ValueError: Free memory on device cuda:0 (2.12/79.15 GiB) on startup is less than desired GPU memory "
             "utilization (0.92, 72.82 GiB). Decrease GPU memory utilization or reduce GPU memory used by others."), 1,
     "only 2.12 of 79.15 GiB are free on cuda:0, and gpu-memory-utilization 0.92 asks for 72.82 GiB", "earlier server"),
    (in_core("ValueError: Free memory on device (2.12/79.15 GiB) on startup is less than desired GPU memory utilization "
             "(0.9, 71.2 GiB)."), 1, "only 2.12 of 79.15 GiB are free on the card", "lower gpu-memory-utilization"),
    (in_core("ValueError: Available memory on node 0 (5.02/7.96 GiB) on startup is less than desired CPU memory "
             "utilization (0.99, 7.88 GiB)."), 1, "only 5.02 of 7.96 GiB are available on memory node 0", "lower"),
    (in_core("ValueError: Available memory on node 0 (5.02/7.96 GiB) on kv cache allocation is less than requested "
             "memory for kv (6.00 GiB)."), 1, "only 5.02 of 7.96 GiB", "KV cache size"),
    (in_core("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
             "initializing the engine."), 1, "no memory was left for the KV cache", "raise gpu-memory-utilization"),
    (in_core("ValueError: To serve at least one request with the model's max seq len (2048), (0.03 GiB KV cache is "
             "needed, which is larger than the available KV cache memory (0.01 GiB). Based on the available memory, the "
             "estimated maximum model length is 384. Try increasing `gpu_memory_utilization`"), 1,
     "one request of 2048 tokens needs 0.03 GiB of KV cache and 0.01 GiB are there: 384 tokens fit", "at most 384"),
    (in_core("ValueError: To serve at least one request with the models's max seq len (2048), (0.03 GiB KV cache is "
             "needed, which is larger than the available KV cache memory (0.01 GiB).  Try increasing"), 1,
     "one request of 2048 tokens needs 0.03 GiB of KV cache and only 0.01 GiB are there", "lower --max-model-len"),
    ([*NOISE, "pydantic_core._pydantic_core.ValidationError: 1 validation error for SchedulerConfig",
      "  Value error, max_num_batched_tokens (32) must be greater than or equal to max_num_seqs (64). [type=value_error]",
      "    For further information visit https://errors.pydantic.dev"], 1,
     "max-num-batched-tokens 32 is below max-num-seqs 64", "at least 64"),
    (["  Value error, max_num_batched_tokens (512) is smaller than max_model_len (2048). This effectively limits"], 1,
     "chunked prefill is off, and max-num-batched-tokens 512 is below the model length 2048", "at least 2048"),
    (["  Value error, max_num_active_seqs (65) cannot be greater than max_num_seqs (64)."], 1,
     "max-num-active-seqs 65 is above max-num-seqs 64", "at most 64"),
    (["ValueError: long_prefill_token_threshold (4096) cannot be greater than the max_model_len (2048)."], 1,
     "long-prefill-token-threshold 4096 is above the model length 2048", "at most 2048"),
    (["  Value error, User-specified max_model_len (99999) is greater than the derived max_model_len "
      "(max_position_embeddings=2048 or model_max_length=None in model's config.json)."], 1,
     "--max-model-len 99999 is more than the model was made for (max_position_embeddings=2048", "lower"),
    (in_core("RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try "
             "lowering `max_num_seqs`"), 1, "warming up the sampler with 1024 requests", "below 1024"),
    (in_core("ValueError: max_num_seqs (512) exceeds available Mamba cache blocks (300). Each decode sequence"), 1,
     "max-num-seqs 512 is more than the 300 Mamba cache blocks", "at most 300"),
    (in_core("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
             "79.15 GiB of which 1.20 GiB is free."), 1, "2.00 GiB were wanted and 1.20 GiB of 79.15 GiB", "lower"),
    (in_core("RuntimeError: CUDA error: out of memory"), 1, "the card ran out of memory", "lower"),
    (["RuntimeError: Failed to infer device type, please set the environment variable `VLLM_LOGGING_LEVEL=DEBUG`"], 1,
     "found no device", "nvidia-smi"),
    (["RuntimeError: No CUDA GPUs are available"], 1, "cannot be used", "CUDA_VISIBLE_DEVICES"),
    (["OSError: You are trying to access a gated repo."], 1, "gated", "HF_TOKEN"),
    (["huggingface_hub.errors.HfHubHTTPError: 401 Client Error: Unauthorized for url"], 1, "refused the login", "HF_TOKEN"),
    (["huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': "
      "'/no/such/dir'. Use `repo_type` argument if needed."], 1, "the model /no/such/dir is neither", "correct the path"),
    (["OSError: /models/x does not appear to have a file named config.json. Checkout 'https://hf.co'"], 1,
     "the model /models/x has no config.json", "folder"),
    (["OSError: acme/none is not a local folder and is not a valid model identifier listed on the hub"], 1,
     "the model acme/none is neither", "HF_TOKEN"),
    (["ValueError: Invalid repository ID or local directory specified: 'acme'."], 1, "the model acme is neither", "path"),
    (["huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error."], 1, "does not exist", "HF_TOKEN"),
    (["huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder"], 1,
     "not in the local cache", "HF_HUB_OFFLINE"),
    (["huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach the hub: offline mode is enabled."], 1,
     "not in the local cache", "HF_HUB_OFFLINE"),
    (["OSError: We couldn't connect to 'https://huggingface.co' to load the files"], 1, "cannot be reached", "network"),
    (in_core("ValueError: Available memory on node 0 (5.02/7.96 GiB) on kv cache allocation is less than requested "
             "memory for kv (-0.40/0.80 GiB). Reduce CPU memory used by other processes."), 1,
     "the CPU worker alone takes more", "raise gpu-memory-utilization"),
    (in_core("RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you "
             "tried to allocate 8589934592 bytes."), 1, "the host ran out of memory", "host memory"),
    (["MemoryError"], 1, "the host ran out of memory", "host memory"),
    (["OSError: [Errno 28] No space left on device"], 1, "the disk is full", "free space"),
    ([AFTERMATH[0].replace("exit code: 0", "exit code: -9")], 1, "killed by signal 9", "host memory"),
    (["ModuleNotFoundError: No module named 'flash_attn'"], 1, "the Python module flash_attn is missing", "install"),
    (["ImportError: libcudart.so.13: cannot open shared object file"], 1, "libcudart.so.13", "repair"),
    ([*NOISE], -9, "the server was killed by signal 9", "dmesg"),
    ([*NOISE], 137, "the server was killed by signal 9", "dmesg"),
    (["Segmentation fault"], -11, "ended by signal 11", "log"),
    ([*NOISE, "KeyError: 'odd'", *AFTERMATH], 1, "exit code 1 for a reason that is not known here", "log"),
    ([], None, "ended for a reason that is not known here", "log"),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "code", "sentence", "step"), TABLE, ids=[row[2][:40] for row in TABLE])
def test_causes(lines: list[str], code: int | None, sentence: str, step: str) -> None:
    found = diagnose(lines, code)
    assert sentence in found.sentence
    assert step in found.next_step
    assert len(found.evidence) <= EVIDENCE_LINES
    assert "{" not in found.sentence + found.next_step


LOADED = "(Worker pid=31) INFO 11-20 10:00:02 [gpu_model_runner.py:5150] Model loading took 65.74 GiB memory and 52.1 s"
TRIED = ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB "
         "of which 1.20 GiB is free.")  # fmt: skip


@pytest.mark.parametrize(
    ("message", "shortage"),
    [
        ("ValueError: Free memory on device cuda:0 (60.00/80.00 GiB) on startup is less than desired GPU memory utilization "
         "(0.92, 73.60 GiB).", Shortage(ShortageKind.UTILIZATION, 0.75)),
        ("ValueError: Free memory on device cuda:0 (60.00/80.00 GiB) on startup is less than the engine's budget after "
         "excluding external process's weights (0.92, 73.60 GiB).", Shortage(ShortageKind.UTILIZATION, 0.75)),
        ("ValueError: Available memory on node 0 (4.00/8.00 GiB) on startup is less than desired CPU memory utilization "
         "(0.92, 7.36 GiB).", Shortage(ShortageKind.UTILIZATION, 0.5)),
        ("ValueError: Available memory on node 0 (4.00/8.00 GiB) on kv cache allocation is less than requested memory for "
         "kv (6.00/7.20 GiB).", Shortage(ShortageKind.UTILIZATION)),
        ("ValueError: Available memory on node 0 (4.00/8.00 GiB) on kv cache allocation is less than requested memory for "
         "kv (-0.10/1.20 GiB).", Shortage(ShortageKind.KV_CACHE)),
        ("RuntimeError: CUDA out of memory occurred when warming up sampler with 512 dummy requests.",
         Shortage(ShortageKind.SAMPLER)),
        ("ValueError: No available memory for the cache blocks.", Shortage(ShortageKind.KV_CACHE)),
        ("ValueError: To serve at least one request with the model's max seq len (2048), (0.03 GiB KV cache is needed, "
         "which is larger than the available KV cache memory (0.01 GiB). Based on the available memory, the estimated "
         "maximum model length is 384.", Shortage(ShortageKind.KV_CACHE)),
        (TRIED, Shortage(ShortageKind.OTHER)),
        ("RuntimeError: CUDA error: out of memory", Shortage(ShortageKind.OTHER)),
        ("ValueError: max_num_seqs (512) exceeds available Mamba cache blocks (300).", None),
        ("OSError: /models/x does not appear to have a file named config.json.", None),
        ("OSError: [Errno 98] Address already in use", None),
        ("KeyError: 'odd'", None),
    ],
)  # fmt: skip
def test_what_a_start_was_short_of(message: str, shortage: Shortage | None) -> None:
    assert diagnose([LOADED, *in_core(message)], 1).shortage == shortage


def test_a_card_that_is_full_before_the_weights_are_in_it_is_no_shortage_that_a_lower_ceiling_meets() -> None:
    found = diagnose(in_core(TRIED), 1)
    assert "2.00 GiB were wanted" in found.sentence
    assert found.shortage is None
    assert diagnose([], -9).shortage is None


def test_every_rule_is_exercised() -> None:
    matched = {id(rule) for rule in RULES for row in TABLE for line in row[0] if rule.pattern.search(line)}
    assert [rule.sentence for rule in RULES if id(rule) not in matched] == []


def test_evidence_is_the_cause_once_without_tracebacks_and_aftermath() -> None:
    message = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`."
    assert diagnose(in_core(message), 1).evidence == (message,)


def test_unknown_causes_show_the_exceptions_or_else_the_last_lines() -> None:
    assert diagnose([*NOISE, "KeyError: 'odd'", *AFTERMATH], 1).evidence == ("KeyError: 'odd'",)
    assert diagnose(["one", "", "two"], 3).evidence == ("one", "two")
    assert diagnose([*NOISE], 0).evidence[-1] == "Resolved architecture: LlamaForCausalLM"
    assert diagnose(AFTERMATH, 1).evidence[-1].startswith("RuntimeError: Engine core initialization failed")


def test_a_hostile_log_is_read_in_linear_time() -> None:
    lines = ["x" * 100_000, "Tried to allocate " + "1" * 100_000, "(" * 100_000, "a." * 50_000, "Error" * 20_000] * 20
    began_s = time.process_time()
    diagnose(lines, 1)
    assert time.process_time() - began_s < 3.0
