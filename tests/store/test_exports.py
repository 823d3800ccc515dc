"""What is exported is read back, by each format's own rules, to the command line that was accepted; no secret is in it.

compose is checked against the compose-spec's schema, k8s against Kubernetes' own, helm against the chart's, systemd by
`systemd-analyze verify` where it is, and yaml by the parser of a real vLLM (TUNETUI_TEST_VLLM; see the README).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from store.test_baselines import EXAMPLE, document

from tunetui.core.baseline import Baseline
from tunetui.core.flags import Flag, flags_in, is_flag, split_command
from tunetui.core.knobs import MemoryFlag, Point, knob_argv
from tunetui.engine.command import SCHEDULER, VllmCommand, serve_argv
from tunetui.store.baselines import read_baseline
from tunetui.store.exports import FORMATS, ExportError, exported
from tunetui.store.imports import Imported, from_script, from_yaml

VLLM = os.environ.get("TUNETUI_TEST_VLLM", "")
CHART = Path(__file__).parent / "production-stack" / "values.schema.json"
POINT = Point(256, 8192, True, 0.92, False, 1024)
KNOBS = knob_argv(POINT, MemoryFlag.UTILIZATION)
TOKEN = "hf_" + "aB3dE5gH7jK9" * 3
CONTAINERS = ("compose", "k8s", "helm")
ODD = ["a b", "it's", 'say "x"', "$HOME", "${X}", "$(X)", "100%", "%n", "a\nb\tc", "é 日本 🙂", "", "-x",
       "--x y", "#c", "a;b", "{'a': [1]}", "on", "1e3", "0o17", "null", "~", "\\", "\\n", "a\\", "`id`", "!x", "-1",
       "1.50", "\x07\x7f", "\x85"]  # fmt: skip

# NUL cannot stand in an argument, and no file has a lone surrogate.
TEXT = st.one_of(
    st.sampled_from(ODD), st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
)
NAMES = st.sampled_from(["--dtype", "--served-model-name", "--chat-template", "--x_y", "--hf-overrides", "--a.b"])


def flag(name: str, value: str | None) -> list[str]:
    """A flag as an operator must write it."""
    if value is None:
        return [name]
    return [f"{name}={value}"] if value.startswith("-") else [name, value]


EXTRA = st.lists(st.tuples(NAMES, st.none() | TEXT), max_size=5, unique_by=lambda one: one[0]).map(
    lambda ones: [word for name, value in ones for word in flag(name, value)]
)
MODELS = st.one_of(st.just("org/model-7b"), TEXT).filter(lambda text: bool(text) and not text.startswith("-"))
PROPERTY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def baseline(argv: list[str], **tables: dict[str, Any]) -> Baseline:
    """A baseline with this command; more keys for some tables."""
    told = document()
    told["launch"] = {"argv": argv}
    told["knobs"]["long-prefill-token-threshold"] = 1024
    told["knobs"]["enable-prefix-caching"] = False
    return Baseline.from_tables(told | {name: told[name] | more for name, more in tables.items()})


def served(model: str, *flags: str) -> list[str]:
    """The argv as a session records it."""
    command = VllmCommand(("vllm", "serve"), "")
    return list(serve_argv(command, model, "127.0.0.1", 8230, POINT, MemoryFlag.UTILIZATION, flags, live=False))


def text_of(one: Baseline, form: str, **more: Any) -> str:
    return exported(one, form, **more)[0]


def container_argv(form: str, text: str) -> list[str]:
    """The words behind `vllm serve` in a container, as its runtime fills in the text."""
    first = next(iter(yaml.safe_load_all(text)))
    if form == "compose":
        (service,) = first["services"].values()
        assert service["entrypoint"] == ["vllm", "serve"]
        words = service["command"]
        assert not re.search(r"(?<!\$)(\$\$)*\$(?!\$)", "\n".join(words)), "Compose would fill something in"
    elif form == "k8s":
        (container,) = first["spec"]["template"]["spec"]["containers"]
        assert container["command"] == ["vllm", "serve"]
        words = container["args"]
    else:
        words = chart_words(first["servingEngineSpec"]["modelSpec"][0])
    assert all(isinstance(word, str) for word in words)
    return [word.replace("$$", "$") for word in words]


def chart_words(spec: dict[str, Any]) -> list[str]:
    """What the chart's deployment-vllm-multi.yaml makes of the values."""
    config = dict(spec["vllmConfig"])
    words = [spec["modelURL"], "--host", "0.0.0.0", "--port", "8000"]
    if "enableChunkedPrefill" in config:
        words.append("--enable-chunked-prefill" if config["enableChunkedPrefill"] else "--no-enable-chunked-prefill")
    words.append("--enable-prefix-caching" if config.get("enablePrefixCaching") else "--no-enable-prefix-caching")
    for key, name in (
        ("maxModelLen", "--max-model-len"), ("dtype", "--dtype"), ("tensorParallelSize", "--tensor-parallel-size"),
        ("maxNumSeqs", "--max-num-seqs"), ("gpuMemoryUtilization", "--gpu_memory_utilization"),
    ):  # fmt: skip
        if key in config:
            words += [name, str(config[key])]
    return [*words, *config.get("extraArgs", [])]


def told(words: list[str]) -> dict[str, Flag]:
    """Flags by name, whatever their order; --x=y is --x y."""
    found = flags_in(words)[1]
    return {one.name: Flag(f"--{one.name}", one.values) for one in found}


def same_flags(words: list[str], argv: list[str]) -> None:
    """The container's words say what `argv` does, but where it listens."""
    wanted = told(argv) | told(["--host", "0.0.0.0", "--port", "8000"])
    assert told(words) == wanted


# --- round trips


@PROPERTY
@given(model=MODELS, extra=EXTRA)
def test_shell_is_read_back_to_the_same_argv(model: str, extra: list[str]) -> None:
    argv = served(model, *extra)
    one = baseline(argv, launch={"environment": {"VLLM_X": extra[-1] if extra else "a b"}})
    text = text_of(one, "shell")
    assert shlex.split(text, comments=True) == [f"VLLM_X={extra[-1] if extra else 'a b'}", *argv]


@PROPERTY
@given(extra=EXTRA)
def test_bash_itself_reads_the_same_argv(extra: list[str]) -> None:
    assume(not any("\r" in word for word in extra))
    argv = served("m", *extra)
    script = "vllm() { printf '%s\\0' \"$@\"; }\n" + text_of(baseline(argv), "shell")
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True, timeout=20)
    assert done.stdout.decode("utf-8").split("\0")[:-1] == argv[1:]


@PROPERTY
@given(model=MODELS, extra=EXTRA)
@pytest.mark.parametrize("form", CONTAINERS)
def test_containers_are_read_back_to_the_same_flags(form: str, model: str, extra: list[str]) -> None:
    argv = served(model, *extra)
    words = container_argv(form, text_of(baseline(argv), form))
    assert words[0] == model
    same_flags(words, argv)


@PROPERTY
@given(model=MODELS, extra=EXTRA)
def test_yaml_is_turned_into_the_same_flags_by_vllms_rules(model: str, extra: list[str]) -> None:
    argv = served(model, *extra)
    words: list[str] = []
    for key, value in yaml.safe_load(text_of(baseline(argv), "yaml")).items():  # as vLLM's load_config_file does
        if value is True:
            words.append(f"--{key}")
        else:
            words += [f"--{key}", *map(str, value if isinstance(value, list) else [value])]
    assert told(words) == told(argv) | {"model": Flag("--model", (model,))}


@PROPERTY
@given(model=MODELS, extra=EXTRA)
def test_systemd_is_read_back_to_the_same_argv(model: str, extra: list[str]) -> None:
    argv = served(model, *extra)
    value = extra[-1] if extra else "a b"
    unit = unit_of(text_of(baseline(argv, launch={"environment": {"VLLM_X": value}}), "systemd"))
    assert [word.replace("$$", "$") for word in systemd_words(unit["ExecStart"])] == argv
    assert not re.search(r"(?<!\$)(\$\$)*\$(?!\$)", unit["ExecStart"]), "systemd would fill something in"
    assert systemd_words(unit["Environment"]) == [f"VLLM_X={value}"]


def unit_of(text: str) -> dict[str, str]:
    """The settings of a unit file: a line each, none continued."""
    lines = [line for line in text.split("\n") if line and line[0] not in "#;["]
    assert not any(line.endswith("\\") for line in lines)
    return dict(line.split("=", 1) for line in lines)


ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\", '"': '"', "'": "'",
           "s": " "}  # fmt: skip


def systemd_words(text: str) -> list[str]:
    """The items of a setting as systemd.syntax(7) has them: quotes, C escapes, %% for a percent sign."""
    words: list[str] = []
    at = 0
    while at < len(text):
        if text[at] == " ":
            at += 1
            continue
        quote = text[at] if text[at] in "\"'" else ""
        at += bool(quote)
        word = ""
        while at < len(text) and text[at] != (quote or " "):
            if text[at] != "\\":
                assert quote or text[at] not in "\"'"
                word += text[at]
                at += 1
            elif text[at + 1] == "x":
                word += chr(int(text[at + 2 : at + 4], 16))
                at += 4
            else:
                word += ESCAPES[text[at + 1]]
                at += 2
        if quote:
            assert text[at] == quote
            at += 1
            assert at == len(text) or text[at] == " "
        assert "%" not in word.replace("%%", ""), "a specifier"
        words.append(word.replace("%%", "%"))
    return words


@PROPERTY
@given(model=MODELS, extra=EXTRA)
@pytest.mark.parametrize("form", ["shell", "yaml"])
def test_what_is_exported_can_be_imported(form: str, model: str, extra: list[str]) -> None:
    argv = served(model, *extra)
    text = text_of(baseline(argv), form)
    found: Imported = from_script(text) if form == "shell" else from_yaml(text)
    assert found.model == model
    wanted = told(argv)
    del wanted["host"], wanted["port"]
    assert told(list(found.flags)) == wanted
    assert [what for what, _ in found.not_taken] == ["--host", "--port"]


# --- secrets


SECRET_ARGV = [
    "vllm", "serve", "m", "--hf-token", TOKEN, "--api-key", "abc1", "abc2", "--ssl-keyfile-password=letmein",
    "--otlp-traces-endpoint", "https://me:letmein@traces", "--hf-overrides", '{"api_key": "letmein"}', *KNOBS,
]  # fmt: skip


@pytest.mark.parametrize("form", FORMATS)
def test_no_secret_is_in_an_export(form: str) -> None:
    one = baseline(SECRET_ARGV, launch={"environment": {"VLLM_FOO": TOKEN, "VLLM_API_KEY": "abc3", "VLLM_OK": "fine"}})
    text, notes = exported(one, form)
    for secret in (TOKEN, "abc1", "abc2", "abc3", "letmein"):
        assert secret not in text
        assert not any(secret in note for note in notes)
    for variable in ("HF_TOKEN", "VLLM_API_KEY", "SERVE_SSL_KEYFILE_PASSWORD", "SERVE_OTLP_TRACES_ENDPOINT"):
        assert any(variable in note for note in notes)
        assert variable in text


def test_references_are_those_of_each_format() -> None:
    one = baseline(["vllm", "serve", "m", *KNOBS, "--ssl-keyfile-password", "x"], launch={"left_out": ["--hf-token"]})
    shell = text_of(one, "shell").splitlines()[-1]
    assert shell.startswith('HF_TOKEN="$HF_TOKEN" vllm serve m ')
    assert shell.endswith('--ssl-keyfile-password "$SERVE_SSL_KEYFILE_PASSWORD"')
    (service,) = yaml.safe_load(text_of(one, "compose"))["services"].values()
    assert service["environment"] == {"HF_TOKEN": "${HF_TOKEN:?}"}
    assert service["command"][-1] == "${SERVE_SSL_KEYFILE_PASSWORD:?}"
    unit = unit_of(text_of(one, "systemd"))
    assert unit["EnvironmentFile"] == "/etc/vllm/vllm-m.env"
    assert unit["ExecStart"].endswith('"${SERVE_SSL_KEYFILE_PASSWORD}"')
    deployment = next(iter(yaml.safe_load_all(text_of(one, "k8s"))))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert [(v["name"], v["valueFrom"]["secretKeyRef"]) for v in container["env"]] == [
        (name, {"name": "vllm-m-secrets", "key": name}) for name in ("SERVE_SSL_KEYFILE_PASSWORD", "HF_TOKEN")
    ]
    assert container["args"][-1] == "$(SERVE_SSL_KEYFILE_PASSWORD)"
    spec = yaml.safe_load(text_of(one, "helm"))["servingEngineSpec"]["modelSpec"][0]
    assert spec["hf_token"] == {"secretName": "vllm-m-secrets", "secretKey": "HF_TOKEN"}
    assert [v["name"] for v in spec["env"]] == ["SERVE_SSL_KEYFILE_PASSWORD"]
    head = text_of(one, "yaml").splitlines()
    assert '# start it with: vllm serve --config FILE.yaml --ssl-keyfile-password "$SERVE_SSL_KEYFILE_PASSWORD"' in head


@pytest.mark.parametrize("word", [TOKEN, "https://me:letmein@host/model"])
def test_a_token_outside_a_flag_is_refused(word: str) -> None:
    with pytest.raises(ExportError, match="outside a flag") as caught:
        exported(baseline(["vllm", "serve", word]), "shell")
    assert word not in str(caught.value)


@pytest.mark.parametrize("form", FORMATS)
def test_our_scheduler_is_never_in_an_export(form: str) -> None:
    argv = [*served("m"), "--scheduler-cls", SCHEDULER]
    one = baseline(argv, launch={"environment": {"TUNETUI_CONTROL": "/x/block", "PYTHONPATH": "/x", "VLLM_OK": "1"}})
    text, _ = exported(one, form)
    assert "scheduler-cls" not in text
    assert "tunetui_live" not in text
    assert "TUNETUI_CONTROL" not in text
    assert "PYTHONPATH" not in text
    assert "--scheduler-cls other.Scheduler" in text_of(
        baseline([*served("m"), "--scheduler-cls", "other.Scheduler"]), "shell"
    )


def test_a_session_records_no_scheduler_of_ours() -> None:
    assert SCHEDULER not in served("m")


# --- what is said


def test_a_simulated_baseline_is_refused_or_says_so_loudly() -> None:
    argv = ["python", "-m", "tunetui.demo", "--profile", "case", "--model", "m", "--host", "127.0.0.1", *KNOBS]
    one = baseline(argv, engine={"simulated": True})
    for form in FORMATS:
        with pytest.raises(ExportError, match="--simulated-anyway"):
            exported(one, form)
        text, notes = exported(one, form, simulated_anyway=True)
        assert notes[0].startswith("SIMULATED")
        assert "SIMULATED" in text
        assert "tunetui.demo" not in text
        assert "--profile" not in text
    assert json.loads(text_of(one, "json", simulated_anyway=True))["simulated"] is True


def test_what_is_not_carried_over_is_said_at_the_head_too() -> None:
    environment = {"HF_HOME": "/data/hf", "CUDA_VISIBLE_DEVICES": "1", "VLLM_X": "1", "HF_HUB_OFFLINE": "1"}
    one = baseline(
        ["numactl", "-N0", "vllm", "serve", "/models/m", "--chat-template", "/x/t.jinja", *KNOBS],
        launch={"environment": environment}, hardware={"cards": 0}, result={"confirmed": False, "verdict": "FAIL"},
    )  # fmt: skip
    text, notes = exported(one, "compose")
    for said in (
        "not confirmed", "verdict is FAIL", "CPU build", "--image", "HF_HOME is left out",
            "HF_HUB_OFFLINE is left out",
        "CUDA_VISIBLE_DEVICES is left out", "/models/m is a path", "/x/t.jinja is a path", "0.0.0.0:8000",
            "numactl -N0",
    ):  # fmt: skip
        assert any(said in note for note in notes), said
    head = text[: text.index("services:")]
    assert all(f"# {note}\n" in head for note in notes)
    (service,) = yaml.safe_load(text)["services"].values()
    assert service["environment"] == {"VLLM_X": "1"}
    assert "deploy" not in service
    assert service["volumes"][-1] == {"type": "bind", "source": "/models/m", "target": "/models/m", "read_only": True}


@pytest.mark.parametrize("form", [form for form in FORMATS if form != "json"])
def test_a_head_stays_a_comment(form: str) -> None:
    one = baseline(["vllm", "serve", "/m\nservices: \u2028x\x85 \x1b[0m", *KNOBS])
    text = text_of(one, form)
    first = next(i for i, line in enumerate(text.split("\n")) if not line.startswith("# "))
    assert first >= 2
    assert all(c.isprintable() for line in text.split("\n")[:first] for c in line)


def test_knobs_that_the_command_lacks_are_added_and_others_compared() -> None:
    assert shlex.split(text_of(baseline(["vllm", "serve", "m"]), "shell"), comments=True) == [
        "vllm",
        "serve",
        "m",
        *KNOBS,
    ]
    _, notes = exported(baseline(["vllm", "serve", "m", "--max-num-seqs=128"]), "shell")
    assert "max-num-seqs in [knobs] is not that of launch.argv: the command's is exported" in notes
    assert not any("[knobs]" in note for note in exported(baseline(served("m")), "shell")[1])


@pytest.mark.parametrize(
    ("flags", "cards", "gpus"),
    [
        ([], 8, 1),
        (["-tp", "4"], 8, 4),
        (["--tensor-parallel-size=2", "--pipeline_parallel_size", "2"], 8, 4),
        ([], 0, 0),
    ],
)
def test_as_many_gpus_as_the_server_uses(flags: list[str], cards: int, gpus: int) -> None:
    one = baseline(served("m", *flags), hardware={"cards": cards})
    (service,) = yaml.safe_load(text_of(one, "compose"))["services"].values()
    found = service.get("deploy", {"resources": {"reservations": {"devices": [{"count": 0}]}}})
    assert found["resources"]["reservations"]["devices"][0]["count"] == gpus
    spec = yaml.safe_load(text_of(one, "helm"))["servingEngineSpec"]["modelSpec"][0]
    assert spec["resources"]["limits"]["nvidia.com/gpu"] == str(gpus)


@pytest.mark.parametrize(
    ("version", "image", "named", "said"),
    [
        ("0.32.0", "", "vllm/vllm-openai:v0.32.0", ""), ("0.32.0+cu130", "", "vllm/vllm-openai:v0.32.0", ""),
        ("0.32.1.dev3+gabc", "", "vllm/vllm-openai:v0.32.1.dev3", "is no release"),
        ("0.32.1.dev3+gabc", "host:5000/mine", "host:5000/mine:latest", ""),
        ("0.32.0", "host:5000/mine:v1", "host:5000/mine:v1", ""),
    ],
)  # fmt: skip
def test_the_image_is_of_the_same_version(version: str, image: str, named: str, said: str) -> None:
    text, notes = exported(baseline(served("m"), engine={"version": version}), "compose", image=image)
    (service,) = yaml.safe_load(text)["services"].values()
    assert service["image"] == named
    assert any("release" in note for note in notes) == bool(said)


def test_helm_puts_numbers_that_helm_would_spoil_among_the_words() -> None:
    spec = yaml.safe_load(text_of(baseline(served("m", "--max-model-len", "1048576")), "helm"))
    config = spec["servingEngineSpec"]["modelSpec"][0]["vllmConfig"]
    assert "maxModelLen" not in config
    assert config["extraArgs"][-2:] == ["--max-model-len", "1048576"]
    assert config["maxNumSeqs"] == 256
    assert config["enablePrefixCaching"] is False


def test_yaml_says_what_no_key_can() -> None:
    argv = served("m", "-O3", "-tp", "2", "--middleware", "a", "--middleware", "b")
    text, notes = exported(baseline(argv), "yaml")
    keys = yaml.safe_load(text)
    assert keys["tensor-parallel-size"] == 2
    assert keys["middleware"] == "b"
    assert keys["no-enable-prefix-caching"] is True
    assert any("--middleware was given more than once" in note for note in notes)
    assert any("no key can say -O3" in note for note in notes)
    assert notes[0] == "start it with: vllm serve --config FILE.yaml -O3"


def test_json_has_the_names_of_vllms_benchmark() -> None:
    data = json.loads(text_of(read_baseline(EXAMPLE), "json"))
    assert (data["model_id"], data["request_rate"], data["num_prompts"]) == ("toy-llama", 6.0, 120)
    assert (data["p95_ttft_ms"], data["request_throughput"], data["verdict"]) == (914.89, 5.451, "PASS")
    assert data["knobs"]["max-num-seqs"] == 10
    assert data["date"] == "20261202-045240"


def test_a_nul_is_refused() -> None:
    with pytest.raises(ExportError, match="NUL"):
        exported(baseline(["vllm", "serve", "m\0"]), "shell")


def test_flags_are_told_from_values_as_vllm_does() -> None:
    assert [word for word in ("--x", "-tp", "-O3", "--a.b", "--x=1 2") if not is_flag(word)] == []
    assert [word for word in ("x", "", "-", "-1", "-.5", "--x y", "- a") if is_flag(word)] == []
    assert split_command(["a", "vllm", "serve", "m"]) == (("a", "vllm", "serve"), ("m",))
    assert split_command(["python", "-m", "vllm.x", "-tp", "2"]) == (("python", "-m", "vllm.x"), ("-tp", "2"))


# --- by each format's own schema or tool


FULL = served("org/m", "-tp", "2", "--dtype", "bfloat16", "--max-model-len", "4096", "--chat-template", "$a %b\n'c'")
SCHEMA_CASES = [
    baseline(FULL, launch={"left_out": ["--api-key", "--hf-token"], "environment": {"VLLM_X": "a $b"}}),
    baseline(served("/models/m"), hardware={"cards": 0}),
    read_baseline(EXAMPLE),
]


@pytest.mark.parametrize("one", SCHEMA_CASES)
def test_compose_is_valid_by_the_compose_specs_schema(one: Baseline) -> None:
    schema = json.loads((files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json").read_text("utf-8"))
    jsonschema.validate(yaml.safe_load(text_of(one, "compose")), schema)


@pytest.mark.parametrize("one", SCHEMA_CASES)
def test_k8s_is_valid_by_kubernetes_schema(one: Baseline) -> None:
    documents = list(yaml.safe_load_all(text_of(one, "k8s")))
    assert [each["kind"] for each in documents] == ["Deployment", "Service"]
    for each in documents:
        kubernetes_validate.validate(each, "1.32", strict=True)


@pytest.mark.parametrize("one", SCHEMA_CASES)
def test_helm_is_valid_by_the_charts_schema_and_has_only_its_keys(one: Baseline) -> None:
    schema = json.loads(CHART.read_text("utf-8"))
    engine = schema["properties"]["servingEngineSpec"]
    spec = engine["properties"]["modelSpec"]["items"]
    for strict in (engine, spec, spec["properties"]["vllmConfig"], spec["properties"]["hf_token"]):
        strict["additionalProperties"] = False
    jsonschema.validate(yaml.safe_load(text_of(one, "helm")), schema)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
@pytest.mark.parametrize("odd", ["", *ODD])
def test_systemd_takes_the_unit(odd: str, tmp_path: Path) -> None:
    argv = ["/usr/bin/env", *served("m", f"--chat-template={odd}")]
    unit = tmp_path / "vllm-test.service"
    unit.write_text(text_of(baseline(argv, launch={"environment": {"VLLM_X": odd}}), "systemd"), "utf-8")
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert "vllm-test" not in done.stderr
    assert done.returncode == 0, done.stderr


PARSE = """
import json, sys
from vllm.utils.argparse_utils import FlexibleArgumentParser
try:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
except ImportError:
    from vllm.entrypoints.openai.cli_args import make_arg_parser
parser = make_arg_parser(FlexibleArgumentParser())
print("ANSWER" + json.dumps([vars(parser.parse_args(words)) for words in json.loads(sys.argv[1])], default=repr))
"""


@pytest.mark.vllm
@pytest.mark.skipif(not VLLM, reason="TUNETUI_TEST_VLLM is not set: no real vLLM to read the YAML")
def test_a_real_vllm_reads_the_yaml_as_it_reads_the_command(tmp_path: Path) -> None:
    odd = ["a b", 'it\'s "x"', "$HOME %n", "a\nb", "é 日本", "-x", "--x y", "1e3", "on", "0o17", "1.50", "#c"]
    asked: list[list[str]] = []
    for index, name in enumerate(odd):
        flags = [f"--served-model-name={name}", "--dtype", "bfloat16", "-tp", "2", "--max-model-len", "2048",
                 "--compilation-config", '{"mode": 0}', "--hf-overrides.x", "3",
                 "--allowed-origins", '["*"]']  # fmt: skip
        argv = ["python", "-m", "module", "--model", "m", "--host", "127.0.0.1", "--port", "8230", *KNOBS, *flags]
        path = tmp_path / f"{index}.yaml"
        path.write_text(text_of(baseline(argv), "yaml"), "utf-8")
        asked += [argv[3:], ["--config", str(path)]]
    python = shlex.split(VLLM)[0]
    done = subprocess.run([python, "-c", PARSE, json.dumps(asked)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout[done.stdout.index("ANSWER") + 6 :])
    for index, name in enumerate(odd):
        given, read = answers[2 * index : 2 * index + 2]
        assert read == given, name
        assert given["served_model_name"] == [name]
        assert (given["max_num_seqs"], given["enable_prefix_caching"]) == (256, False)
