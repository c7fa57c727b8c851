"""The texts that a target's chat template puts around each message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MARKS = ("@first@", "@second@", "@third@")


@dataclass(frozen=True)
class Chat:
    """A tokenizer, and the texts that the model's template puts around messages; they are empty for
    a model without a template."""

    tokenizer: Any
    opening: str  # before the first thing the user says
    to_assistant: str  # between what the user says and the answer
    to_user: str  # between an answer and what the user says next

    @classmethod
    def of(cls, tokenizer: Any) -> Chat:
        """Read the frame off a conversation of marks."""
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
        """frame: with the tokens that the tokenizer puts around a text."""
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
        """The tokens of a first turn, up to where the answer begins.

        Without a template they are those that `generate` makes of the text: some models say
        nothing sensible without their first token.
        """
        return self.encode(self.opening + text + self.to_assistant, frame=not self.has_turns)

    def after_turn(self, text: str, said: list[int]) -> list[int]:
        """The tokens of a text after what a model said, which may have ended its turn already."""
        tokens = self.encode(text)
        return tokens[1:] if said and tokens and tokens[0] == said[-1] else tokens
