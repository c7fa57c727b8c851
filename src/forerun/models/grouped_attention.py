"""Fused attention that reads keys shared by several query heads once.

With a mask, transformers copies shared keys and values for every query head before it calls
torch's fused attention.  The query heads of a group can as well stand beside one another as if they
were tokens: the sums are the same, and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

NAME = "forerun_grouped"
USUAL = "sdpa"  # the name in transformers of the attention that this replaces
EXTRAS = ("softcap", "position_bias", "cache", "s_aux")  # arguments that change a result


def attend(
    module: Any,
    query: Any,  # (R, H, N, head size)
    key: Any,  # (R, KV, keys, head size)
    value: Any,
    attention_mask: Any,  # (R, 1, N, keys), additive, or None
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Any, None]:
    """Attention of the query heads of a group together, (R, N, H, head size)."""
    num_rows, num_heads, num_tokens, head_size = query.shape
    num_groups = key.shape[1]
    is_plain = attention_mask is not None and attention_mask.shape[1] == 1
    is_plain = is_plain and all(kwargs.get(name) is None for name in EXTRAS)
    if num_groups == num_heads or not is_plain:
        result: tuple[Any, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return result
    members = num_heads // num_groups
    mask = attention_mask[:, :, None].expand(-1, -1, members, -1, -1).flatten(2, 3)
    grouped = query.reshape(num_rows, num_groups, members * num_tokens, head_size)
    mixed = scaled_dot_product_attention(
        grouped, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling
    )
    mixed = mixed.reshape(num_rows, num_heads, num_tokens, head_size)
    return mixed.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)


@contextmanager
def grouped_attention(model: Any) -> Iterator[None]:
    """Within the context, a model that uses torch's fused attention uses `attend` instead."""
    config = model.config.get_text_config(decoder=True)
    before = config._attn_implementation
    if before == USUAL:
        config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before
