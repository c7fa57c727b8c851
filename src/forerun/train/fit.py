"""Checks that a drafter can be trained for a target, before anything is collected from it."""

from __future__ import annotations

from typing import Any

import torch

from forerun.base.errors import UnsupportedError, explain
from forerun.drafters.heads.design import Design
from forerun.models.attention import layer_kinds
from forerun.train.sampler import RowTask, Slots

CURE = "Use a model like Llama, Mistral, Qwen 2 or 3, Gemma 3, GPT-2 or GPT-NeoX."
TEXTS = ((0.3, 0.5, 0.7), (0.4,))
"""Tokens by their place in the vocabulary.  Special tokens are at its ends; after several of them
a model may hardly know what comes next, and 16-bit numbers then decide by their rounding."""
NUM_NEW = 3  # tokens
TOLERANCE = 1e-2  # share of the spread of the logits by which a chosen token may miss the best
ROUNDINGS = 32  # steps of the number format that it may miss by, if these are more


def check_trainable(model: Any) -> None:
    """Requires attention in every layer, full or in a sliding window, logits that are linear in
    the last state, and answers of the sampler that are the model's own."""
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
    """How far greedy answers to two texts of different length are from what a fresh pass prefers,
    as a share of the spread of the logits."""
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
