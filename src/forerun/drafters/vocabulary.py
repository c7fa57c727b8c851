"""Checks that two models mean the same by a token id, before the first token."""

from __future__ import annotations

from typing import Any

from forerun.base.errors import InputError, explain
from forerun.models.base import LanguageModel


def check_same_vocabulary(target: LanguageModel, draft: LanguageModel) -> None:
    """Refuse a drafter whose ids mean something else; padded vocabularies are fine.

    With tokenizers on both sides every shared id must stand for the same token.  Without them
    only the sizes can be compared, and a mere padding of up to 1% is let pass.
    """
    target_tokenizer = getattr(target, "tokenizer", None)
    draft_tokenizer = getattr(draft, "tokenizer", None)
    if target_tokenizer is not None and draft_tokenizer is not None:
        clash = first_clash(target_tokenizer.get_vocab(), draft_tokenizer.get_vocab())
        if clash is None:
            return
        wrong = f"The tokenizers of {target.name} and {draft.name} differ."
        cure = (
            "Use a drafter of the same family, or forerun.drafters.ThroughText(model) to draft "
            "through text."
        )
        raise InputError(explain(wrong, clash, cure))
    small, large = sorted((target.vocab_size, draft.vocab_size))
    if large > small * 1.01:
        received = f"{target.vocab_size} for {target.name} and {draft.vocab_size} for {draft.name}"
        cure = "Use models that share a tokenizer, or wrap both with theirs so it can be checked."
        raise InputError(explain("The vocabulary sizes differ.", received, cure))


def first_clash(target: dict[str, int], draft: dict[str, int]) -> str | None:
    """How two vocabularies contradict each other, in words; None where they do not."""
    moved = [token for token, index in target.items() if draft.get(token, index) != index]
    if moved:
        token = min(moved, key=lambda name: target[name])
        return (
            f"{len(moved)} tokens with different ids, for example "
            f"{token!r}: {target[token]} and {draft[token]}"
        )
    names: dict[int, Any] = {index: token for token, index in target.items()}
    renamed = [i for token, i in draft.items() if token not in target and i in names]
    if renamed:
        index = min(renamed)
        other = next(token for token, i in draft.items() if i == index)
        return (
            f"{len(renamed)} ids with different tokens, for example {index}: "
            f"{names[index]!r} and {other!r}"
        )
    return None
