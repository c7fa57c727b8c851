"""The fingerprint changes exactly when the text for a seed may change."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from serving import an_ask, tiny_llama
from talking import HERMES, talker

import forerun as fr
from forerun.models.function import FunctionModel
from forerun.models.huggingface import HuggingFaceModel
from forerun.serve import fingerprint as fingerprints
from forerun.serve.ask import Speculation
from forerun.serve.fingerprint import Fingerprint, arithmetic
from forerun.serve.offer import Limits, Offer

NOISE_1 = [
    [363, 237, 404, 167, 483, 153, 272, 357],
    [366, 533, 462, 475, 595, 589, 203, 448],
]


def offer_of(target: Any, **changes: Any) -> Offer:
    return replace(Offer(target, "tiny", ("ngram", "none"), ("match", "ratio")), **changes)


def print_of(target: Any = None, speculation: Speculation | None = None, **changes: Any) -> str:
    ask = replace(an_ask(), speculation=speculation or Speculation())
    return Fingerprint(offer_of(tiny_llama() if target is None else target, **changes))(ask)


def copied() -> Any:
    inner = deepcopy(tiny_llama().model)
    return HuggingFaceModel(inner, deepcopy(tiny_llama().tokenizer))


SAME: dict[str, dict[str, Any]] = {
    "again": {},
    "drafter": {"speculation": Speculation(drafter="none")},
    "draft length": {"speculation": Speculation(draft_length=0)},
    "rule by name": {"speculation": Speculation(rule="match")},
    "drafters offered": {"drafters": ("suffix",)},
    "limits": {"limits": Limits(max_tokens=7)},
    "name": {"name": "other"},
}


@pytest.mark.parametrize("change", SAME.values(), ids=SAME)
def test_what_cannot_change_a_text_leaves_it(change: dict[str, Any]) -> None:
    assert print_of(**change) == print_of()


def test_a_copy_under_another_name_has_the_same() -> None:
    target = copied()
    target.model.config._name_or_path = "elsewhere"
    target.name = "elsewhere"
    target.strategy  # noqa: B018  what is learned when rows are first made changes nothing
    assert print_of(target) == print_of()


def test_one_weight_changes_it() -> None:
    target = copied()
    next(target.model.parameters()).data.view(-1)[3] += 1e-3
    assert print_of(target) != print_of()


def test_the_configuration_changes_it() -> None:
    target = copied()
    target.model.config.rms_norm_eps *= 2
    assert print_of(target) != print_of()


def test_the_dtype_changes_it() -> None:
    target = HuggingFaceModel(deepcopy(tiny_llama().model).double(), tiny_llama().tokenizer)
    assert print_of(target) != print_of()


def test_the_chat_template_and_the_ending_tokens_change_it() -> None:
    target = copied()
    target.tokenizer.chat_template = HERMES
    assert print_of(target) != print_of()
    target = copied()
    target.model.generation_config.eos_token_id = 5
    assert print_of(target) != print_of()


def test_a_rule_other_than_match_changes_it() -> None:
    ratio = print_of(speculation=Speculation(rule="ratio"))
    assert ratio != print_of()
    assert print_of(rules=("ratio", "match")) == ratio


def test_the_noise_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = print_of()
    monkeypatch.setattr(fingerprints, "NOISE", 0)
    assert print_of() != before


def test_the_pass_changes_it_and_versions_count_where_their_arithmetic_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("numba")
    from forerun.lean.model import LeanModel

    plain = tiny_llama()
    lean = LeanModel(plain.model, plain.tokenizer)
    rounded = LeanModel(plain.model, plain.tokenizer, int8=True)
    assert len({print_of(plain), print_of(lean), print_of(rounded)}) == 3
    before = {"plain": arithmetic(plain), "lean": arithmetic(lean)}
    known = fingerprints._version

    def newer(package: str) -> str:
        return "99" if package in ("torch", "transformers") else known(package)

    monkeypatch.setattr(fingerprints, "_version", newer)
    assert arithmetic(plain) != before["plain"]
    assert arithmetic(lean) == before["lean"]


def test_nothing_is_known_of_a_function() -> None:
    assert print_of(talker()) != print_of(talker())


def test_number_1_is_this_noise() -> None:
    """If this fails, seeds give other texts than before: raise `NOISE` and write them down."""
    law = np.arange(1, 601) / np.arange(1, 601).sum()
    target = FunctionModel(lambda ids: law, vocab_size=600)
    sampling = fr.Sampling(seed=7, n=2)
    answers = fr.generate(target, [1], sampling=sampling, max_new_tokens=8)
    assert fingerprints.NOISE == 1
    assert [answer.tokens for answer in answers] == NOISE_1
