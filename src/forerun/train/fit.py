"""Checks that a drafter can be trained for a target, before anything is collected from it."""

from __future__ import annotations

from typing import Any

import torch

from forerun.drafters.heads.design import Design
from forerun.errors import UnsupportedError, explain
from forerun.models.attention import layer_kinds
from forerun.train.sampler import RowTask, Slots

CURE = "Use a model like Llama, Mistral, Qwen 2 or 3, Gemma 3, GPT-2 or GPT-NeoX."
TEXTS = ((1, 2, 3), (4,))  # token ids
NUM_NEW = 3  # tokens
TOLERANCE = 1e-2  # share of the spread of the logits by which a chosen token may miss the best


def check_trainable(model: Any) -> None:
    """Requires attention in every layer, full or in a sliding window, logits that are linear in
    the last state, and answers of the sampler that are the model's own."""
    if layer_kinds(model.config) is None:
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
        is_sampled = _samples_like_itself(model)
    except Exception as error:  # of whatever in the model is unlike the others
        if "memory" in str(error) or isinstance(error, torch.OutOfMemoryError):
            raise
        wrong = f"This model cannot be sampled from in training ({error})."
        raise UnsupportedError(explain(wrong, type(model).__name__, CURE)) from error
    if not is_sampled:
        _refuse(model, "This model cannot be sampled from in training: its tokens come out wrong.")


def _samples_like_itself(model: Any) -> bool:
    """Whether greedy answers to two texts of different length are what a fresh pass prefers."""
    context = max(map(len, TEXTS)) + NUM_NEW
    slots = Slots(model, len(TEXTS), context, [], seed=0)
    tasks = [RowTask(row, text, 0.0, len(text) + NUM_NEW) for row, text in enumerate(TEXTS)]
    slots.put(tasks, fresh=True)
    slots.advance(context)
    for row, text in slots.done().items():
        with torch.no_grad():
            ids = torch.tensor([text], device=model.device)
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()  # (N, V)
        best, chosen = logits.amax(-1), logits.gather(1, ids[0, 1:, None])[:, 0]
        missed = (best - chosen)[len(TEXTS[row]) - 1 :]
        if not bool((missed <= TOLERANCE * logits.std()).all()):
            return False
    return True


def _refuse(model: Any, wrong: str) -> None:
    raise UnsupportedError(explain(wrong, type(model).__name__, CURE))
