"""`doctor`: checks whether speculation gives the text of plain decoding, and explains differences.

Every prompt is answered plainly and with a drafter, from the same seed. Each difference is
attributed to a near-tie of float arithmetic, or called a bug (`forerun.doctor`). In 16 bits, some
can be distinguished from a bug only by repeating them in float32.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from forerun import rules
from forerun.base.errors import UnsupportedError, explain, shown_by
from forerun.doctor.diagnosis import Diagnosis, diagnose
from forerun.drafters.base import Drafter
from forerun.engine.answer_options import GREEDY
from forerun.engine.results import Generation
from forerun.generation.generate import generate
from forerun.generation.prompts import encode, prompts_of
from forerun.loading.named import model_of
from forerun.models.base import LanguageModel
from forerun.rules.base import Rule
from forerun.rules.types import DraftLength
from forerun.sampling.options import Sampling
from forerun.trees.tree import Tree

SAMPLES = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "To make bread you need flour, water, salt and yeast. To make bread you need",
)
"""The prompts that are used if a caller gives none."""


@dataclass(frozen=True)
class Finding:
    """The answers to one prompt, with and without a drafter, and the explanation if they differ."""

    plain: Generation
    drafted: Generation
    difference: Diagnosis | None  # None: the same text

    @property
    def is_bug(self) -> bool:
        """Whether float arithmetic does not explain the difference."""
        return self.difference is not None and self.difference.is_bug

    @property
    def is_unclear(self) -> bool:
        """Whether the difference must be repeated in float32 to decide if it is a bug."""
        return self.difference is not None and self.difference.is_unclear

    def __str__(self) -> str:
        """The finding as one line of text."""
        return "identical" if self.difference is None else str(self.difference)


@dataclass(frozen=True, repr=False)
class Checkup:
    """The findings on all prompts; printing it shows them all."""

    findings: tuple[Finding, ...]

    @property
    def num_identical(self) -> int:
        """The number of prompts with two equal answers."""
        return sum(finding.difference is None for finding in self.findings)

    @property
    def num_bugs(self) -> int:
        """The number of differences that float arithmetic does not explain."""
        return sum(finding.is_bug for finding in self.findings)

    @property
    def num_unclear(self) -> int:
        """The number of differences that must be repeated in float32 to decide if they are bugs."""
        return sum(finding.is_unclear for finding in self.findings)

    @property
    def num_near_ties(self) -> int:
        """The number of differences that float arithmetic explains."""
        return len(self.findings) - self.num_identical - self.num_bugs - self.num_unclear

    @property
    def summary(self) -> str:
        """A sentence with the number of findings of each kind."""
        unclear = f", {self.num_unclear} to be repeated in float32" if self.num_unclear else ""
        return (
            f"{self.num_identical} identical, {self.num_near_ties} near-ties, {self.num_bugs} bugs"
            f"{unclear} in {len(self.findings)} prompts."
        )

    def __repr__(self) -> str:
        """The summary in one line."""
        return f"Checkup({self.summary[:-1]})"

    def __str__(self) -> str:
        """All findings, one per line, and the summary."""
        lines = [f"{number:>4}  {finding}" for number, finding in enumerate(self.findings)]
        return "\n".join([*lines, self.summary])


@shown_by('fr.doctor(fr.load("HuggingFaceTB/SmolLM2-135M-Instruct"))')
def doctor(
    target: Any,
    prompts: Any = SAMPLES,
    *,
    drafter: Drafter | str | None = "auto",
    draft_length: DraftLength = 5,
    tree: int | Tree | None = None,
    rule: str | Rule = "match",
    sampling: Sampling = GREEDY,
    max_new_tokens: int = 64,
    batch_size: int = 1,
    repeat_in_float32: bool = False,
) -> Checkup:
    """Answer prompts plainly and with a drafter, and explain every difference.

    target, prompts, drafter, draft_length, tree, sampling: as for `generate`.
    rule: `match`; at temperature 0 also any other lossless rule.
    batch_size: how many copies of the drafted request share each pass.
    repeat_in_float32: for a model in 16 bits, repeat unclear differences with a float32 copy of it,
    which needs twice the model's memory in addition.
    """
    return Checkup(
        tuple(
            examine(
                target, prompts, drafter=drafter, draft_length=draft_length, tree=tree, rule=rule,
                sampling=sampling, max_new_tokens=max_new_tokens, batch_size=batch_size,
                repeat_in_float32=repeat_in_float32,
            )
        )
    )  # fmt: skip


def examine(
    target: Any,
    prompts: Any,
    *,
    rule: str | Rule,
    sampling: Sampling,
    max_new_tokens: int,
    batch_size: int,
    repeat_in_float32: bool = False,
    **drafting: Any,
) -> Iterator[Finding]:
    """Yield the findings of `doctor` one by one."""
    chosen = checked_rule(rule, sampling)
    model, wider = model_of(target), None
    if sampling.seed is None:  # both answers need the same one
        sampling = replace(sampling, seed=secrets.randbits(63))
    for prompt in prompts_of(prompts)[0]:
        tokens = encode(model, prompt)
        shared: dict[str, Any] = {"sampling": sampling, "max_new_tokens": max_new_tokens}
        plain = generate(model, tokens, drafter=None, **shared)
        drafted = generate(
            model, [tokens] * batch_size, rule=chosen, batch_size=batch_size, **drafting, **shared
        )[0]
        outputs = tokens, plain.tokens, drafted.tokens
        difference = diagnose(model, *outputs, sampling=sampling)
        if repeat_in_float32 and difference is not None and difference.is_unclear:
            wider = wider or _in_float32(model)
            again = diagnose(wider, *outputs, sampling=sampling)
            difference = replace(difference, in_float32=again)
        yield Finding(plain, drafted, difference)


def _in_float32(model: LanguageModel) -> LanguageModel:
    """A copy of the model that computes in float32; raises if it cannot be made."""
    made: LanguageModel | None = getattr(model, "in_float32", lambda: None)()
    if made is None:
        wrong = "This model has no float32 copy that runs the same code."
        cure = "Leave out repeat_in_float32, or load it in transformers: lean=False, no quantize."
        raise UnsupportedError(explain(wrong, getattr(model, "pass_name", model.name), cure))
    return made


def checked_rule(name: str | Rule, sampling: Sampling) -> Rule:
    """The rule; refuses rules that do not promise exactly the text of plain decoding."""
    rule = rules.get(name)
    if not rule.lossless or (rule.name != "match" and sampling.temperature > 0):
        wrong = "This rule does not promise the text of plain decoding."
        received = f"{rule.name} at temperature {sampling.temperature:g}"
        cure = "Use match, or a lossless rule at temperature 0; `forerun certify` judges laws."
        raise UnsupportedError(explain(wrong, received, cure))
    return rule
