"""Which strategy a model gets, what is refused, and that the reasons are named."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from tiny_models import COMMON, VOCAB_SIZE, Architecture, Driver
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from forerun.base.errors import InputError, UnsupportedError
from forerun.models import HuggingFaceModel, LanguageModel


class IgnoresPositions(LlamaForCausalLM):  # type: ignore[misc]
    """An architecture nobody told us about: it trusts its own count of tokens."""

    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        logits_to_keep: Any = 0,
        **kwargs: Any,
    ) -> Any:
        return super().forward(
            input_ids, past_key_values=past_key_values, logits_to_keep=logits_to_keep, **kwargs
        )


class HidesItsCache(LlamaForCausalLM):  # type: ignore[misc]
    """Takes a cache and never returns one; also cannot choose which logits to compute."""

    def forward(self, input_ids: Any = None, past_key_values: Any = None, **kwargs: Any) -> Any:
        return super().forward(input_ids, use_cache=False)


def tiny(cls: type) -> Any:
    torch.manual_seed(0)
    return cls(LlamaConfig(**COMMON)).double().eval()


def test_a_model_is_a_language_model() -> None:
    model = HuggingFaceModel(tiny(LlamaForCausalLM))
    assert isinstance(model, LanguageModel)
    assert (model.name, model.vocab_size) == ("LlamaForCausalLM", VOCAB_SIZE)
    assert model.max_context == COMMON["max_position_embeddings"]


def test_context_ends_where_the_rotary_table_starts_to_change() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    config = {**COMMON, "rope_parameters": rope}
    model = LlamaForCausalLM(LlamaConfig(**config)).eval()
    assert HuggingFaceModel(model).max_context == COMMON["max_position_embeddings"]
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
        "original_max_position_embeddings": 32,
    }
    options = {**COMMON, "rope_parameters": rope, "original_max_position_embeddings": 32}
    config = AutoConfig.for_model("phi3", **options)
    model = AutoModelForCausalLM.from_config(config).eval()
    assert HuggingFaceModel(model).max_context == 32


def test_ragged_rows_are_given_up_where_they_are_wrong() -> None:
    model = tiny(IgnoresPositions)
    language_model = HuggingFaceModel(model)
    with pytest.warns(UserWarning, match="IgnoresPositions cannot share a pass"):
        assert language_model.strategy == "snapshot"
    assert Driver(language_model, model, 3).play(num_rounds=6, seed=3) <= 1e-9
    with pytest.raises(UnsupportedError, match=r"IgnoresPositions with strategy 'crop'"):
        HuggingFaceModel(model, strategy="crop").start(1, 8)


def test_recompute_where_there_is_no_cache() -> None:
    model = tiny(HidesItsCache)
    language_model = HuggingFaceModel(model)
    with pytest.warns(UserWarning, match="HidesItsCache has no cache that reproduces"):
        assert language_model.strategy == "recompute"
    assert Driver(language_model, model, 2).play(num_rounds=4, seed=3) <= 1e-9


def test_the_choice_is_made_once_and_quietly() -> None:
    model = tiny(LlamaForCausalLM)
    language_model = HuggingFaceModel(model)
    calls: list[None] = []
    model.register_forward_hook(lambda *_: calls.append(None))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        language_model.start(1, 8)
        assert 0 < len(calls) <= 8
        calls.clear()
        language_model.start(1, 8)
    assert not calls


def test_token_by_token_is_announced() -> None:
    model = Architecture("mamba", "snapshot", {"state_size": 8, "time_step_rank": 4}).build()
    with pytest.warns(UserWarning, match="MambaForCausalLM continues .* token by token") as told:
        assert HuggingFaceModel(model).strategy == "snapshot"
    assert [warning.filename for warning in told] == [__file__]  # the caller's line, not ours
    asked = HuggingFaceModel(model, strategy="snapshot")  # found out even when asked for by name
    assert Driver(asked, model, 2).play(num_rounds=4, seed=3) <= 1e-4


def test_encoder_decoder_models_are_refused_by_name() -> None:
    config = T5Config(vocab_size=31, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    with pytest.raises(UnsupportedError, match=r"Encoder-decoder.*T5ForConditionalGeneration"):
        HuggingFaceModel(T5ForConditionalGeneration(config).eval())


def test_models_without_a_head_are_refused_by_name() -> None:
    model = AutoModel.from_config(LlamaConfig(**COMMON)).eval()
    with pytest.raises(UnsupportedError, match=r"no language-model head.*LlamaModel"):
        HuggingFaceModel(model)


def test_models_that_look_ahead_are_refused_by_name() -> None:
    model = HuggingFaceModel(Architecture("bert", "").build())
    with pytest.raises(UnsupportedError, match=r"what follows it.*BertLMHeadModel"):
        model.start(1, 8)


def test_attention_without_masks_is_refused_by_name() -> None:
    model = tiny(LlamaForCausalLM)
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(UnsupportedError, match=r"flash_attention_2.*LlamaForCausalLM.*sdpa"):
        HuggingFaceModel(model).start(1, 8)
    with pytest.raises(UnsupportedError, match="flash_attention_2"):
        HuggingFaceModel(model, strategy="crop")


def test_training_mode_and_unknown_strategies_are_refused() -> None:
    model = tiny(LlamaForCausalLM)
    with pytest.raises(InputError, match=r"Unknown strategy.*'rewind'.*crop"):
        HuggingFaceModel(model, strategy="rewind")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"training mode.*model\.eval\(\)"):
        HuggingFaceModel(model.train())


def test_crop_is_refused_for_recurrent_layers() -> None:
    options = {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 4}
    model = Architecture("mamba2", "snapshot", options).build()
    with pytest.raises(UnsupportedError, match=r"crop strategy does not fit.*Mamba2ForCausalLM"):
        HuggingFaceModel(model, strategy="crop")


@pytest.mark.parametrize(
    ("rows", "tokens", "num_logits", "message"),
    [
        ([0], [[1], [2]], [1, 1], "one entry per scored row"),
        ([], [], [], "at least one"),
        ([0, 0], [[1], [2]], [1, 1], "distinct"),
        ([2], [[1]], [1], "within the 2 rows"),
        ([0], [[1, 2]], [3], "num_logits 3 for 2 tokens"),
        ([0], [[]], [0], "Feed the pending tokens"),
        ([0], [[VOCAB_SIZE]], [1], "share one tokenizer"),
    ],
)
def test_meaningless_batches_are_refused(
    rows: list[int], tokens: list[list[int]], num_logits: list[int], message: str
) -> None:
    model = HuggingFaceModel(tiny(LlamaForCausalLM), strategy="crop")
    with pytest.raises(InputError, match=message):
        model.score(model.start(2, 8), rows, tokens, num_logits)


@pytest.mark.parametrize("strategy", ["crop", "snapshot", "recompute"])
def test_more_than_was_scored_cannot_be_kept(strategy: Any) -> None:
    model = HuggingFaceModel(tiny(LlamaForCausalLM), strategy=strategy)
    state = model.start(1, 8)
    model.score(state, [0], [[1, 2, 3]], [1])
    with pytest.raises(InputError, match="at most the 3 tokens"):
        model.commit(state, [0], [4])
    model.commit(state, [0], [3])
    with pytest.raises(InputError, match="at most the 0 tokens"):
        model.commit(state, [0], [1])
