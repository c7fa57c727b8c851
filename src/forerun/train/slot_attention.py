"""Attention of rows that each continue a text of their own by one token."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from forerun.models.forward import without_cudnn_attention

ATTENTION = "forerun_slots"
BLOCK = 64  # slots that the kernel reads at a time


def slot_attention(
    module: Any,
    query: Tensor,  # (R, H, N, d)
    key: Tensor,  # (R, KV, S, d)
    value: Tensor,
    attention_mask: Tensor,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention that reads shared heads once instead of copying them for each query head."""
    window: int = kwargs.get("sliding_window") or key.shape[2]  # told besides the mask
    is_windowed = window < key.shape[2]
    if query.shape[2] > 1 or key.shape[2] == 1:
        mask = _window_mask(key.shape[2], window, query.device) if is_windowed else None
        prompt_output = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, mask, is_causal=mask is None, scale=scaling, enable_gqa=True
        )
        return prompt_output.transpose(1, 2).contiguous(), None
    positions = kwargs.get("position_ids")  # (R, 1), from models that hand them down
    if positions is not None and not is_windowed and _has_kernel(query):
        return by_kernel(query, key, value, positions, scaling), None
    grouped = query.reshape(query.shape[0], key.shape[1], -1, query.shape[3])  # one token per row
    scores = (grouped @ key.transpose(2, 3)).float() * scaling + attention_mask
    attended = scores.softmax(-1).to(value.dtype) @ value
    return attended.reshape(query.shape[0], 1, query.shape[1], query.shape[3]), None


def _window_mask(length: int, window: int, device: Any) -> Tensor:
    """The last `window` keys that each token sees, its own included, (length, length)."""
    at = torch.arange(length, device=device)
    return (at <= at[:, None]) & (at > at[:, None] - window)


def by_kernel(
    query: Tensor,  # (R, H, 1, d)
    key: Tensor,  # (R, KV, S, d)
    value: Tensor,
    positions: Tensor,  # (R, 1)
    scaling: float,
) -> Tensor:
    """The same (R, 1, H, d), reading only the slots up to each row's position."""
    import triton

    from forerun.gpu.kernels.attention import attend

    num_rows, num_heads, _, size = query.shape
    _, num_shared, num_slots, _ = key.shape
    group = triton.next_power_of_2(num_heads // num_shared)
    output = torch.empty((num_rows, 1, num_heads, size), dtype=query.dtype, device=query.device)
    rows, segments, floats, integers = _constants(num_rows, query.device)
    attend[(num_shared, 1, num_rows)](
        query.reshape(num_rows, -1), key, value, output, floats, floats, integers, rows,
        positions.reshape(-1), integers, integers, segments, num_slots, scaling, 0,
        H=num_heads, KV=num_shared, G=num_heads // num_shared, GP=group, HD=size,
        HP=max(16, triton.next_power_of_2(size)), MQ=max(1, 16 // group),
        CHUNK=-(-num_slots // BLOCK) * BLOCK, BLOCK=BLOCK, TREE=False, PDL=False,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    return output


@lru_cache(maxsize=4)
def _constants(num_rows: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Row numbers, segments of one token each, and memory for what one chunk does not need."""
    rows = torch.arange(num_rows, dtype=torch.int32, device=device)
    segments = torch.stack((rows, torch.ones_like(rows)), 1).contiguous()
    return rows, segments, torch.zeros(1, device=device), rows.new_zeros(1)


@lru_cache(maxsize=1)
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _has_kernel(query: Tensor) -> bool:
    return query.is_cuda and query.dtype in (torch.bfloat16, torch.float16) and _has_triton()


AttentionInterface.register(ATTENTION, slot_attention)


@contextmanager
def attending(model: Any) -> Iterator[None]:
    """Switch a model to `slot_attention` within the context."""
    config = model.config.get_text_config(decoder=True)
    before = config._attn_implementation
    config._attn_implementation = ATTENTION
    try:
        with torch.inference_mode(), without_cudnn_attention():
            yield
    finally:
        config._attn_implementation = before
