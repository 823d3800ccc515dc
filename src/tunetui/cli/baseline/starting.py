"""A baseline as the words of a session: what `tunetui` would be called with to be there. It starts nothing."""

from __future__ import annotations

from collections.abc import Sequence

from tunetui.cli.options import USAGE, Refused
from tunetui.core.baseline import Baseline
from tunetui.core.flags import Flag, flags_in
from tunetui.core.knobs import MemoryFlag, knob_argv
from tunetui.engine.command import flags_of, value_of

# Options that say the same thing in several ways: one that the operator gives takes the place of all of them.
LOAD = ("--rate", "--concurrency", "--ramp", "--speed", "--arrival", "--burstiness")
LENGTHS = ("--prompt-tokens", "--output-tokens", "--trace")
SERVER = ("--model", "--demo", "--url")
TOGETHER = (LOAD, LENGTHS, SERVER)


def words_of(baseline: Baseline) -> tuple[list[str], list[str]]:
    """A session's options, and vLLM's flags after `--`, that begin where `baseline` was accepted."""
    argv = baseline.launch["argv"]
    profile = value_of(argv, "--profile") if baseline.engine.get("simulated") else None
    server = ["--demo", profile] if profile else ["--model", baseline.model["name"]]
    objectives = [str(objective) for objective in baseline.goal.objectives]
    goal = [*(["--slo", *objectives] if objectives else []), "--percentile", str(baseline.slo["percentile"])]
    return [*server, *goal, *episode_words(baseline)], vllm_flags(baseline)


def episode_words(baseline: Baseline) -> list[str]:
    """The options that send the baseline's episode again. A recorded trace is not in it: its file must be given."""
    told = baseline.episode
    named = {
        "--concurrency": told.get("concurrency"),
        "--prompt-tokens": told.get("prompt_tokens"),
        "--output-tokens": told.get("output_tokens"),
        "--seed": told.get("seed"),
        "--endpoint": told.get("endpoint"),
        "--episode-requests": told["requests"],
    }
    if "ramp_to_rps" in told:
        shape = ":exponential" if told.get("ramp_exponential") else ""
        named["--ramp"] = f"{told['rate_rps']:g}:{told['ramp_to_rps']:g}{shape}"
    elif "rate_rps" in told:
        named["--rate"] = repr(float(told["rate_rps"]))
    if told.get("arrival", "poisson") != "poisson":
        named["--arrival"] = told["arrival"]
    if told.get("arrival") == "gamma":
        named["--burstiness"] = repr(float(told.get("burstiness", 1.0)))
    return [word for name, value in named.items() if value is not None for word in (name, str(value))]


def vllm_flags(baseline: Baseline) -> list[str]:
    """Every flag of the accepted server, its knobs included."""
    flags = flags_of(baseline.launch["argv"])
    named = {_switch(flag) for flag in flags_in(flags)[1]}
    memory = MemoryFlag.KV_BYTES if MemoryFlag.KV_BYTES.value in baseline.knobs else MemoryFlag.UTILIZATION
    knobs = flags_in(knob_argv(baseline.point, memory))[1]
    # The argv of a file from before a knob was known, or made by hand, may lack some of them.
    return [*flags, *(str(word) for flag in knobs if _switch(flag) not in named for word in flag.words)]


def _switch(flag: Flag) -> str:
    """`--enable-x` and `--no-enable-x` are one flag."""
    return flag.name.removeprefix("no-")


def merged(ours: Sequence[str], given: Sequence[str]) -> list[str]:
    """The baseline's options with those that the operator gave in their place. A trace has its own times: the
    baseline's rate goes with its lengths."""
    named = {word.partition("=")[0] for word in given}
    dropped = {name for together in TOGETHER if named & set(together) for name in together}
    if "--trace" in named:
        dropped |= set(LOAD)
    kept: list[str] = []
    dropping = False
    for word in ours:
        if word.startswith("--"):
            dropping = word in dropped or word in named
        if not dropping:
            kept.append(word)
    return [*kept, *given]


def with_baseline(words: Sequence[str]) -> list[str]:
    """A session's words with those of the baseline that `--from` names; what else is given takes their place.
    Raises Refused."""
    from tunetui.cli.baseline.checking import baseline_at

    cut = words.index("--") if "--" in words else len(words)
    given, flags = list(words[:cut]), list(words[cut + 1 :])
    at = next((i for i, word in enumerate(given) if word == "--from" or word.startswith("--from=")), None)
    if at is None:
        return list(words)
    name = given[at].partition("=")[2] if "=" in given[at] else "".join(given[at + 1 : at + 2])
    if not name or name.startswith("--"):
        raise Refused("--from needs a baseline: a session's folder, or its baseline.toml", USAGE)
    baseline = baseline_at(name)
    rest = given[:at] + given[at + (1 if "=" in given[at] else 2) :]
    named = {word.partition("=")[0] for word in rest}
    if "trace" in baseline.episode and not named & set(LENGTHS):
        raise Refused("this baseline's load replays a recording that is not in it: give it with --trace FILE", USAGE)
    ours, our_flags = words_of(baseline)
    if "--url" in named:
        our_flags = []
    return [*merged(ours, rest), "--", *our_flags, *flags]
