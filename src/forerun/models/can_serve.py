"""Checks that a transformers model can be served, and up to which text length."""

from __future__ import annotations

from typing import Any

from forerun.base.errors import InputError, UnsupportedError, explain

# Rotary tables that are rebuilt when a text outgrows the original context: past it, the scores of
# a text depend on what shares the pass with it.
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


def refuse_unfit(model: Any) -> None:
    """Refuse, by name, what is not a decoder-only language model ready for inference."""
    kind = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise UnsupportedError(
            explain(
                "Encoder-decoder models are not supported: only decoder-only causal ones are.",
                kind,
                "Load a causal model, for example with AutoModelForCausalLM.",
            )
        )
    if getattr(model, "can_generate", lambda: True)() is False:
        raise UnsupportedError(
            explain(
                "The model has no language-model head, so it returns no logits.",
                kind,
                "Load it with AutoModelForCausalLM.",
            )
        )
    if getattr(model, "training", False):
        raise InputError(
            explain(
                "The model is in training mode: dropout changes its output at every pass.",
                kind,
                "Call model.eval() first.",
            )
        )


def refuse_attention(model: Any) -> None:
    """Refuse an attention implementation that ignores a prepared mask: rows need their own."""
    implementation = model.config.get_text_config(decoder=True)._attn_implementation
    if implementation not in ("sdpa", "eager", None):
        raise UnsupportedError(
            explain(
                "Rows of different length need an attention that takes a prepared mask.",
                f"attn_implementation {implementation!r} in {type(model).__name__}",
                'Call model.set_attn_implementation("sdpa"), or pass strategy="snapshot" to '
                "score rows one by one.",
            )
        )


def max_context(config: Any) -> int | None:
    longest: int | None = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    for table in (rope, *rope.values()):  # one table, or one per layer kind
        if isinstance(table, dict) and table.get("rope_type") in LENGTH_DEPENDENT_ROPE:
            original = getattr(config, "original_max_position_embeddings", None)
            return table.get("original_max_position_embeddings") or original or longest
    return longest
