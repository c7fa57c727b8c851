"""Transformers with keys and values that are rounded to e4m3: the reference for such a pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tiny import Reference
from transformers import DynamicCache


def rounded(values: Any) -> Any:
    """The nearest e4m3 numbers, at most 448, as float32."""
    return values.clamp(-448, 448).to(torch.float8_e4m3fn).float()


class RoundingCache(DynamicCache):
    """Keeps rounded keys and values, and gives them to attention."""

    def update(self, keys: Any, values: Any, *others: Any, **options: Any) -> Any:
        return super().update(rounded(keys), rounded(values), *others, **options)


class RoundedReference(Reference):
    """The model in float32, whose keys and values alone are rounded."""

    @torch.inference_mode()
    def logits(self, text: Sequence[int]) -> Any:
        ids = torch.tensor([list(text)], device=self.model.device)
        return self.model(input_ids=ids, past_key_values=RoundingCache()).logits[0]
