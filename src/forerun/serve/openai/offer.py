"""Describes what a server offers: its model, the names of its drafters and rules, and its
limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from forerun.base.errors import InputError, explain
from forerun.models.base import LanguageModel, generation_defaults


def defaults_of(target: Any) -> dict[str, float]:
    """The sampling defaults in the model's `generation_config`."""
    stated = getattr(target, "generation_defaults", None)
    return generation_defaults(getattr(target, "model", None)) if stated is None else stated


MOST_TOKENS = 32_768
"""The most new tokens of an answer if the context allows more and nothing else is specified."""


@dataclass(frozen=True)
class Limits:
    """The limits of one request."""

    max_tokens: int | None = None  # new tokens of an answer; None: what the context holds
    max_choices: int = 128  # answers of a request, over all its prompts
    max_prompts: int = 64
    max_messages: int = 2_048
    max_stops: int = 16
    max_stop_length: int = 256  # characters
    max_logprobs: int = 20  # likeliest tokens
    max_biases: int = 1_024
    max_tools: int = 128
    max_schema_length: int = 65_536  # characters of a JSON schema
    max_draft_length: int = 64
    max_seconds: float = 86_400.0


@dataclass(frozen=True)
class Offer:
    """The facts about a server that its routes use.

    drafters: allowed names for `speculation.drafter`, the default first; "none" drafts nothing.
    rules: allowed names for `speculation.rule`, the default first.
    other_names: names of the model in addition to its id.
    """

    target: LanguageModel
    name: str  # the model's id
    drafters: tuple[str, ...] = ("none",)
    rules: tuple[str, ...] = ("match",)
    limits: Limits = field(default_factory=Limits)
    other_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if getattr(self.target, "tokenizer", None) is None:
            cure = "Use one that has it; in Python, forerun.wrap(model, tokenizer) adds one."
            raise InputError(explain("Requests need a model with a tokenizer.", self.name, cure))

    @property
    def names(self) -> tuple[str, ...]:
        """The model's id, and its other names."""
        return (self.name, *self.other_names)

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self.target.tokenizer  # type: ignore[attr-defined]

    @property
    def max_context(self) -> int | None:
        """The largest number of tokens in a text; None if there is no limit."""
        return self.target.max_context

    @property
    def max_tokens(self) -> int:
        """The largest number of new tokens that a request may ask for."""
        if self.limits.max_tokens is not None:
            return self.limits.max_tokens
        return min(MOST_TOKENS, self.max_context or MOST_TOKENS)

    @cached_property
    def defaults(self) -> dict[str, float]:
        """The model's own defaults for sampling options; the others have OpenAI's defaults."""
        return defaults_of(self.target)

    @cached_property
    def longest_token(self) -> int:
        """An upper bound on the characters in one token; exact counts are not needed."""
        return max(map(len, self.tokenizer.get_vocab()))
