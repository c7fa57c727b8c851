"""Texts that the target wrote by plain decoding; drafts are compared with them.

Under a lossless rule, speculative decoding writes texts of the same law.  Under `match` with the
same seeds it writes exactly these texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from forerun.base.errors import UnsupportedError, explain
from forerun.drafters.base import Drafter
from forerun.engine.results import Generation
from forerun.generation.generate import generate
from forerun.noise.race import fold
from forerun.sampling.options import Sampling


@dataclass(frozen=True)
class Text:
    """A prompt and the target's answer, as token ids, and the sampling options."""

    prompt: list[int]
    output: list[int]
    sampling: Sampling = field(repr=False)

    @property
    def tokens(self) -> list[int]:
        """The prompt and the answer."""
        return self.prompt + self.output


def write_texts(
    target: Any,
    prompts: Sequence[list[int]],
    *,
    temperature: float,
    max_new_tokens: int,
    seed: int = 0,
    batch_size: int = 8,
    drafter: Drafter | None = None,
    draft_length: int = 0,
    tree: int | None = None,
) -> list[Text]:
    """The target's answers to prompts of token ids; `drafter` is asked for guesses if given."""
    samplings = one_each(Sampling(temperature=temperature, seed=seed), len(prompts))
    generations: list[Generation] = generate(
        target,
        prompts,
        sampling=samplings,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        drafter=drafter,
        draft_length=draft_length,
        tree=tree,
    )
    check_drafted(generations)
    return [
        Text(generation.prompt_tokens, generation.tokens, sampling)
        for generation, sampling in zip(generations, samplings, strict=True)
    ]


def one_each(sampling: Sampling, count: int) -> list[Sampling]:
    """The sampling options, with a different seed for each prompt.

    With one seed all prompts would share their noise, and intervals over prompts would be wrong.
    """
    return [replace(sampling, seed=fold(sampling.seed or 0, index)) for index in range(count)]


def check_drafted(generations: Sequence[Generation]) -> None:
    """Raises if the drafter failed: the engine went on without it, so nothing was drafted."""
    notes = [note for generation in generations for note in generation.stats.notes]
    if notes:
        cure = "Mend the drafter, or leave it out."
        raise UnsupportedError(explain("A drafter failed while it was probed.", notes[0], cure))
