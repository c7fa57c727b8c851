"""Checks, before anything is collected, that a drafter can be trained for a target.

This includes anything else that would make the run fail hours later.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from forerun.base.errors import InputError, UnsupportedError, explain
from forerun.drafters.heads.design import Design
from forerun.models.attention import layer_kinds
from forerun.train.chat import Chat
from forerun.train.sampler import RowTask, Slots
from forerun.train.shards import Spoken
from forerun.train.stages import SHORTEST

BYTES_PER_WEIGHT = 2 * 4 * 3  # two saved states at a time, each of weights and two moments
BYTES_PER_TOKEN = 16  # of collected answers, prompts included


def check_disk(folder: Path, design: Design, num_answer_tokens: int) -> None:
    """Refuse a disk without enough room for the answers and the state of the training."""
    needed = BYTES_PER_WEIGHT * sum(map(math.prod, design.shapes.values()))
    needed += BYTES_PER_TOKEN * num_answer_tokens
    place = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(place).free
    if free < needed:
        wrong = f"The disk has no room for this run, which takes up to {needed / 1e9:.1f} GB."
        received = f"{free / 1e9:.1f} GB free for {str(folder)!r}"
        raise InputError(explain(wrong, received, "Free some, or name another folder with --out."))


def check_prompts(chat: Chat, prompts: Sequence[str], context: int) -> None:
    """Raise if all prompts are so long that no answer fits."""
    if not any(len(chat.ask(prompt)) + SHORTEST <= context for prompt in prompts):
        wrong = f"No prompt leaves room for an answer in {context} tokens."
        cure = "Shorten the prompts, or add short ones."
        raise InputError(explain(wrong, f"{len(prompts)} prompts", cure))


def likeliest_tokens(
    spoken: Sequence[Spoken],
    size: int,
    vocab_size: int,
    endings: Sequence[int],
    kept: Sequence[int] | NDArray[np.int64] = (),
) -> tuple[NDArray[np.int64], float]:
    """The most frequent answer tokens (Vd,), ascending, and the share of all answer tokens that
    they cover.

    kept: tokens that are always included, however rare.
    """
    said = np.concatenate([text.tokens[text.is_answer] for text in spoken])
    counts = np.bincount(said, minlength=vocab_size)
    ranked = counts.copy()
    ranked[list(endings)] = counts.max() + 1  # always include the ending tokens
    ranked[list(kept)] = counts.max() + 1
    chosen = np.sort(np.argsort(-ranked, kind="stable")[: min(size, vocab_size)])
    return chosen, float(counts[chosen].sum() / counts.sum())


def least_likely_token(spoken: Sequence[Spoken], vocab_size: int) -> int:
    """The token that is rarest in the texts, prompts included, so that a mask is not mistaken for a
    real token."""
    counts = np.bincount(np.concatenate([text.tokens for text in spoken]), minlength=vocab_size)
    return int(counts.argmin())


CURE = "Use a model like Llama, Mistral, Qwen 2 or 3, Gemma 3, GPT-2 or GPT-NeoX."
TEXTS = ((0.3, 0.5, 0.7), (0.4,))
"""Texts to test with: tokens given by their relative places in the vocabulary. Places near the ends
are avoided because special tokens lie there. After several of these, a model may hardly know what
comes next, and 16-bit numbers then decide by their rounding."""
NUM_NEW = 3  # tokens
TOLERANCE = 1e-2  # share of the spread of the logits by which a chosen token may miss the best
ROUNDINGS = 32  # steps of the number format that it may miss by, if these are more


def check_trainable(model: Any) -> None:
    """Refuse a target that cannot be trained for. Every layer must have attention
    (full or in a sliding window), the logits must be linear in the last state, and the sampler's
    answers must be the model's own."""
    if layer_kinds(model) is None:
        _refuse(model, "Drafters are trained for models with attention in every layer.")
    head = model.get_output_embeddings()
    with torch.no_grad():
        tokens = torch.arange(4, device=model.device)[None]
        logits = model(input_ids=tokens, use_cache=False).logits
        states = model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
        alike = head is not None and torch.allclose(head(states), logits, rtol=1e-2, atol=1e-2)
    if not alike:
        _refuse(
            model, "Drafters are trained for models whose logits are a linear map of their states."
        )
    try:
        Design.after(model.config.get_text_config(decoder=True), 1)
        missed = _most_missed(model)
    except Exception as error:  # of whatever in the model is unlike the others
        if "memory" in str(error) or isinstance(error, torch.OutOfMemoryError):
            raise
        wrong = f"This model cannot be sampled from in training ({error})."
        raise UnsupportedError(explain(wrong, type(model).__name__, CURE)) from error
    if not missed <= max(TOLERANCE, ROUNDINGS * torch.finfo(model.dtype).eps):
        wrong = "This model cannot be sampled from in training: its tokens come out wrong, by"
        _refuse(model, f"{wrong} {missed:.2g} of the spread of their logits.")


def _most_missed(model: Any) -> float:
    """Sample greedily and compare with a fresh pass: the largest amount by which a chosen token's
    logit is below the best one, as a share of the spread of the logits."""
    vocab_size = model.config.get_text_config(decoder=True).vocab_size
    texts = [[int(place * vocab_size) for place in text] for text in TEXTS]
    context = max(map(len, texts)) + NUM_NEW
    slots = Slots(model, len(texts), context, [], seed=0)
    tasks = [RowTask(row, text, 0.0, len(text) + NUM_NEW) for row, text in enumerate(texts)]
    slots.put(tasks, fresh=True)
    slots.advance(context)
    missed = []
    for row, text in slots.done().items():
        with torch.no_grad():
            ids = torch.tensor([text], device=model.device)
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()  # (N, V)
        best, chosen = logits.amax(-1), logits.gather(1, ids[0, 1:, None])[:, 0]
        missed.append((best - chosen)[len(texts[row]) - 1 :].max() / logits.std())
    return float(torch.stack(missed).max())


def _refuse(model: Any, wrong: str) -> None:
    raise UnsupportedError(explain(wrong, type(model).__name__, CURE))
