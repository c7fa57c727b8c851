"""`SpeculativeDecoder`: the published signature on transformers models, with the target's law."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import torch
from drafting import noisy_copy
from tiny_models import VOCAB_SIZE, Architecture, fresh_logits

import forerun as fr
from forerun.classic.decoder import SpeculativeDecoder

TARGET = Architecture("llama", "crop").build()
DRAFT = noisy_copy(TARGET, 0.1)
PROMPT = torch.tensor([[5, 9, 33, 9]])


def test_signature() -> None:
    made = inspect.signature(SpeculativeDecoder).parameters
    assert list(made) == ["target_model", "draft_model", "draft_tokens"]
    assert made["draft_tokens"].default == 4
    decode = inspect.signature(SpeculativeDecoder.decode).parameters
    assert list(decode) == ["self", "input_ids", "max_new_tokens"]


@pytest.mark.parametrize("draft_tokens", [0, 1, 4, 8])
@pytest.mark.parametrize("num_new", [0, 1, 2, 9])
def test_prompt_and_exactly_that_many_new_tokens(draft_tokens: int, num_new: int) -> None:
    """Not, as published, until prompt and text together are that long."""
    decoder = SpeculativeDecoder(TARGET, DRAFT, draft_tokens=draft_tokens)
    found = decoder.decode(PROMPT, num_new)
    assert found.shape == (1, 4 + num_new)
    assert torch.equal(found[:, :4], PROMPT)
    assert found.dtype == PROMPT.dtype
    assert found is not PROMPT


def test_torchs_seed_repeats_the_text() -> None:
    decoder = SpeculativeDecoder(TARGET, DRAFT)

    def text(seed: int) -> list[int]:
        torch.manual_seed(seed)
        return [int(token) for token in decoder.decode(PROMPT, 10)[0]]

    assert text(3) == text(3)
    assert len({tuple(text(seed)) for seed in range(4)}) == 4
    torch.manual_seed(3)
    first, second = decoder.decode(PROMPT, 10), decoder.decode(PROMPT, 10)
    assert not torch.equal(first, second), "a second call goes on in the generator"


def test_rows_of_a_batch_have_noise_of_their_own() -> None:
    torch.manual_seed(0)
    found = SpeculativeDecoder(TARGET, DRAFT).decode(PROMPT.repeat(12, 1).int(), 8)
    assert found.shape == (12, 12)
    assert found.dtype == torch.int32
    assert len({tuple(row.tolist()) for row in found}) == 12


def test_rows_that_end_are_filled_up() -> None:
    """With the padding token, or the ending one where there is none."""
    model = Architecture("llama", "crop").build()
    for padding in (0, None):
        model.generation_config.pad_token_id = padding
        model.generation_config.eos_token_id = list(range(2, 12))
        filler = 2 if padding is None else padding
        torch.manual_seed(1)
        found = SpeculativeDecoder(model, DRAFT).decode(PROMPT.repeat(8, 1), 20)
        lengths = []
        for row in found[:, 4:].tolist():
            ends = [place for place, token in enumerate(row) if 2 <= token < 12]
            end = ends[0] if ends else len(row) - 1
            assert set(row[end + 1 :]) <= {filler}
            lengths.append(end + 1)
        assert len(set(lengths)) > 2
        assert max(lengths) == found.shape[1] - 4


def test_the_law_is_the_targets() -> None:
    """The law of two tokens, summed over 6 groups each; temperature 1.

    With 36 cells and n texts the total variation distance exceeds the limit with a chance of at
    most 2**36 * exp(-2 n limit**2) = 1e-6.
    """
    num_texts, groups = 1000, torch.arange(VOCAB_SIZE) % 6
    torch.manual_seed(0)
    found = SpeculativeDecoder(TARGET, DRAFT, draft_tokens=2).decode(
        PROMPT[:, :1].repeat(num_texts, 1), 2
    )
    counts = torch.zeros(6, 6, dtype=torch.float64)
    for first, second in groups[found[:, 1:]].tolist():
        counts[first, second] += 1
    wanted = torch.zeros(6, 6, dtype=torch.float64)
    first_law = fresh_logits(TARGET, [5])[-1].softmax(-1)
    for first in range(VOCAB_SIZE):
        second_law = fresh_logits(TARGET, [5, first])[-1].softmax(-1)
        for second in range(VOCAB_SIZE):
            wanted[groups[first], groups[second]] += first_law[first] * second_law[second]
    limit = math.sqrt((36 * math.log(2) + math.log(1e6)) / (2 * num_texts))
    assert float((counts / num_texts - wanted).abs().sum()) / 2 < limit
    assert float((wanted - 1 / 36).abs().sum()) / 2 > limit, "it can fail"


@pytest.mark.parametrize(
    ("input_ids", "num_new", "message"),
    [
        (PROMPT[0], 3, r"input_ids has a wrong shape. Received \(4,\)"),
        (PROMPT[:, :0], 3, "prompt is empty"),
        (PROMPT + VOCAB_SIZE, 3, "outside the vocabulary"),
        (PROMPT.double(), 3, "That is no prompt"),
        (PROMPT, -1, "max_new_tokens is too small"),
    ],
)
def test_bad_input(input_ids: Any, num_new: int, message: str) -> None:
    with pytest.raises(fr.InputError, match=message):
        SpeculativeDecoder(TARGET, DRAFT).decode(input_ids, num_new)


def test_what_the_document_asserts_is_checked() -> None:
    """assert target_model.config.vocab_size == draft_model.config.vocab_size"""
    other = Architecture("llama", "crop", {"vocab_size": 90}).build()
    with pytest.raises(fr.InputError, match=r"vocabulary sizes differ. Received 61 .* and 90"):
        SpeculativeDecoder(TARGET, other).decode(PROMPT, 3)


def test_broken_weights_do_not_pass_for_a_short_text() -> None:
    broken = Architecture("llama", "crop").build()
    decoder = SpeculativeDecoder(broken, DRAFT)
    decoder.decode(PROMPT, 1)
    with torch.no_grad():
        broken.lm_head.weight.fill_(math.nan)
    with pytest.raises(fr.GenerationError, match="at output position 0: the logits hold NaN"):
        decoder.decode(PROMPT, 3)
