"""Adapts verifiers that have the signature of a published exercise.

Five exercises are recognised by their parameter names (`forerun.classic` has them all). Three of
them verify one draft and become a `Verifier`; two are complete decoding loops over models and
become rounds that draw their own drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import Parameter, isclass, signature
from types import SimpleNamespace
from typing import Any

import numpy as np

from forerun.proof.cases import Case
from forerun.proof.law import Model, Prefix, Shape
from forerun.proof.rounds import Drafted, InvalidEmission, Verifier, checked

POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
PROMPT = 0
"""The single token id that stands before the text, for loops that need a prompt."""


def as_verifier(function: Callable[..., Any]) -> tuple[Verifier, str]:
    """The function with the usual arguments, and a description of how it is called. A function that
    is not an exercise is returned unchanged.

    Parameters annotated as tensors get tensors. A function without a fourth parameter gets no
    `rng`, and draws from a global generator.
    """
    names = _parameters(function)
    adapt = _EXERCISES.get(tuple(names))
    if adapt is not None:
        return adapt(function), f"{_name(function)}({', '.join(names)}), as in the exercise"
    called, how = function, ""
    if len(names) == 3 and all(kind.kind in POSITIONAL for kind in names.values()):
        called, how = _without_rng(function), f"{_name(function)}({', '.join(names)})"
    if any("Tensor" in str(kind.annotation) for kind in list(names.values())[:3]):
        how = f"{how or _name(function)} with tensors, as its annotations say"
        return _with_tensors(called), how
    return called, how


def as_loop(subject: Any) -> tuple[Loop | None, str]:
    """The subject as a decoding loop over two models, if it has such a signature; else None."""
    if isclass(subject) and hasattr(subject, "decode"):
        names = list(_parameters(subject))
        if names[:3] == ["target_model", "draft_model", "draft_tokens"]:
            how = f"{_name(subject)}(target_model, draft_model, K).decode(input_ids, N)"
            return Loop(_decoded(subject)), f"{how}, as in the exercise"
    if tuple(_parameters(subject)) == ("x", "draft_model", "target_model", "N", "K"):
        how = f"{_name(subject)}(x, draft_model, target_model, N, K), as in the exercise"
        return Loop(_extended(subject)), how
    return None, ""


@dataclass(frozen=True)
class Loop:
    """A decoding loop that draws its own drafts: extend(target, draft, N, K) returns N or more
    tokens."""

    extend: Callable[[Model, Model, int, int], Any]

    def drafted(self, case: Case, prefix: Prefix, shape: Shape, rng: Any) -> Drafted:
        """Return only the number of tokens to draft, because the loop draws them itself."""
        return (shape,)

    def emitted(self, case: Case, prefix: Prefix, drafted: Drafted, rng: Any) -> Prefix:
        """The tokens that one call of the loop emits, perhaps over several rounds of its own."""

        def after(model: Model) -> Model:
            """A model that continues from the prefix."""
            return lambda path: model(prefix + path)

        missing = case.length - len(prefix)
        count = max(int(drafted[0]), 1)
        text = self.extend(after(case.target), after(case.draft), min(missing, count + 1), count)
        if not len(text):
            raise InvalidEmission("emitted nothing")
        return checked(text, case.vocab_size)


def _parameters(function: Any) -> dict[str, Parameter]:
    """The parameters of a function by name; empty for a builtin that does not list them."""
    try:
        return dict(signature(function).parameters)
    except (ValueError, TypeError):  # a builtin that does not say
        return {}


def _name(function: Any) -> str:
    """The name of the function, for a certificate."""
    return str(getattr(function, "__name__", "the function"))


def _with_lists(function: Callable[..., Any]) -> Verifier:
    """A verifier for functions that take lists of rows and the vocabulary's size, and use NumPy's
    global generator."""

    def verify(tokens: Any, draft: Any, target: Any, rng: Any) -> Sequence[int]:
        """Call the exercise's function with lists."""
        answer: Sequence[int] = function(tokens.tolist(), list(draft), list(target), len(target[0]))
        return answer

    return verify


def _without_bonus(function: Callable[..., Any]) -> Verifier:
    """A verifier for functions that take tensors of K rows and give no bonus token. Without a
    draft, the token is sampled plainly."""

    def verify(tokens: Any, draft: Any, target: Any, rng: Any) -> Sequence[int]:
        """Call the exercise's function with tensors."""
        if not len(tokens):
            return [int(rng.choice(len(target[0]), p=target[0]))]
        import torch

        rows = torch.tensor(target[:-1]), torch.tensor(draft)
        answer: Sequence[int] = function(*rows, torch.tensor(tokens))
        return answer

    return verify


def _with_coins(function: Callable[..., Any]) -> Verifier:
    """A verifier for functions that are given their random numbers, and return named parts."""

    def verify(tokens: Any, draft: Any, target: Any, rng: Any) -> Sequence[int]:
        """Call the exercise's function with coins tossed here."""
        coins = list(rng.random(len(tokens)))
        answer = function(list(draft), list(target), tokens.tolist(), coins)
        emitted: Sequence[int] = answer["accepted_tokens"]
        return emitted

    return verify


def _without_rng(function: Callable[..., Any]) -> Verifier:
    """A verifier for functions without `rng`, which draw from a global generator."""

    def verify(tokens: Any, draft: Any, target: Any, rng: Any, *tree: Any) -> Sequence[int]:
        answer: Sequence[int] = function(tokens, draft, target)
        return answer

    return verify


def _with_tensors(function: Callable[..., Any]) -> Verifier:
    """A verifier for functions that take tensors instead of arrays."""

    def verify(tokens: Any, draft: Any, target: Any, rng: Any, *tree: Any) -> Sequence[int]:
        """Call the function with tensors of the same numbers."""
        import torch

        answer: Sequence[int] = function(*map(torch.tensor, (tokens, draft, target)), rng, *tree)
        return answer

    return verify


def _extended(function: Callable[..., Any]) -> Callable[[Model, Model, int, int], Any]:
    """Adapts an exercise's loop whose models turn ids (L,) into rows (L, V)."""

    def extend(target: Model, draft: Model, count: int, length: int) -> Any:
        """Call the loop, and remove the prompt from its result."""

        def rows_of(model: Model) -> Callable[[Any], Any]:
            """A model in the form that the exercise expects."""
            return lambda ids: np.array([model(_after(ids, i)) for i in range(len(ids))])

        prompt = np.array([PROMPT])
        return function(prompt, rows_of(draft), rows_of(target), count, length)[1:]

    return extend


def _decoded(subject: Callable[..., Any]) -> Callable[[Model, Model, int, int], Any]:
    """Adapts an exercise's class whose models turn ids (1, L) into an object with logits
    (1, L, V)."""

    def extend(target: Model, draft: Model, count: int, length: int) -> Any:
        """Run the class, and remove the prompt from its result."""
        import torch

        def logits_of(model: Model) -> Callable[..., Any]:
            """A model in the form that the exercise expects."""

            def call(input_ids: Any, **how: Any) -> Any:
                """The logits after every token of the text."""
                ids = input_ids[0].tolist()
                rows = np.array([model(_after(ids, i)) for i in range(len(ids))])
                return SimpleNamespace(logits=torch.log(torch.from_numpy(rows))[None])

            return call

        decoder = subject(logits_of(target), logits_of(draft), length)
        longest = count + 1  # some count the prompt
        return decoder.decode(torch.tensor([[PROMPT]]), longest)[0, 1:].tolist()

    return extend


def _after(ids: Any, last: int) -> Prefix:
    """The tokens up to index `last`, without the prompt."""
    return tuple(int(token) for token in ids[1 : last + 1])


_EXERCISES: dict[tuple[str, ...], Callable[[Callable[..., Any]], Verifier]] = {
    ("draft_tokens", "draft_probs", "target_probs", "vocab_size"): _with_lists,
    ("target_probs", "draft_probs", "draft_tokens"): _without_bonus,
    ("draft_probs", "target_probs", "draft_tokens", "random_coins"): _with_coins,
}
