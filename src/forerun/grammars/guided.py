"""JSON schemas, regular expressions and Lark grammars, read by llguidance.

Preparing a tokenizer takes about a second and compiling a grammar milliseconds, so both are kept:
per tokenizer, and per grammar the last `NUM_COMPILED` of each tokenizer.  A request's matcher is a
copy of the compiled one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from forerun.base.errors import InputError, MissingExtraError, explain
from forerun.grammars.base import NOTHING_ALLOWED, Mask, Words, unpacked

NUM_COMPILED = 64
WHITE_SPACE = r"[ \t\r\n]{0,40}"
"""The white space that may stand between two parts of JSON: room for a line break and 19 levels of
indentation."""


@dataclass(frozen=True)
class Guided:
    """A grammar that llguidance has checked.  Make one with `json_schema`, `regex` or `lark`."""

    kind: str  # its name in messages
    text: str  # the grammar in llguidance's own format

    def matcher(self, tokenizer: Any, vocab_size: int, endings: Sequence[int]) -> GuidedMatcher:
        """A matcher at the beginning of an output; see `Grammar.matcher`."""
        if tokenizer is None:
            cure = "Wrap the model with its tokenizer: forerun.wrap(model, tokenizer)."
            raise InputError(explain(f"A {self.kind} needs a tokenizer.", "a model without", cure))
        if not endings:
            wrong = f"A {self.kind} needs a token that ends the text."
            cure = "Pass stop_tokens, or give the tokenizer an eos_token."
            raise InputError(explain(wrong, "a model that has none", cure))
        vocabulary = _vocabulary(tokenizer, vocab_size, tuple(endings))
        return GuidedMatcher(vocabulary.compiled(self).deep_copy(), vocab_size, tuple(endings))


def json_schema(
    schema: Mapping[str, Any] | bool | str, *, separators: tuple[str, str] | None = None
) -> Guided:
    """The grammar of JSON that a schema describes; the schema is a dict, or JSON text.

    separators: the texts after an item and after a key, as in `json.dumps`, with no other white
    space; None allows up to 40 characters of it at a time, so that no answer is nothing else.
    Fixed separators force more tokens, which makes speculation faster.
    """
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except json.JSONDecodeError as error:
            raise _refused("JSON schema", str(error), "a text that is no JSON") from error
    if not isinstance(schema, Mapping | bool):
        cure = "Pass a dict, or the JSON text of one."
        received = f"the {type(schema).__name__} {schema!r:.80}"
        raise InputError(explain("A JSON schema has a wrong type.", received, cure))
    options: dict[str, Any] = {"whitespace_pattern": WHITE_SPACE}
    if separators is not None:
        options = dict(zip(("item_separator", "key_separator"), separators, strict=True))
        options["whitespace_flexible"] = False
    try:
        text = json.dumps(schema)
    except (TypeError, ValueError) as error:
        raise _refused("JSON schema", str(error), f"{schema!r:.80}") from error
    try:
        compiled = _llguidance().LLMatcher.grammar_from_json_schema(text, overrides=options)
    except ValueError as error:  # nested too deeply
        raise _refused("JSON schema", str(error), f"{text:.80}") from error
    return _checked("JSON schema", compiled, text)


def json_object() -> Guided:
    """The grammar of any JSON object."""
    return json_schema({"type": "object"})


def regex(pattern: str) -> Guided:
    """The grammar of texts that a regular expression matches as a whole, in the syntax of Rust's
    `regex`."""
    _check_text("regular expression", pattern)
    compiled = _llguidance().LLMatcher.grammar_from_regex(pattern)
    return _checked("regular expression", compiled, pattern)


def lark(grammar: str) -> Guided:
    """A context-free grammar in llguidance's variant of the Lark syntax."""
    _check_text("Lark grammar", grammar)
    compiled = _llguidance().LLMatcher.grammar_from_lark(grammar)
    return _checked("Lark grammar", compiled, grammar)


class GuidedMatcher:
    """A matcher of llguidance that also knows whether the text has ended.

    Tokens that end the text are not passed to llguidance, which cannot always take one back.
    """

    def __init__(self, inner: Any, vocab_size: int, endings: tuple[int, ...]) -> None:
        self._inner = inner
        self._vocab_size = vocab_size
        self._endings = endings
        self._num_endings = 0  # ending tokens accepted

    def accept(self, token: int) -> bool:
        if token in self._endings:
            may_end = self._num_endings > 0 or self._is_accepting()
            self._num_endings += may_end
            return may_end
        if self._num_endings:
            return False
        num_taken = self._inner.try_consume_tokens([token])
        self._check()
        return bool(num_taken == 1)

    def rollback(self, count: int) -> None:
        num_endings = min(count, self._num_endings)
        self._num_endings -= num_endings
        if count > num_endings:
            self._inner.rollback(count - num_endings)
            self._check()

    def mask(self) -> Mask:
        """Booleans (V,); columns past the tokenizer's last token are never allowed."""
        return unpacked(self.words(), self._vocab_size)

    def words(self) -> Words:
        """The mask as bits."""
        size, has_ended = self._vocab_size, self._num_endings > 0
        words = np.zeros(-(-size // 32), dtype=np.int32)
        if not has_ended:
            found = np.frombuffer(self._inner.compute_bitmask(), dtype="<i4")
            self._check()
            words[:] = found[: len(words)]
            if size % 32:
                words[-1] &= (1 << size % 32) - 1
        may_end = has_ended or self._is_accepting()  # and nowhere as part of the text
        for token in self._endings:
            bit = np.int32(np.uint32(1 << token % 32).view(np.int32))
            words[token // 32] = words[token // 32] | bit if may_end else words[token // 32] & ~bit
        return words

    def forced(self) -> list[int]:
        if self._num_endings:
            return []
        tokens = self._inner.compute_ff_tokens()
        self._check()
        return list(takewhile(self._vocab_size.__gt__, map(int, tokens)))

    def _is_accepting(self) -> bool:
        return bool(self._inner.is_accepting())

    def _check(self) -> None:
        """Raise ValueError if the matcher has failed; it would go on as if the text had ended."""
        if self._inner.is_error():
            reason = self._inner.get_error().partition("\n")[0]
            if reason.startswith("NoExtension"):
                raise ValueError(NOTHING_ALLOWED)
            raise ValueError(f"the grammar failed: {reason}")


class _Vocabulary:
    """A tokenizer in llguidance's form, and the grammars that were compiled for it."""

    def __init__(self, tokenizer: Any, vocab_size: int, endings: tuple[int, ...]) -> None:
        size = max(vocab_size, len(tokenizer))
        try:
            made = _llguidance().LLTokenizer
            self._tokens = made(_words(tokenizer), n_vocab=size, eos_token=list(endings))
        except ValueError as error:
            wrong = f"llguidance cannot read this tokenizer: {error}."
            cure = "Use a fast tokenizer of transformers."
            raise InputError(explain(wrong, type(tokenizer).__name__, cure)) from error
        self.compiled = lru_cache(NUM_COMPILED)(self._compile)

    def _compile(self, grammar: Guided) -> Any:
        library = _llguidance()
        limits = library.LLParserLimits(verbose_errors=False)
        made = library.LLMatcher(self._tokens, grammar.text, log_level=0, limits=limits)
        if made.is_error():
            raise _refused(grammar.kind, made.get_error(), f"{grammar.text:.80}")
        return made


def _words(tokenizer: Any) -> str:
    """A tokenizer as llguidance reads it.  Its own `from_tokenizer` does the same, and imports
    transformers, which takes seconds."""
    try:
        backend = copy(tokenizer.backend_tokenizer)
        backend.no_padding()
        backend.no_truncation()
        return str(backend.to_str())
    except AttributeError as error:
        raise ValueError("Only fast tokenizers are supported") from error


_vocabularies: WeakKeyDictionary[Any, dict[Any, _Vocabulary]] = WeakKeyDictionary()


def _vocabulary(tokenizer: Any, vocab_size: int, endings: tuple[int, ...]) -> _Vocabulary:
    known = _vocabularies.setdefault(tokenizer, {})
    key = len(tokenizer), vocab_size, endings
    if key not in known:
        known[key] = _Vocabulary(tokenizer, vocab_size, endings)
    return known[key]


def _checked(kind: str, text: str, source: str) -> Guided:
    """A grammar that can be compiled; InputError with llguidance's message if it cannot."""
    is_error, messages = _llguidance().LLMatcher.validate_grammar_with_warnings(text)
    if is_error:
        raise _refused(kind, messages[0], f"{source!r:.80}")
    return Guided(kind, text)


def _refused(kind: str, message: str, received: str) -> InputError:
    wrong = f"The {kind} cannot be compiled: {message.strip()}\n"
    return InputError(explain(wrong, received, "Correct it there."))


def _check_text(kind: str, value: object) -> None:
    if not isinstance(value, str):
        received = f"the {type(value).__name__} {value!r:.80}"
        raise InputError(explain(f"A {kind} has a wrong type.", received, "Pass a text."))


def _llguidance() -> Any:
    try:
        import llguidance
    except ModuleNotFoundError as error:
        if error.name != "llguidance":
            raise
        cure = 'Install it with: pip install "forerun[grammar]"'
        received = "an environment without it"
        raise MissingExtraError(explain("Grammars need llguidance.", received, cure)) from error
    return llguidance
