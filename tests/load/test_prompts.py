"""Bodies: exact ids, words for chats, shared blocks that are equal tokens, and the texts of a trace."""

import json
from typing import Any

import pytest

from tunetui.core.workload import Material
from tunetui.load.prompts import Prompt, PromptBook

IDS = Material(tuple(range(1000, 9000)))
WORDS = Material(words=("alpha", "beta", "gamma", "delta"), tokens_per_word=2.0)


def ids(prompt: Prompt, index: int = 0, seed: tuple[int, ...] = (1, 2)) -> list[int]:
    found: list[int] = json.loads(PromptBook("m", IDS).body(seed, index, prompt))["prompt"]
    return found


def chat(prompt: Prompt, index: int = 0) -> Any:
    return json.loads(PromptBook("m", WORDS, chat=True).body((1, 2), index, prompt))


def test_equal_blocks_are_equal_tokens_and_what_follows_is_not() -> None:
    first = ids(Prompt(40, 1, blocks=(7, 8, 9), block_tokens=16), index=0)
    other = ids(Prompt(48, 1, blocks=(7, 8, 5), block_tokens=16), index=1)
    assert (len(first), len(other)) == (40, 48)
    assert first[:32] == other[:32]
    assert first[32:] != other[32:40]
    assert first == ids(Prompt(40, 1, blocks=(7, 8, 9), block_tokens=16), index=5)


def test_a_shorter_last_block_begins_as_the_whole_one_does() -> None:
    cut = ids(Prompt(20, 1, blocks=(7, 8), block_tokens=16))
    assert cut == ids(Prompt(32, 1, blocks=(7, 8), block_tokens=16))[:20]


def test_blocks_are_fresh_under_another_seed_and_missing_ones_are_the_requests_own() -> None:
    asked = Prompt(16, 1, blocks=(7,), block_tokens=16)
    assert ids(asked) != ids(asked, seed=(1, 3))
    longer = Prompt(24, 1, blocks=(7,), block_tokens=16)
    assert ids(longer)[:16] == ids(asked)
    assert ids(longer, index=1)[16:] != ids(longer, index=2)[16:]


def test_a_chat_is_written_with_words_near_the_asked_length() -> None:
    body = chat(Prompt(40, 9))
    (turn,) = body["messages"]
    assert turn["role"] == "user"
    assert len(turn["content"].split()) == 20
    assert body["max_tokens"] == 9
    assert chat(Prompt(40, 9), index=1) != body


def test_texts_are_sent_as_they_are() -> None:
    turns = (("system", "be brief"), ("user", "why?"))
    assert chat(Prompt(3, 1, text=turns))["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "why?"},
    ]
    assert chat(Prompt(3, 1, text='a "b"'))["messages"] == [{"role": "user", "content": 'a "b"'}]
    completion = PromptBook("m", IDS)
    assert json.loads(completion.body((1,), 0, Prompt(3, 1, text="Hi \u20ac")))["prompt"] == "Hi \u20ac"
    assert json.loads(completion.body((1,), 0, Prompt(3, 1, text=turns)))["prompt"] == "be brief\n\nwhy?"


def test_without_ids_a_completion_is_written_with_words() -> None:
    text = json.loads(PromptBook("m", WORDS).body((1,), 0, Prompt(10, 1)))["prompt"]
    assert len(text.split()) == 5


def test_a_chat_needs_words() -> None:
    with pytest.raises(ValueError, match="nothing to make prompts of"):
        PromptBook("m", IDS, chat=True)
