"""A baseline as the words of a session: what `tunetui` would be called with to be there. It starts nothing."""

from __future__ import annotations

from collections.abc import Sequence

from tunetui.cli.options import USAGE, Refused
from tunetui.core.baseline import Baseline
from tunetui.core.knobs import MemoryFlag, knob_argv
from tunetui.engine.command import flags_of, value_in

# Options that say the same thing in several ways: one that the operator gives takes the place of all of them.
LOAD = ("--rate", "--concurrency", "--ramp", "--speed", "--arrival", "--burstiness")
LENGTHS = ("--prompt-tokens", "--output-tokens", "--trace")
SERVER = ("--model", "--demo", "--url")
TOGETHER = (LOAD, LENGTHS, SERVER)


def words_of(baseline: Baseline) -> tuple[list[str], list[str]]:
    """A session's options, and vLLM's flags after `--`, that begin where `baseline` was accepted."""
    argv = baseline.launch["argv"]
    profile = value_in(argv, "--profile") if baseline.engine.get("simulated") else None
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
    named = {word.partition("=")[0] for word in flags}
    memory = MemoryFlag.KV_BYTES if MemoryFlag.KV_BYTES.value in baseline.knobs else MemoryFlag.UTILIZATION
    # The argv of a file from before a knob was known, or made by hand, may lack some of them.
    missing = [w for w in _paired(knob_argv(baseline.point, memory)) if not named & _spellings(w[0])]
    return [*flags, *(word for words in missing for word in words)]


def _paired(argv: Sequence[str]) -> list[list[str]]:
    found: list[list[str]] = []
    for word in argv:
        if word.startswith("--"):
            found.append([word])
        else:
            found[-1].append(word)
    return found


def _spellings(flag: str) -> set[str]:
    """`--enable-x` and `--no-enable-x` are one flag."""
    name = flag.removeprefix("--no-") if flag.startswith("--no-") else flag.removeprefix("--")
    return {f"--{name}", f"--no-{name}"}


def merged(ours: Sequence[str], given: Sequence[str]) -> list[str]:
    """The baseline's options with those that the operator gave in their place."""
    named = {word.partition("=")[0] for word in given}
    dropped = {name for together in TOGETHER if named & set(together) for name in together}
    kept: list[str] = []
    dropping = False
    for word in ours:
        if word.startswith("--"):
            dropping = word in dropped or (word in named)
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
