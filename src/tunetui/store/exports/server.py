"""The server of a baseline, to be started elsewhere: its command, flags and environment, without secrets.

It writes no format; each has a module here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tunetui.core.baseline import Baseline
from tunetui.core.flags import Flag, Reference, Word, flags_in, split_command
from tunetui.core.knobs import MemoryFlag, knob_argv
from tunetui.store.exports.secrets import READ_FROM, is_secret_flag, is_secret_variable, looks_secret, variable_of

CONTAINER_PORT = 8000  # vLLM's own
OURS = "tunetui_live"  # our scheduler class is for tuning only
# What holds for one machine only.
_OF_A_MACHINE = ("HF_HOME", "HF_HUB_OFFLINE", "NCCL_SOCKET_IFNAME", "CUDA_HOME", "CUDA_PATH")
_OWN_FLAGS = ("model", "model-tag", "host", "port")


class ExportError(ValueError):
    """A baseline that cannot be exported; one sentence with the next step."""


@dataclass(frozen=True, slots=True)
class Server:
    """What a format needs. `all_flags` are as they were recorded; `flags` are those that hold at any address.
    `secrets` maps each variable that must be set to what it stands for."""

    baseline: Baseline
    command: tuple[str, ...]
    model: str
    positional: tuple[str, ...]
    all_flags: tuple[Flag, ...]
    secrets: dict[str, str]
    environment: dict[str, str]
    notes: tuple[str, ...] = ()
    own_image: str = ""

    @property
    def words(self) -> tuple[Word, ...]:
        """The whole command line."""
        return (*self.command, *self.positional, *(word for flag in self.all_flags for word in flag.words))

    @property
    def flags(self) -> tuple[Flag, ...]:
        """Without the model and where it listens."""
        return tuple(flag for flag in self.all_flags if flag.name not in _OWN_FLAGS)

    @property
    def host(self) -> str:
        return value_of(self.all_flags, "host") or "127.0.0.1"

    @property
    def port(self) -> int:
        text = value_of(self.all_flags, "port") or ""
        return int(text) if text.isascii() and text.isdigit() else CONTAINER_PORT

    @property
    def name(self) -> str:
        """A name that Kubernetes, Compose and systemd take: `vllm-` and the model's last part."""
        last = re.sub(r"[^a-z0-9]+", "-", self.model.rstrip("/").split("/")[-1].lower()).strip("-")
        return f"vllm-{last[:40].strip('-') or 'model'}"

    @property
    def model_is_local(self) -> bool:
        return self.model.startswith(("/", ".", "~"))

    @property
    def on_cpu(self) -> bool:
        return self.baseline.hardware.get("cards") == 0

    @property
    def gpus(self) -> int:
        """How many cards the server uses, by its flags; not how many the machine had."""
        if self.on_cpu:
            return 0
        sizes = [value_of(self.all_flags, f"{kind}-parallel-size") for kind in ("tensor", "pipeline", "data")]
        product = 1
        for size in sizes:
            product *= int(size) if size and size.isascii() and size.isdigit() else 1
        return product

    @property
    def image(self) -> tuple[str, str]:
        """Its container image: repository and tag."""
        if self.own_image:
            repository, colon, tag = self.own_image.rpartition(":")
            return (repository, tag) if colon and "/" not in tag else (self.own_image, "latest")
        return "vllm/vllm-openai", f"v{_release(self.version) or self.version.partition('+')[0]}"

    @property
    def version(self) -> str:
        return str(self.baseline.engine["version"])

    @property
    def environment_elsewhere(self) -> dict[str, str]:
        """The variables that hold on another machine too."""
        return {key: value for key, value in self.environment.items() if not _of_a_machine(key, value)}

    @property
    def wants_hf_token(self) -> bool:
        """Whether the model may be one that the hub gives out only against a token."""
        return not self.model_is_local and "HF_TOKEN" not in self.secrets


def server_of(baseline: Baseline, simulated_anyway: bool = False, image: str = "") -> Server:
    """The server of `baseline`. Raises ExportError."""
    simulated = bool(baseline.engine.get("simulated"))
    if simulated and not simulated_anyway:
        raise ExportError(
            "this baseline is of a simulated engine, and no real one was measured: tune with --model, "
            "or give --simulated-anyway to see what the export looks like"
        )
    argv = list(baseline.launch["argv"])
    environment = dict(baseline.launch.get("environment", {}))
    for where, text in (*(("launch.argv", word) for word in argv), *environment.items(), ("model", _name(baseline))):
        if "\0" in text:
            raise ExportError(f"{where} has a NUL byte, which no command line can carry: correct the baseline")
    command, behind = split_command(argv)
    positional, flags = flags_in(behind)
    if simulated or not command:
        command, flags = ("vllm", "serve"), tuple(flag for flag in flags if flag.name != "profile")
    flags = (*flags, *_missing_knobs(baseline, flags))
    model = positional[0] if positional else value_of(flags, "model") or _name(baseline)
    if not positional and value_of(flags, "model") is None:
        positional, flags = ((model,), flags) if command[-1] == "serve" else ((), (Flag("--model", (model,)), *flags))
    if any(looks_secret(word) for word in (*command, *positional, model)):
        raise ExportError("a token or password stands in launch.argv outside a flag's value: take it out of the file")
    flags, secrets = _without_secrets(flags, baseline.launch.get("left_out", ()))
    environment, more, notes = _environment(environment)
    return Server(
        baseline, command, model, positional, flags, secrets | more, environment,
        (*_notes(baseline, flags), *notes), image,
    )  # fmt: skip


def value_of(flags: Sequence[Flag], name: str) -> str | None:
    """The value of the flag with this long name, the last one given, as vLLM takes it; or None."""
    return next((flag.value for flag in reversed(flags) if flag.name == name), None)


def _name(baseline: Baseline) -> str:
    return str(baseline.model["name"])


def _release(version: str) -> str:
    """The released version that `version` is, with a build's name cut off; or an empty string."""
    found = re.fullmatch(r"(\d+\.\d+\.\d+(?:\.post\d+)?)(\+.*)?", version)
    return found[1] if found else ""


def _of_a_machine(key: str, value: str) -> bool:
    return key in _OF_A_MACHINE or key.endswith("VISIBLE_DEVICES") or value.startswith(("/", "~", "./"))


def _missing_knobs(baseline: Baseline, flags: Sequence[Flag]) -> Iterator[Flag]:
    """The knobs that the recorded command lacks: a file made by hand, or from before a knob was known."""
    given = {flag.name.removeprefix("no-") for flag in flags}
    for flag in _knobs(baseline):
        if flag.name.removeprefix("no-") not in given:
            yield flag


def _knobs(baseline: Baseline) -> tuple[Flag, ...]:
    memory = MemoryFlag.KV_BYTES if MemoryFlag.KV_BYTES.value in baseline.knobs else MemoryFlag.UTILIZATION
    return flags_in(knob_argv(baseline.point, memory))[1]


def _without_secrets(flags: Sequence[Flag], left_out: Sequence[str]) -> tuple[tuple[Flag, ...], dict[str, str]]:
    """`flags` with references for secrets, without our scheduler class; and the variables with what they stand for."""
    kept: list[Flag] = []
    secrets: dict[str, str] = {}
    # What the baseline left out is only named: it is put back as a reference.
    for flag in (*flags, *(Flag(name) for name in left_out)):
        name = flag.name or flag.written.lstrip("-")
        if name == "scheduler-cls" and (flag.value or "").startswith(OURS):
            continue
        secret = is_secret_flag(name) or flag.written in left_out
        if secret or any(looks_secret(value) for value in flag.values if isinstance(value, str)):
            variable = variable_of(name)
            if variable in secrets:
                continue
            secrets[variable] = flag.written
            if name not in READ_FROM:
                kept.append(replace(flag, values=(Reference(variable),), glued=False))
        else:
            kept.append(flag)
    return tuple(kept), secrets


def _environment(given: dict[str, str]) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """The variables that may be written down, those that must not be, and what is said of the rest."""
    kept: dict[str, str] = {}
    secrets: dict[str, str] = {}
    notes: list[str] = []
    for key, value in given.items():
        if key.startswith("TUNETUI") or key == "PYTHONPATH":
            continue
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
            notes.append(f"the variable {key!r} has no name that can be set: it is left out")
        elif is_secret_variable(key) or looks_secret(value):
            secrets[key] = "a variable of the session"
        else:
            kept[key] = value
    return kept, secrets, notes


def _notes(baseline: Baseline, flags: Sequence[Flag]) -> Iterator[str]:
    """What must be known of the point itself, whatever the format."""
    if baseline.engine.get("simulated"):
        yield "SIMULATED: no real engine was measured; do not serve with these settings"
    if not baseline.result.get("confirmed"):
        yield "the point was not confirmed on a freshly started server"
    if baseline.result["verdict"] != "PASS":
        yield f"the SLO was not met: the verdict is {baseline.result['verdict']}"
    if baseline.hardware.get("cards") == 0:
        yield "it was tuned on a CPU build of vLLM: on a GPU another point is the right one"
    for knob in _knobs(baseline):
        name = knob.name.removeprefix("no-")
        given = next((flag for flag in reversed(flags) if flag.name.removeprefix("no-") == name), knob)
        if (given.name, given.values) != (knob.name, knob.values) and not _same(given.value, knob.value):
            yield f"{name} in [knobs] is not that of launch.argv: the command's is exported"


def _same(one: str | None, other: str | None) -> bool:
    """Whether two ways to write a number are the same."""
    try:
        return one is not None and other is not None and float(one) == float(other)
    except ValueError:
        return False


def about(server: Server) -> str:
    """One line that says where it comes from."""
    told = server.baseline
    cards = f"{told.hardware['cards']} x " if told.hardware.get("cards", 0) > 1 else ""
    figures = [f"P{told.slo['percentile']} {name[:-3].upper()} {told.result[name]:g} ms"
               for name in ("ttft_ms", "tpot_ms") if isinstance(told.result.get(name), int | float)]  # fmt: skip
    load = [f"at {told.result['load']}"] if told.result.get("load") else []
    seen = ", ".join([" ".join([told.result["verdict"], *load]), *figures])
    day = f" of {told.created}" if told.created else ""
    return f"tunetui baseline{day}: {server.model} on {cards}{told.hardware['name']}, vLLM {server.version}: {seen}"


def notes_elsewhere(server: Server) -> Iterator[str]:
    """What a container does not take over from the machine that it was tuned on."""
    if not server.own_image:
        if server.on_cpu:
            yield f"the image {':'.join(server.image)} is for NVIDIA GPUs: give that of a CPU build with --image"
        elif not _release(server.version):
            yield f"vLLM {server.version} is no release: give your own image with --image"
        elif any(word in str(server.baseline.hardware["name"]) for word in ("AMD", "Instinct", "Intel")):
            yield f"the image {':'.join(server.image)} is for NVIDIA GPUs: give another with --image"
    if server.command[-1] == "serve" and server.command[:-2]:
        yield f"the words before vllm serve are not in it: {' '.join(server.command[:-2])}"
    kept = server.environment_elsewhere
    for key in server.environment:
        if key not in kept:
            yield f"{key} is left out: it holds on the machine that it was tuned on"
    yield from path_notes(server)
    yield f"vLLM listens on 0.0.0.0:{CONTAINER_PORT} in the container (while tuning: {server.host}:{server.port})"


def path_notes(server: Server, command: bool = False) -> Iterator[str]:
    """What names a file or folder of the machine that it was tuned on; `command` looks at the program too."""
    program = server.command[:1] if command else ()
    found = [*program, server.model, *(flag.value for flag in server.flags if flag.value is not None)]
    for path in found:
        if path.startswith(("/", "./", "../", "~")):
            yield f"{path} is a path of the machine that it was tuned on: it must be there too"


def container_words(server: Server) -> tuple[Word, ...]:
    """The arguments of `vllm serve` in a container."""
    listens = ("--host", "0.0.0.0", "--port", str(CONTAINER_PORT))
    return (server.model, *listens, *(word for flag in server.flags for word in flag.words))
