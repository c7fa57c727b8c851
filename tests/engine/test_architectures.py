"""Greedy text is transformers' own, token for token, whatever the architecture and the draft."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from architectures import ATTENTION, RECURRENT
from drafting import noisy_copy
from tiny_models import Architecture
from transformers import NoRepeatNGramLogitsProcessor

import forerun as fr

NUM_NEW = 16
PROMPTS = [[(7 * i * i + 3 * row + 1) % 61 for i in range(n)] for row, n in enumerate((3, 9, 1, 6))]
# Random weights under a tied head repeat their last token for ever, and any drafter is right.
UNTIED = {"tie_word_embeddings": False}
NOISE = {"bloom": 0.15, "mamba": 0.3, "falcon_mamba": 0.3, "gptj": 0.2}
DEFAULT = {
    "llama", "gpt2", "gemma2", "gemma3_text", "mixtral", "bloom", "mamba2", "lfm2",
}  # fmt: skip
"""One of each way to keep rows and to attend; `tests/models` scores the rows of all."""


def chosen(architecture: Architecture) -> Any:
    is_plain = architecture.attention is None and "alibi" not in architecture.options
    is_default = architecture.kind in DEFAULT and is_plain
    marks = () if is_default else (pytest.mark.slow,)
    return pytest.param(architecture, marks=marks, id=str(architecture))


@torch.inference_mode()
def transformers_greedy(model: Any, prompt: list[int], **options: Any) -> list[int]:
    """From a copy: recurrent_gemma's state outlives a call and spoils the next."""
    ids = torch.tensor([prompt])
    found = copy.deepcopy(model).generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=NUM_NEW,
        **options,
    )
    return found[0, len(prompt) :].tolist()


@pytest.mark.parametrize("architecture", [chosen(each) for each in (*ATTENTION, *RECURRENT)])
def test_greedy_text_is_that_of_transformers(architecture: Architecture) -> None:
    """Batch 1 and a ragged batch of 4, in float64 where the architecture can."""
    options = {**architecture.options, **UNTIED}
    model = replace(architecture, options=options).build()
    wanted = [transformers_greedy(model, prompt) for prompt in PROMPTS]
    assert sum(len(set(tokens)) for tokens in wanted) > 8, "texts too dull to tell models apart"
    drafter = fr.drafters.Model(noisy_copy(model, NOISE.get(architecture.kind, 0.1)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what each strategy costs is tested elsewhere
        target = fr.wrap(model)
        target.start(1, 1)
        drafter.model.start(1, 1)
    accepted = refused = 0
    for draft_length, chosen in ((4, [1]), (1, range(4)), (7, range(4))):
        found = fr.generate(
            target,
            [PROMPTS[index] for index in chosen],
            drafter=drafter,
            draft_length=draft_length,
            max_new_tokens=NUM_NEW,
        )
        assert [answer.tokens for answer in found] == [wanted[index] for index in chosen]
        for answer in found:
            assert answer.stats.notes == []
            accepted += answer.stats.accepted
            refused += answer.fates.count(fr.Fate.CORRECTION)
    print(f"{architecture}: {accepted} accepted, {refused} refused")
    assert accepted >= 12, "the drafts must often be right"
    assert refused >= 12, "and often wrong"


OPTIONS: dict[str, tuple[fr.Sampling, dict[str, Any]]] = {
    "nothing": (fr.Sampling(temperature=0.0), {}),
    "repetition_penalty": (
        fr.Sampling(temperature=0.0, repetition_penalty=1.6),
        {"repetition_penalty": 1.6},
    ),
    "bad words": (
        fr.Sampling(temperature=0.0, bad_words=[[9], [2, 46], [11, 11, 11]]),
        {"bad_words_ids": [[9], [2, 46], [11, 11, 11]]},
    ),
    "logit_bias": (
        fr.Sampling(temperature=0.0, logit_bias={3: 2.0, 2: -5.0}),
        {"sequence_bias": [[[3], 2.0], [[2], -5.0]]},
    ),
    "min_tokens": (fr.Sampling(temperature=0.0, min_tokens=6), {"min_new_tokens": 6}),
    "a processor": (
        fr.Sampling(temperature=0.0, processors=[NoRepeatNGramLogitsProcessor(2)]),
        {"no_repeat_ngram_size": 2},
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_greedy_with_options_is_that_of_transformers(name: str) -> None:
    """Also with tokens that end the text, wherever they fall in a draft."""
    model = Architecture("llama", "crop").build()
    model.generation_config.eos_token_id = [42, 58, 19]
    sampling, options = OPTIONS[name]
    wanted = [transformers_greedy(model, prompt, **options) for prompt in PROMPTS]
    if name != "nothing":
        plain = [transformers_greedy(model, prompt) for prompt in PROMPTS]
        assert wanted != plain, "the option must matter"
    assert any(len(tokens) < NUM_NEW for tokens in wanted), "some text must end"
    drafter = fr.drafters.Model(noisy_copy(model, 0.1))
    for draft_length in (0, 1, 6):
        found = fr.generate(
            model, PROMPTS, drafter=drafter, draft_length=draft_length, sampling=sampling,
            max_new_tokens=NUM_NEW,
        )  # fmt: skip
        assert [answer.tokens for answer in found] == wanted
