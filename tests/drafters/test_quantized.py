"""A rounded copy of the target drafts for it, and the text never shows it."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from tiny_models import Architecture

import forerun as fr
from forerun import Sampling
from forerun.base.errors import InputError, UnsupportedError
from forerun.drafters import Quantized
from forerun.models import LanguageModel, TableModel

PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [3], [5, 4, 3, 2, 1]]


@cache
def target(dtype: torch.dtype = torch.float64) -> LanguageModel:
    return fr.wrap(Architecture("llama", "crop", dtype=dtype).build())


@pytest.mark.parametrize("bits", ["int8", "int4"])
@pytest.mark.parametrize("how", [{"draft_length": 4}, {"draft_length": 4, "tree": 9}], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_text_is_that_of_the_target(bits: Any, how: dict[str, Any], temperature: float) -> None:
    sampling: dict[str, Any] = {"sampling": Sampling(temperature, seed=4), "max_new_tokens": 20}
    wanted = fr.generate(target(), PROMPTS, drafter=None, **sampling)
    found = fr.generate(target(), PROMPTS, drafter=Quantized(bits), **how, **sampling)
    assert [answer.tokens for answer in found] == [answer.tokens for answer in wanted]
    assert all(answer.stats.notes == [] for answer in found)
    accepted = sum(answer.stats.accepted for answer in found)
    drafted = sum(answer.stats.drafted for answer in found)
    if "tree" not in how:
        assert accepted / drafted > (0.9 if bits == "int8" else 0.15)
    assert accepted > 0


@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_rules_that_need_its_law_get_it(rule: str) -> None:
    answers = fr.generate(
        target(),
        PROMPTS,
        drafter=Quantized(temperature=1.2),
        rule=rule,
        sampling=Sampling(seed=3),
        max_new_tokens=20,
    )
    assert all(answer.stats.drafted > 0 and answer.stats.notes == [] for answer in answers)
    assert sum(answer.stats.accepted for answer in answers) > 0


def test_the_copy_is_made_once_and_goes_with_its_target() -> None:
    drafter = Quantized()
    assert drafter.name == "quantized:int8"
    own = fr.wrap(Architecture("llama", "crop").build())
    first = drafter.make(own, None)
    assert drafter.make(own, None) is first
    assert drafter.make(target(), None) is not first
    assert len(drafter._copies) == 2
    del own
    assert len(drafter._copies) == 1


def test_it_is_refused_where_it_cannot_be() -> None:
    with pytest.raises(InputError, match=r"'fp8'.*int8.*int4"):
        Quantized("fp8")  # type: ignore[arg-type]
    table = TableModel.random(vocab_size=6, order=1, seed=0)
    with pytest.raises(UnsupportedError, match=r"no weights to round to int4.*TableModel"):
        fr.generate(table, [1], drafter=Quantized("int4"), max_new_tokens=2)
