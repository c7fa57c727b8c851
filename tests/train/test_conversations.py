"""Which prompts are asked, and where."""

from __future__ import annotations

import random

from tiny_training import tiny_tokenizer
from tokenizers.processors import TemplateProcessing

from forerun.train.chat import Chat
from forerun.train.conversations import LONG, Author, Cycle

SHORT = [f"w{i} w{i + 1}" for i in range(5)]
LONGER = [" ".join([f"w{i}"] * LONG) for i in range(5, 8)]


def asked(author: Author, script) -> str:
    return author.chat.decode(list(next(script).tokens)).split()[0]


def test_a_text_without_a_template_begins_as_generate_encodes_it():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    chat = Chat.of(tokenizer)
    assert chat.ask("w1 w2") == tokenizer.encode("w1 w2") == [1, 5, 6]
    assert chat.encode("w1 w2") == [5, 6]
    assert not chat.has_turns


def test_every_text_comes_once_in_a_cycle():
    cycle = Cycle(SHORT, random.Random(0))
    drawn = [cycle.next() for _ in range(15)]
    assert [number for _, number in drawn] == [0] * 5 + [1] * 5 + [2] * 5
    for number in range(3):
        assert sorted(text for text, at in drawn if at == number) == SHORT


def test_texts_of_an_earlier_run_count():
    cycle = Cycle(SHORT, random.Random(0), [0, 1, 2, 0, 5])
    times = dict(cycle.next() for _ in range(5))
    assert [times[text] for text in SHORT] == [0, 1, 2, 0, 5]
    again = dict(cycle.next() for _ in range(5))
    assert [again[text] for text in SHORT] == [1, 2, 3, 1, 6]


def test_a_prompt_is_answered_greedily_once():
    """What an earlier run has answered, short or long, is sampled from the beginning."""
    author = Author(Chat.of(tiny_tokenizer()), [SHORT[0], LONGER[0]], 0, asked=[0, 1])
    short = [next(author.from_prompt()).temperature for _ in range(5)]
    longer = [next(author.from_prompt(author.long_prompts)).temperature for _ in range(4)]
    assert short == [0.0, 0.7, 1.0, 0.7, 1.0]
    assert longer == [0.7, 1.0, 0.7, 1.0]


def test_long_prompts_are_asked_where_there_is_room():
    author = Author(Chat.of(tiny_tokenizer()), [*SHORT, *LONGER], 0)
    in_short = {asked(author, author.short()) for _ in range(40)}
    in_long = {asked(author, author.long()) for _ in range(40)}
    assert in_short == {"w0", "w1", "w2", "w3", "w4"}
    assert in_long >= {"w5", "w6", "w7"}


def test_answers_are_as_long_as_asked_for():
    author = Author(Chat.of(tiny_tokenizer()), SHORT, 0, 17)
    assert next(author.short()).limit == 17
