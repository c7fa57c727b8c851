"""A stream is `generate` in pieces: nothing lost, no character split, no stop string leaked."""

from __future__ import annotations

from typing import Any

import pytest
from drafting import tiny_pair
from reciting import TEXT, Reciter, byte_tokenizer, num_split

import forerun as fr
from forerun import Fate, Sampling
from forerun.drafters import Model, NGram
from forerun.models import TableModel

RECITER = Reciter(TEXT)
DOUBTFUL = Model(Reciter(TEXT, doubt=0.3))
HOW: dict[str, Any] = {"max_new_tokens": 100, "stop_tokens": [RECITER.end]}


@pytest.mark.parametrize(
    ("drafter", "draft_length"), [(None, 1), (DOUBTFUL, 1), (DOUBTFUL, 7), (NGram(), 4)]
)
def test_pieces_join_to_the_text_without_splitting_characters(
    drafter: Any, draft_length: int
) -> None:
    how = {"drafter": drafter, "draft_length": draft_length, "sampling": Sampling(seed=1)} | HOW
    wanted = fr.generate(RECITER, RECITER.prompt(), **how)
    assert num_split(wanted.tokens) > 40, "characters must span tokens"
    pieces = list(fr.stream(RECITER, RECITER.prompt(), **how))
    assert "".join(piece.text for piece in pieces) == wanted.text
    assert all("�" not in piece.text for piece in pieces)
    assert [token for piece in pieces for token in piece.tokens] == wanted.tokens
    assert [fate for piece in pieces for fate in piece.fates] == wanted.fates
    assert [piece.finish_reason for piece in pieces[-2:]] == [None, "stop"]
    assert all(piece.text == "".join(part for part, _ in piece.parts) for piece in pieces)


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))]
)
def test_bytes_that_are_no_characters(seed: int) -> None:
    """A model may write garbage; the text is what the tokenizer makes of all of it together, but
    for bytes at its end, which may be those of a character that is cut off."""
    target = Reciter(TEXT, doubt=0.5)
    how: dict[str, Any] = {"sampling": Sampling(seed=seed), "drafter": DOUBTFUL} | HOW
    wanted = fr.generate(target, target.prompt(), **how)
    whole = byte_tokenizer().decode(wanted.tokens, skip_special_tokens=True)
    assert wanted.text == whole.rstrip("�")
    pieces = list(fr.stream(target, target.prompt(), **how))
    assert "".join(piece.text for piece in pieces) == wanted.text


def test_a_character_that_never_ends() -> None:
    """The limit falls between its bytes: nothing of it is shown."""
    first = next(i for i, token in enumerate(RECITER.script) if num_split([token]))
    how = {**HOW, "max_new_tokens": first}
    pieces = list(fr.stream(RECITER, RECITER.prompt(), drafter=None, sampling=Sampling(), **how))
    text = "".join(piece.text for piece in pieces)
    assert (
        text
        == fr.generate(RECITER, RECITER.prompt(), drafter=None, sampling=Sampling(), **how).text
    )
    assert all("�" not in piece.text for piece in pieces)


@pytest.mark.parametrize("stop", ["stop 🎉", "naïve c", "\n\nUser:", ["answers 世界!", "好! 👩‍👩"]])
def test_stop_strings_never_leak_a_prefix(stop: Any) -> None:
    """Not one character of the stop string is shown, however its tokens fall into rounds."""
    strings = [stop] if isinstance(stop, str) else stop
    for drafter, draft_length in ((None, 0), (DOUBTFUL, 2), (Model(RECITER), 5), (NGram(), 7)):
        how = {"drafter": drafter, "draft_length": draft_length, "stop": stop} | HOW
        how["sampling"] = Sampling(seed=1)
        wanted = fr.generate(RECITER, RECITER.prompt(), **how)
        assert wanted.finish_reason == "stop_string"
        shown = ""
        for piece in fr.stream(RECITER, RECITER.prompt(), **how):
            shown += piece.text
            assert wanted.text.startswith(shown)
        assert shown == wanted.text
        assert not any(string in shown for string in strings)


def test_text_that_only_began_like_a_stop_string_is_shown_after_all() -> None:
    how = {"stop": ["dog?", "café!", "hello you"], "sampling": Sampling()} | HOW
    pieces = [piece.text for piece in fr.stream(RECITER, RECITER.prompt(), drafter=None, **how)]
    assert "".join(pieces) == RECITER.tokenizer.decode(RECITER.script[1:-1])
    held = pieces.index(next(piece for piece in pieces if "dog" in piece))
    assert pieces[held] != " dog", "it had to wait for the next token"


def test_parts_carry_the_fate_of_their_token() -> None:
    """Text is attributed to the token that completed it, and nothing is attributed twice."""
    how = {"drafter": DOUBTFUL, "draft_length": 4, "sampling": Sampling(seed=1)} | HOW
    parts = [part for p in fr.stream(RECITER, RECITER.prompt(), **how) for part in p.parts]
    wanted = fr.generate(RECITER, RECITER.prompt(), **how)
    ends, decode = [], byte_tokenizer().decode
    for count in range(1, len(wanted.tokens)):
        text = decode(wanted.tokens[:count])
        if not text.endswith("�"):
            ends.append((text, wanted.fates[count - 1]))
    shown, found = "", []
    for text, fate in parts:
        shown += text
        found.append((shown, fate))
    assert found == ends
    assert {fate for _, fate in parts} == set(Fate) - {Fate.GIVEN}


def test_pieces_of_several_prompts_and_samples() -> None:
    target, drafter = tiny_pair()
    prompts = [[5, 9, 33], [8, 1], [60, 2, 2, 4]]
    how: dict[str, Any] = {
        "drafter": drafter, "sampling": Sampling(seed=5, n=2), "max_new_tokens": [6, 9, 3],
    }  # fmt: skip
    wanted = fr.generate(target, prompts, **how)
    for batch_size in (1, 4, 8):
        tokens: dict[tuple[int, int], list[int]] = {}
        ended: list[tuple[int, int]] = []
        for piece in fr.stream(target, prompts, batch_size=batch_size, **how):
            key = piece.index, piece.sample
            assert key not in ended, "nothing follows the last piece"
            tokens.setdefault(key, []).extend(piece.tokens)
            ended += [key] if piece.finish_reason is not None else []
        assert len(ended) == 6
        assert tokens == {
            (i, s): answer.tokens
            for i, group in enumerate(wanted)
            for s, answer in enumerate(group)
        }


def test_results_of_a_stream() -> None:
    how = {"drafter": DOUBTFUL, "sampling": Sampling(seed=1)} | HOW
    stream = fr.stream(RECITER, RECITER.prompt(), **how)
    for _ in stream:
        pass
    wanted = fr.generate(RECITER, RECITER.prompt(), **how)
    assert stream.results().text == wanted.text
    assert stream.results().finish_reason == "stop"


def test_leaving_early_cancels() -> None:
    """Rows are given back, and what was there so far stays."""
    released: list[int] = []

    class Watched(TableModel):
        def release(self, state: Any, row: int) -> None:
            released.append(row)
            super().release(state, row)

    random = TableModel.random(vocab_size=6, order=2, seed=1)
    target = Watched(6, 2, random.table)
    prompts = [[1], [2], [3]]
    stream = fr.stream(target, prompts, drafter=None, sampling=Sampling(seed=1), batch_size=2)
    seen = [next(stream) for _ in range(5)]
    stream.close()
    assert sorted(released) == [0, 1]
    assert list(stream) == []
    found = stream.results()
    assert [answer.finish_reason for answer in found] == ["cancelled"] * 3
    for index, answer in enumerate(found):
        known = [t for piece in seen if piece.index == index for t in piece.tokens]
        assert answer.tokens[: len(known)] == known
    assert found[2].tokens == []
    for _ in fr.stream(target, [1], drafter=None, sampling=Sampling(seed=1)):
        break
    assert len(released) == 3, "a loop that is left drops its stream"


def test_refusals_come_before_the_first_piece() -> None:
    with pytest.raises(fr.InputError, match="prompt is empty"):
        fr.stream(RECITER, "", drafter=None)


def test_pieces_carry_logprobs_where_they_are_asked_for() -> None:
    table = TableModel.random(vocab_size=7, order=2, seed=0)
    stream = fr.stream(table, [[1], [2]], max_new_tokens=6, logprobs=1, drafter=NGram())
    pieces = list(stream)
    for index, out in enumerate(stream.results()):
        told = [one for piece in pieces if piece.index == index for one in piece.logprobs or ()]
        assert told == out.logprobs
    assert {piece.logprobs for piece in fr.stream(table, [1], drafter=None, max_new_tokens=3)} == {
        None
    }
