"""The texts that a target's chat template puts around messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MARKS = ("@first@", "@second@", "@third@")


@dataclass(frozen=True)
class Chat:
    """A tokenizer, and the texts that the chat template puts around messages
    (empty without a template)."""

    tokenizer: Any
    opening: str  # before the first thing the user says
    to_assistant: str  # between what the user says and the answer
    to_user: str  # between an answer and what the user says next

    @classmethod
    def of(cls, tokenizer: Any) -> Chat:
        """Find these texts by applying the template to a conversation of markers."""
        if getattr(tokenizer, "chat_template", None) is None:
            return cls(tokenizer, "", "", "")
        roles = ("user", "assistant", "user")
        turns = [{"role": r, "content": m} for r, m in zip(roles, MARKS, strict=True)]
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        opening, rest = text.split(MARKS[0])
        _, rest = rest.split(MARKS[1])
        to_user, to_assistant = rest.split(MARKS[2])
        return cls(tokenizer, opening, to_assistant, to_user)

    @property
    def has_turns(self) -> bool:
        """Whether the model has a chat template."""
        return bool(self.to_assistant)

    def encode(self, text: str, *, frame: bool = False) -> list[int]:
        """The tokens of a text. frame: include the tokens that the tokenizer adds around a whole
        text."""
        fast = getattr(self.tokenizer, "backend_tokenizer", None)  # several times as fast
        if fast is not None:
            return list(fast.encode(text, add_special_tokens=frame).ids)
        return list(self.tokenizer(text, add_special_tokens=frame).input_ids)

    def decode(self, tokens: list[int]) -> str:
        """The text of tokens."""
        fast = getattr(self.tokenizer, "backend_tokenizer", self.tokenizer)
        text: str = fast.decode(tokens, skip_special_tokens=True)
        return text.strip()

    def ask(self, text: str) -> list[int]:
        """The tokens of a first question, up to where the answer begins.

        Without a template they are the same as those of `generate`: some models need their first
        token to answer sensibly.
        """
        return self.encode(self.opening + text + self.to_assistant, frame=not self.has_turns)

    def after_turn(self, text: str, said: list[int]) -> list[int]:
        """The tokens of a text that follows a model's reply; the token that ends a turn is not
        repeated."""
        tokens = self.encode(text)
        return tokens[1:] if said and tokens and tokens[0] == said[-1] else tokens
