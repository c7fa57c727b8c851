"""Do two models mean the same thing by a token id?  Found out before the first token."""

from __future__ import annotations

from typing import Any

from forerun.errors import InputError, explain
from forerun.models.base import LanguageModel


def check_same_vocabulary(target: LanguageModel, draft: LanguageModel) -> None:
    """Refuse a drafter whose ids mean something else; padded vocabularies are fine.

    With tokenizers on both sides every shared id must stand for the same token.  Without them
    only the sizes can be compared, and a mere padding of up to 1% is let pass.
    """
    ours, theirs = getattr(target, "tokenizer", None), getattr(draft, "tokenizer", None)
    if ours is not None and theirs is not None:
        clash = first_clash(ours.get_vocab(), theirs.get_vocab())
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


def first_clash(ours: dict[str, int], theirs: dict[str, int]) -> str | None:
    """How two vocabularies contradict each other, in words; None where they do not."""
    moved = [token for token, index in ours.items() if theirs.get(token, index) != index]
    if moved:
        token = min(moved, key=lambda name: ours[name])
        return (
            f"{len(moved)} tokens with different ids, for example "
            f"{token!r}: {ours[token]} and {theirs[token]}"
        )
    names: dict[int, Any] = {index: token for token, index in ours.items()}
    renamed = [i for token, i in theirs.items() if token not in ours and i in names]
    if renamed:
        index = min(renamed)
        other = next(token for token, i in theirs.items() if i == index)
        return (
            f"{len(renamed)} ids with different tokens, for example {index}: "
            f"{names[index]!r} and {other!r}"
        )
    return None
