"""Every format is recognised by its content and read as what it says."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tunetui.core.trace import Trace
from tunetui.traces.columns import Reading
from tunetui.traces.lines import TraceError
from tunetui.traces.reading import read_trace
from tunetui.traces.written import recording_lines


def read(folder: Path, text: str | bytes) -> tuple[Trace, Reading]:
    file = folder / "recording"  # no name tells the format
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_trace(file)


def lines(*records: object) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


AZURE_2023 = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2031-01-16 18:15:46.6805900,374,44
2031-01-16 18:15:50.9951690,396,109
2031-01-16 18:15:51.2224670,879,55
"""
AZURE_2024 = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2031-05-10 23:59:59.009930+00:00,2162,5
2031-05-11 00:00:00.017335+00:00,2399,6
2031-05-11 01:00:01.017335+01:00,2400,7
"""


def test_azure(tmp_path: Path) -> None:
    trace, reading = read(tmp_path, AZURE_2023)
    assert trace == Trace("azure csv", (374, 396, 879), (44, 109, 55), arrivals_s=(0.0, 4.314579, 4.541877))
    assert reading == Reading("azure csv", lines=3)
    trace, _ = read(tmp_path, AZURE_2024)
    assert trace.arrivals_s == (0.0, 1.007405, 2.007405)
    assert trace.prompt_tokens == (2162, 2399, 2400)


def test_burstgpt_counts_and_drops_failed_requests(tmp_path: Path) -> None:
    text = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\r\n"
    text += "5,ChatGPT,472,18,490,Conversation log\r\n45,ChatGPT,1087,0,1087,Conversation log\r\n"
    text += '118,"GPT-4",417,276,693,"API log"\r\n'
    trace, reading = read(tmp_path, text)
    assert trace == Trace("burstgpt csv", (472, 417), (18, 276), arrivals_s=(0.0, 113.0))
    assert reading.notes == ("failed requests (no response tokens) left out: 1",)


MOONCAKE = (
    {"timestamp": 27000, "input_length": 1000, "output_length": 52, "hash_ids": [46, 47]},
    {"timestamp": 30000.5, "input_length": 513, "output_length": 26, "hash_ids": [46, 9]},
)


def test_mooncake(tmp_path: Path) -> None:
    trace, _ = read(tmp_path, lines(*MOONCAKE))
    assert trace == Trace(
        "mooncake jsonl", (1000, 513), (52, 26), arrivals_s=(0.0, 3.0005), block_tokens=512, blocks=((46, 47), (46, 9))
    )


def test_mooncake_prompts_without_ids_share_nothing(tmp_path: Path) -> None:
    bare = {"timestamp": 0, "input_length": 1025, "output_length": 1}
    trace, _ = read(tmp_path, lines(bare, *MOONCAKE, bare | {"timestamp": 40000}))
    assert trace.blocks is not None
    assert [len(ids) for ids in trace.blocks] == [3, 2, 2, 3]
    assert len({one for ids in trace.blocks for one in ids}) == 9  # but for 46, all differ
    plain, _ = read(tmp_path, lines(bare))
    assert (plain.blocks, plain.block_tokens) == (None, 0)


TALK = [
    {"from": "human", "value": "q" * 40},
    {"from": "gpt", "value": "a" * 80},
    {"from": "human", "value": "r" * 9},
    {"from": "gpt", "value": "b" * 4},
]


@pytest.mark.parametrize("indent", [None, 2])
def test_sharegpt(tmp_path: Path, indent: int | None) -> None:
    talks = [
        {"id": "one", "conversations": [{"from": "system", "value": "s" * 4}, *TALK]},
        {"id": "none", "conversations": []},
        {"id": "odd", "conversations": [TALK[1], TALK[2], TALK[3], TALK[0]]},
    ]
    trace, reading = read(tmp_path, json.dumps(talks, indent=indent))
    first = (("system", "s" * 4), ("user", "q" * 40))
    assert trace.texts == (first, (*first, ("assistant", "a" * 80), ("user", "r" * 9)), (("user", "r" * 9),))
    assert trace.prompt_tokens == (11, 34, 3)  # a quarter of the characters, rounded up
    assert trace.output_tokens == (20, 1, 1)
    assert trace.conversations == (0, 0, 1)
    assert (trace.format, trace.counted, trace.arrivals_s) == ("sharegpt json", False, None)
    assert reading.notes == ("conversations without an answered question left out: 1",)
    again, _ = read(tmp_path, lines(*talks))  # one conversation a line
    assert again == trace


def test_a_long_list_is_read_in_parts(tmp_path: Path) -> None:
    talks = [
        {"id": str(number), "conversations": [{"from": "human", "value": f"{number}é" * 9000}, TALK[1]]}
        for number in range(60)
    ]
    talks[40]["conversations"] = [{"from": "human", "value": "é" * 2_600_000}, TALK[1]]  # longer than any part
    text = "[" + ",\n".join(json.dumps(talk, ensure_ascii=False) for talk in talks) + "]"
    assert len(text.encode()) > 4 * 2**20
    trace, _ = read(tmp_path, text)
    assert trace.requests == 60
    assert trace.texts is not None
    assert trace.texts[59] == (("user", "59é" * 9000),)
    assert trace.prompt_tokens[40] == 650_000
    with pytest.raises(TraceError, match="item 60 of the list is malformed or cut off"):
        read(tmp_path, text[:-40])


def test_vllm_custom(tmp_path: Path) -> None:
    trace, reading = read(
        tmp_path,
        lines(
            {"prompt": "p" * 10, "output_tokens": 7}, {"prompt": "é", "expected_output_len": 9}, {"prompt": "\ud800"}
        ),
    )
    assert trace == Trace("vllm custom jsonl", (3, 1, 1), (7, 9, 256), texts=("p" * 10, "é", "?"), counted=False)
    assert reading.notes == ("prompts without output_tokens, taken as 256: 1",)


CHAT = {"model": "m", "messages": [{"role": "user", "content": "h" * 8}], "max_tokens": 33}
USAGE = {"prompt_tokens": 21, "completion_tokens": 5, "total_tokens": 26}


@pytest.mark.parametrize(
    ("record", "prompt", "output", "counted"),
    [
        (CHAT, 2, 33, False),
        ({"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": CHAT}, 2, 33, False),
        ({"body": CHAT, "response": {"usage": USAGE}}, 21, 5, True),
        ({"request": CHAT, "response": {"status_code": 200, "body": {"usage": USAGE}}}, 21, 5, True),
        ({"request_body": json.dumps(CHAT), "usage": {"input_tokens": 4, "output_tokens": 2}}, 4, 2, True),
        ({"request": CHAT, "response": {"choices": [{"message": {"content": "a" * 12}}]}}, 2, 3, False),
        ({"model": "m", "prompt": "p" * 16, "max_tokens": 8}, 4, 8, False),
        ({"model": "m", "prompt": [5, 6, 7], "max_tokens": 8}, 3, 8, True),
        ({"model": "m", "prompt": "p" * 16}, 4, 256, False),
    ],
)
def test_openai_requests(tmp_path: Path, record: object, prompt: int, output: int, counted: bool) -> None:
    trace, _ = read(tmp_path, lines(record))
    assert trace.format == "openai request log"
    assert (trace.prompt_tokens, trace.output_tokens, trace.counted) == ((prompt,), (output,), counted)


def test_openai_log_with_times_and_parts_of_content(tmp_path: Path) -> None:
    parts = [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "x"}},
        {"type": "text", "text": "it"},
    ]
    trace, reading = read(
        tmp_path,
        lines(
            {"timestamp": "2031-02-03T04:05:06.5Z", "body": CHAT, "response": {"usage": USAGE}},
            {"timestamp": 1927857908.5 * 1000, "body": {"messages": [{"role": "user", "content": parts}]}},
            {"timestamp": 1927857909, "body": CHAT, "response": {"usage": USAGE | {"completion_tokens": 0}}},
        ),
    )
    assert trace.arrivals_s == (0.0, 2.0)
    assert trace.texts == ((("user", "h" * 8),), (("user", "see\nit"),))
    assert not trace.counted
    assert reading.notes == (
        "requests without any output length, taken as 256 tokens: 1",
        "requests without an output token left out: 1",
        "prompts without a token count, estimated at 4 characters a token: 1",
    )


def test_openai_request_with_several_prompts_is_several(tmp_path: Path) -> None:
    body = {"model": "m", "prompt": ["p" * 8, "q" * 16], "max_tokens": 6}
    trace, _ = read(tmp_path, lines(body))
    assert (trace.prompt_tokens, trace.output_tokens, trace.texts) == ((2, 4), (6, 6), ("p" * 8, "q" * 16))
    mixed, reading = read(tmp_path, lines(body, body | {"prompt": [1, 2]}))
    assert (mixed.prompt_tokens, mixed.texts) == ((2, 4, 2), None)
    assert "some prompts have no text, so lengths alone are kept" in reading.notes


def test_gzip_byte_order_mark_carriage_returns_and_blank_lines(tmp_path: Path) -> None:
    plain, _ = read(tmp_path, AZURE_2023)
    odd = b"\xef\xbb\xbf\r\n" + AZURE_2023.replace("\n", "\r\n\r\n").encode() + b"\n  \n"
    assert read(tmp_path, odd)[0] == plain
    assert read(tmp_path, gzip.compress(odd))[0] == plain
    text = b"\xef\xbb\xbf" + json.dumps([{"id": 1, "conversations": TALK}]).encode()
    assert read(tmp_path, gzip.compress(text))[0].requests == 2


def test_rows_out_of_order_are_sorted_and_counted(tmp_path: Path) -> None:
    stamps = [0, 5000, 1000, 1000, 7000, 6000]
    trace, reading = read(
        tmp_path,
        lines(*({"timestamp": t, "input_length": i + 1, "output_length": 9 - i} for i, t in enumerate(stamps))),
    )
    assert trace.arrivals_s == (0.0, 1.0, 1.0, 5.0, 6.0, 7.0)
    assert trace.prompt_tokens == (1, 3, 4, 2, 6, 5)
    assert trace.output_tokens == (9, 7, 6, 8, 4, 5)
    assert reading.out_of_order == 3


def test_requests_of_one_moment_keep_their_order(tmp_path: Path) -> None:
    records = [{"timestamp": n % 2, "input_length": n + 1, "output_length": 1} for n in range(400)]
    trace, _ = read(tmp_path, lines(*records))
    assert trace.prompt_tokens == (*range(1, 400, 2), *range(2, 401, 2))


def test_times_that_not_all_requests_have_are_told(tmp_path: Path) -> None:
    trace, reading = read(tmp_path, lines(CHAT, {"timestamp": 5, "body": CHAT}))
    assert trace.arrivals_s is None
    assert "requests with a time, which is ignored for the first request has none: 1" in reading.notes


def test_a_recording_of_ours_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = Trace("made", (40, 16), (1, 2), arrivals_s=(0.0, 0.0125), block_tokens=16, blocks=((1, 2, 3), (1,)))
    trace, reading = read(tmp_path, "".join(recording_lines(made, ["a note"])))
    assert (trace.prompt_tokens, trace.output_tokens, trace.arrivals_s) == ((40, 16), (1, 2), (0.0, 0.0125))
    assert (trace.block_tokens, trace.blocks) == (16, ((1, 2, 3), (1,)))
    assert (trace.format, trace.counted, trace.lengths_only) == ("tunetui recording", True, False)
    assert reading == Reading("tunetui recording", lines=2, notes=("a note",))


@pytest.mark.parametrize(("counted", "lengths_only"), [(False, False), (True, True)])
def test_the_marks_of_a_recording_survive(tmp_path: Path, counted: bool, lengths_only: bool) -> None:
    made = Trace("made", (4,), (1,), counted=counted, lengths_only=lengths_only)
    trace, _ = read(tmp_path, "".join(recording_lines(made)))
    assert (trace.counted, trace.lengths_only, trace.arrivals_s) == (counted, lengths_only, None)


def test_a_recording_without_marks_is_a_mooncake_trace(tmp_path: Path) -> None:
    made = Trace("made", (1000,), (5,), arrivals_s=(0.0,), block_tokens=512, blocks=((3, 4),))
    text = "".join(recording_lines(made))
    assert [json.loads(line) for line in text.splitlines()] == [
        {"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [3, 4]}
    ]
    assert read(tmp_path, text)[0].format == "mooncake jsonl"
