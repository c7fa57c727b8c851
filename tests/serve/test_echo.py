"""Log-probabilities of a prompt's own tokens."""

from __future__ import annotations

from typing import Any

import pytest
from reciting import token_ids
from serving import Babbler
from talking import COMPLETIONS, answer_to, generations, talker

from forerun.serve.admission.scoring import LeftError, prompt_logprobs
from forerun.serve.openai.replies import Words

BODY: dict[str, Any] = {"max_tokens": 3, "temperature": 0.8, "seed": 7, "echo": True, "n": 2}


@pytest.mark.parametrize("num_top", [0, 2])
def test_an_echoed_prompt_has_its_logprobs(num_top: int) -> None:
    """Those of the first token are unknown; the others are what `generate` says of such a text."""
    text = "the quick brown fox jumps over the lazy dog " * 2  # more tokens than a pass has
    prompts = [token_ids(text), token_ids("a fox")]
    body = {**BODY, "prompt": prompts, "logprobs": num_top}
    whole, events = answer_to(COMPLETIONS, body, {**body, "stream": True})
    words = Words(talker().tokenizer)
    for choice in whole["choices"]:
        tokens, told = prompts[choice["index"] // 2], choice["logprobs"]
        size = len(tokens)
        assert told["tokens"][:size] == [words.text(token) for token in tokens]
        assert told["token_logprobs"][0] is None
        for place in (1, 32, 33, size - 1):
            if place < size:
                rows = generations(
                    talker(), tokens[:place], max_new_tokens=1, logprobs=talker().vocab_size
                )[0].logprobs[0]
                assert told["token_logprobs"][place] == dict(rows.top)[tokens[place]]
        starts = list(zip(told["tokens"], told["text_offset"], strict=True))
        assert all(choice["text"][start:].startswith(token) for token, start in starts[:size])
        assert starts[size][1] == len(text if size > 10 else "a fox")
        if num_top:
            assert told["top_logprobs"][0] is None
            assert all(2 <= len(table) <= 3 for table in told["top_logprobs"][1:])
            assert len(told["top_logprobs"]) == len(told["tokens"])
        else:
            assert told["top_logprobs"] is None
        parts = [
            e["choices"][0] for e in events[:-1] if e["choices"][0]["index"] == choice["index"]
        ]
        assert "".join(part["text"] for part in parts) == choice["text"]
        for name in ("tokens", "token_logprobs", "text_offset"):
            assert [item for part in parts for item in part["logprobs"][name]] == told[name]


def test_a_prompt_that_nobody_waits_for_is_not_read_on() -> None:
    read: list[int] = []
    target = Babbler(lambda ids: read.append(len(ids)))
    with pytest.raises(LeftError):
        prompt_logprobs(target, token_ids("a" * 200), 0, has_left=lambda: max(read, default=0) > 40)
    assert max(read) < 100
