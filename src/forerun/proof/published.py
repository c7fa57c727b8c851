"""Verifiers with the signature of a published exercise, called as the exercise says.

Five write-ups are recognised by the names of their parameters (`forerun.classic` has them all).
Three of them verify one draft, so they become a `Verifier`; two are whole loops over models,
and become rounds that bring drafts of their own.
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
"""The one id before the text, for loops that need a prompt."""


def as_verifier(function: Callable[..., Any]) -> tuple[Verifier, str]:
    """The function with the usual arguments, and a description of how it is called; a function that
    is no exercise is returned as it is.

    Parameters annotated as tensors are given tensors; without a fourth one no `rng` is given, and
    the code draws from a global generator.
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
    """A loop over two models, if that is the subject's signature."""
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
    """Rounds that draw their own drafts: extend(target, draft, N, K) -> N tokens or more."""

    extend: Callable[[Model, Model, int, int], Any]

    def drafted(self, case: Case, prefix: Prefix, shape: Shape, rng: Any) -> Drafted:
        """The number of tokens to draft; the loop itself draws them."""
        return (shape,)

    def emitted(self, case: Case, prefix: Prefix, drafted: Drafted, rng: Any) -> Prefix:
        """The tokens of one call, which may take several rounds of the loop's own."""

        def after(model: Model) -> Model:
            """A model that goes on after the prefix."""
            return lambda path: model(prefix + path)

        missing = case.length - len(prefix)
        count = max(int(drafted[0]), 1)
        text = self.extend(after(case.target), after(case.draft), min(missing, count + 1), count)
        if not len(text):
            raise InvalidEmission("emitted nothing")
        return checked(text, case.vocab_size)


def _parameters(function: Any) -> dict[str, Parameter]:
    """The parameters by name; empty for a builtin that does not tell them."""
    try:
        return dict(signature(function).parameters)
    except (ValueError, TypeError):  # a builtin that does not say
        return {}


def _name(function: Any) -> str:
    """The name of the code, for a certificate."""
    return str(getattr(function, "__name__", "the function"))


def _with_lists(function: Callable[..., Any]) -> Verifier:
    """A verifier for functions that take lists of rows and the vocabulary's size, and draw from
    NumPy's global generator."""

    def verify(tokens: Any, draft: Any, target: Any, rng: Any) -> Sequence[int]:
        """The exercise's function, called with lists."""
        answer: Sequence[int] = function(tokens.tolist(), list(draft), list(target), len(target[0]))
        return answer

    return verify


def _without_bonus(function: Callable[..., Any]) -> Verifier:
    """A verifier for functions that take tensors with K rows each; nothing drafted means nothing to
    verify, and no bonus."""

    def verify(tokens: Any, draft: Any, target: Any, rng: Any) -> Sequence[int]:
        """The exercise's function, called with tensors."""
        if not len(tokens):
            return [int(rng.choice(len(target[0]), p=target[0]))]
        import torch

        rows = torch.tensor(target[:-1]), torch.tensor(draft)
        answer: Sequence[int] = function(*rows, torch.tensor(tokens))
        return answer

    return verify


def _with_coins(function: Callable[..., Any]) -> Verifier:
    """A verifier for functions whose caller tosses the coins, and whose answer has named parts."""

    def verify(tokens: Any, draft: Any, target: Any, rng: Any) -> Sequence[int]:
        """The exercise's function, called with coins that were tossed here."""
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
        """The function, called with tensors of the same numbers."""
        import torch

        answer: Sequence[int] = function(*map(torch.tensor, (tokens, draft, target)), rng, *tree)
        return answer

    return verify


def _extended(function: Callable[..., Any]) -> Callable[[Model, Model, int, int], Any]:
    """The exercise's loop over models that turn ids (L,) into rows (L, V)."""

    def extend(target: Model, draft: Model, count: int, length: int) -> Any:
        """A call of the exercise's loop, without the prompt that it returns."""

        def rows_of(model: Model) -> Callable[[Any], Any]:
            """A model as the exercise calls it."""
            return lambda ids: np.array([model(_after(ids, i)) for i in range(len(ids))])

        prompt = np.array([PROMPT])
        return function(prompt, rows_of(draft), rows_of(target), count, length)[1:]

    return extend


def _decoded(subject: Callable[..., Any]) -> Callable[[Model, Model, int, int], Any]:
    """The exercise's class over models that turn ids (1, L) into an object with logits (1, L,
    V)."""

    def extend(target: Model, draft: Model, count: int, length: int) -> Any:
        """A call of the exercise's class, without the prompt that it returns."""
        import torch

        def logits_of(model: Model) -> Callable[..., Any]:
            """A model as the exercise calls it."""

            def call(input_ids: Any, **how: Any) -> Any:
                """Logits after every token of the text."""
                ids = input_ids[0].tolist()
                rows = np.array([model(_after(ids, i)) for i in range(len(ids))])
                return SimpleNamespace(logits=torch.log(torch.from_numpy(rows))[None])

            return call

        decoder = subject(logits_of(target), logits_of(draft), length)
        longest = count + 1  # some count the prompt
        return decoder.decode(torch.tensor([[PROMPT]]), longest)[0, 1:].tolist()

    return extend


def _after(ids: Any, last: int) -> Prefix:
    """The tokens up to a place, without the prompt."""
    return tuple(int(token) for token in ids[1 : last + 1])


_EXERCISES: dict[tuple[str, ...], Callable[[Callable[..., Any]], Verifier]] = {
    ("draft_tokens", "draft_probs", "target_probs", "vocab_size"): _with_lists,
    ("target_probs", "draft_probs", "draft_tokens"): _without_bonus,
    ("draft_probs", "target_probs", "draft_tokens", "random_coins"): _with_coins,
}
