"""A baseline as values of the Helm chart of vLLM's production stack (chart 0.1.12, `servingEngineSpec.modelSpec`)."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tunetui.core.flags import Flag, is_flag
from tunetui.store.exports.kubernetes import literal, literal_or_reference, secret_name, variables
from tunetui.store.exports.server import Server, notes_elsewhere
from tunetui.store.exports.text import Quoted, dumped

SWITCHES = {"enable-chunked-prefill": "enableChunkedPrefill", "enable-prefix-caching": "enablePrefixCaching"}
COUNTS = {"max-model-len": "maxModelLen", "max-num-seqs": "maxNumSeqs", "tensor-parallel-size": "tensorParallelSize"}
TEXTS = {"dtype": "dtype", "gpu-memory-utilization": "gpuMemoryUtilization"}
# Helm writes larger numbers as 1e+06, which vLLM does not read.
MOST = 999_999


def render(server: Server) -> tuple[str, list[str]]:
    """The values, and what they do not say."""
    repository, tag = server.image
    spec: dict[str, Any] = {
        "name": server.name,
        "repository": Quoted(repository),
        "tag": Quoted(tag),
        "modelURL": literal(server.model),
        "replicaCount": 1,
        # The chart's requestGPU asks for a memory and CPU request too, which nothing here knows.
        "resources": {"limits": {"nvidia.com/gpu": Quoted(server.gpus)}},
        "vllmConfig": _config(server),
    }
    if server.on_cpu:
        spec["runtimeClassName"] = ""
    chart: dict[str, Any] = {"modelSpec": [spec]}
    secret = secret_name(server)
    if "HF_TOKEN" in server.secrets:
        spec["hf_token"] = {"secretName": secret, "secretKey": "HF_TOKEN"}
    if "VLLM_API_KEY" in server.secrets:
        chart = {"vllmApiKey": {"secretName": secret, "secretKey": "VLLM_API_KEY"}} | chart
    if env := variables(server, without=tuple(name for name in ("HF_TOKEN", "VLLM_API_KEY") if name in server.secrets)):
        spec["env"] = env
    return dumped({"servingEngineSpec": chart}), [*notes_elsewhere(server), *_notes(server)]


def _notes(server: Server) -> list[str]:
    notes = [f"the secret {secret_name(server)} must have {name}: what {what} had"
             for name, what in server.secrets.items()]  # fmt: skip
    if not server.model_is_local:
        notes.append("the model is downloaded at each start: add pvcStorage to keep it")
    return notes


def _config(server: Server) -> dict[str, Any]:
    """The chart's own keys where it has one that says the same, else the flag among extraArgs."""
    config: dict[str, Any] = {}
    extra: list[Quoted] = []
    times = Counter(flag.name.removeprefix("no-") for flag in server.flags)
    for flag in server.flags:
        found = _key(flag) if times[flag.name.removeprefix("no-")] == 1 else None
        if found is None:
            extra += [literal_or_reference(word) for word in flag.words]
        else:
            config[found[0]] = found[1]
    return config | ({"extraArgs": extra} if extra else {})


def _key(flag: Flag) -> tuple[str, Any] | None:
    """The key and value for a flag; None where the chart has none."""
    if not flag.values:
        switch = SWITCHES.get(flag.name.removeprefix("no-"))
        return None if switch is None else (switch, not flag.name.startswith("no-"))
    value = flag.value
    if value is None or is_flag(value):  # the chart writes a value as a word of its own, which would be a flag then
        return None
    if flag.name in COUNTS and value.isascii() and value.isdigit() and int(value) <= MOST and str(int(value)) == value:
        return COUNTS[flag.name], int(value)
    return (TEXTS[flag.name], literal(value)) if flag.name in TEXTS else None
