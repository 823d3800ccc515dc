"""A vLLM's command line, script or YAML becomes a session's model and flags; what cannot be read is a sentence."""

from __future__ import annotations

import shlex
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunetui.store.imports import Imported, ImportingError, from_script, from_words, from_yaml
from tunetui.store.scripts import ScriptError, commands

TOKEN = "hf_" + "aB3dE5gH7jK9" * 3


def reasons(found: Imported) -> dict[str, str]:
    return dict(found.not_taken)


def test_a_command_line() -> None:
    found = from_words(shlex.split("VLLM_X=1 vllm serve org/m --max-num-seqs 128 -tp 2 --port 9000 --new-thing a b"))
    assert found.model == "org/m"
    assert found.flags == ("--max-num-seqs", "128", "-tp", "2", "--new-thing", "a", "b")
    assert found.environment == {"VLLM_X": "1"}
    assert "tunetui's own option" in reasons(found)["--port"]


@pytest.mark.parametrize(
    "words",
    ["/opt/bin/vllm serve --model=m --x", "python3 -m vllm.entrypoints.openai.api_server --model m --x",
     "numactl -N0 vllm serve m --x", "python -m vllm.entrypoints.cli.main serve m --x"],
)  # fmt: skip
def test_the_ways_to_start_vllm(words: str) -> None:
    assert from_words(words.split()) == from_script(words) == Imported("m", ("--x",))


def test_what_is_not_taken_over() -> None:
    found = from_words(
        ["vllm", "serve", "m", "--host", "0.0.0.0", "--scheduler-cls", "a.B", "--api-key", "k1", "k2", "--hf-token=x",
         "--max-num-active-seqs", "9", "--tokenizer", TOKEN, "--ok"]
    )  # fmt: skip
    assert found.flags == ("--ok",)
    assert list(reasons(found)) == [
        "--host", "--scheduler-cls", "--api-key", "--hf-token", "--max-num-active-seqs", "--tokenizer",
    ]  # fmt: skip
    assert reasons(found)["--scheduler-cls"].startswith("refused")
    assert "VLLM_API_KEY" in reasons(found)["--api-key"]
    assert not any(secret in str(found) for secret in ("k1", "k2", TOKEN))


SCRIPT = """\
#!/bin/bash
set -euo pipefail   # it's a comment
cd "$(dirname "$0")"
export VLLM_LOGGING_LEVEL=DEBUG PATH=/x HF_TOKEN=letmein
MODEL="meta/llama"
ARGS="--dtype bfloat16 --enforce-eager"
if [ -f x ]; then echo 'vllm serve not this'; fi
HF_TOKEN="$HF_TOKEN" VLLM_Y='a b' exec vllm serve "$MODEL" $ARGS \\
    --max-num-seqs ${SEQS:-64} \\
    --chat-template 'a $b "c"' --tokenizer "$TOKENIZER" \\
    --port "${PORT}" 2>&1 > vllm.log &
wait
"""


def test_a_script() -> None:
    found = from_script(SCRIPT)
    assert found.model == "meta/llama"
    assert found.flags == (
        "--dtype", "bfloat16", "--enforce-eager", "--max-num-seqs", "64", "--chat-template", 'a $b "c"',
    )  # fmt: skip
    assert found.environment == {"VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_Y": "a b"}
    assert reasons(found)["--tokenizer"] == "only the shell can fill in $TOKENIZER: give it yourself, behind the --"
    assert "letmein" not in str(found)


def test_a_yaml_file() -> None:
    found = from_yaml(
        "model: org/m\nport: 80\nmax_num_seqs: 128\nenable-prefix-caching: false\nno-enable-chunked-prefill: true\n"
        "enforce-eager: true\nno-x: false\nallowed-origins: [a, b]\nempty: []\nmax-model-len: -1\nnew: 'on'\n"
        "compilation-config:\n  mode: 3\n  list: [1]\nserved-model-name: -x\nhf-token: x\n"
    )
    assert found.model == "org/m"
    assert found.flags == (
        "--max_num_seqs", "128", "--no-enable-prefix-caching", "--no-enable-chunked-prefill", "--enforce-eager",
        "--allowed-origins", "a", "b", "--max-model-len", "-1", "--new", "on", "--compilation-config",
        '{"mode": 3, "list": [1]}', "--served-model-name=-x",
    )  # fmt: skip
    assert list(reasons(found)) == ["--port", "--hf-token"]
    assert found.notes == [
        "enable-prefix-caching: false is read as --no-enable-prefix-caching; "
        "leave it out where vLLM has no such flag"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model: m\nx:\n", "line 2: x has no value"),
        ("model: m\nx: [1\ny: 2\n", "line 3: this is not YAML"),
        ("model: m\nx: *a\n", "line 2: this is not YAML"),
        ("- a\n", "line 1: no `key: value` lines"),
        ("", "line 1: no `key: value` lines"),
        ("x: 1\n", "no model in it"),
        ("model: [a, b]\n", "model needs one value"),
        ("model: m\n--x: 1\n", "line 2: --x is not the name of a flag"),
        ("model: m\n1: 1\n", "line 2: 1 is not the name of a flag"),
        ("model: m\nx: [{a: 1}]\n", "line 2: x is a list of more than plain values"),
        ("model: m\nx: {a: 2001-01-01}\n", "line 2: x has a value that JSON cannot say"),
        ("model: m\nx: 2001-99-99\n", "not YAML"),
        ("model: \x00\n", "not YAML"),
    ],
)
def test_yaml_that_cannot_be_read_is_said_with_its_line_and_key(text: str, said: str) -> None:
    with pytest.raises(ImportingError, match=said.replace("[", r"\[")) as caught:
        from_yaml(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo hi\n", "no vllm serve|no vLLM command"),
        ("vllm serve a\nvllm serve b\n", r"several vLLM commands in it \(lines 1 and 2|several .*lines 1, 2"),
        ("\nvllm serve 'a\n", "line 2: a ' is not closed"),
        ('\n\nvllm serve "a\n', 'line 3: a " is not closed'),
        ("x\nvllm serve --x\n", "line 2: no model in it"),
        ("vllm serve $MODEL\n", r"line 1: the model is \$MODEL, which only the shell knows"),
        ("vllm serve a b --x\n", "line 1: 'b' is behind the model"),
        ("vllm serve a --config x.yaml", "--config names a file: import that, x.yaml"),
    ],
)
def test_scripts_that_cannot_be_read_are_said_with_their_line(text: str, said: str) -> None:
    with pytest.raises(ImportingError, match=said):
        from_script(text)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=10), min_size=1))
def test_quoted_words_are_read_as_shlex_wrote_them(words: list[str]) -> None:
    (found,) = commands("run " + shlex.join(words))
    assert found.words == ["run", *words]


@given(st.text(max_size=40) | st.text("vlmser \n\\'\"$`{}[]()<>&|:;#=*-ab", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(ImportingError):
        from_yaml(text)
    with suppress(ImportingError):
        from_yaml("model: m\n" + text)
    with suppress(ImportingError):
        from_script("vllm serve m " + text)
    with suppress(ScriptError):
        list(commands(text))


def test_yaml_that_is_nested_too_deep_is_refused() -> None:
    with pytest.raises(ImportingError):
        from_yaml("[" * 5000)
