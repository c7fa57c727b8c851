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
from forerun.rules.types import DraftLength
from forerun.serve.admission.ask import Speculation
from forerun.serve.openai import fingerprint as fingerprints
from forerun.serve.openai.fingerprint import Fingerprint, arithmetic
from forerun.serve.openai.offer import Limits, Offer

NOISE_1 = [
    [363, 237, 404, 167, 483, 153, 272, 357],
    [366, 533, 462, 475, 595, 589, 203, 448],
]


def offer_of(target: Any, **changes: Any) -> Offer:
    return replace(Offer(target, "tiny", ("ngram", "none"), ("match", "ratio")), **changes)


def print_of(
    target: Any = None,
    speculation: Speculation | None = None,
    draft_length: DraftLength = 4,
    asked_length: DraftLength | None = None,
    **changes: Any,
) -> str:
    ask = an_ask(speculation=speculation, draft_length=asked_length)
    offer = offer_of(tiny_llama() if target is None else target, **changes)
    return Fingerprint(offer, draft_length)(ask)


def copied() -> Any:
    inner = deepcopy(tiny_llama().model)
    return HuggingFaceModel(inner, deepcopy(tiny_llama().tokenizer))


SAME: dict[str, dict[str, Any]] = {
    "again": {},
    "drafter": {"speculation": Speculation(drafter="none")},
    "draft length": {"asked_length": 0},
    "draft length of the server": {"draft_length": "auto"},
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


def test_the_models_defaults_change_it() -> None:
    target = copied()
    target.model.generation_config.temperature = 0.7
    assert print_of(target) != print_of()


def test_a_rule_other_than_match_changes_it() -> None:
    ratio = print_of(speculation=Speculation(rule="ratio"))
    assert ratio != print_of()
    assert print_of(rules=("ratio", "match")) == ratio


def ratio(**options: Any) -> str:
    own: Any = options.pop("own", 4)
    drafters = ("ngram", "suffix", "ngram+suffix", "none")
    asked = options.pop("draft_length", None)
    speculation = Speculation(rule="ratio", **options)
    return print_of(
        speculation=speculation, draft_length=own, asked_length=asked, drafters=drafters
    )


def test_drafts_change_it_under_other_rules() -> None:
    assert ratio() == ratio(drafter="ngram") == ratio(draft_length=9) == ratio(draft_length="auto")
    assert len({ratio(), ratio(drafter="suffix"), ratio(draft_length=2), ratio(own=3)}) == 4
    assert ratio(draft_length=0) == ratio(drafter="none") == ratio(own=0)
    assert ratio(draft_length=0, own="auto") == ratio(draft_length=0)


def test_what_adapts_is_not_promised_under_other_rules() -> None:
    assert ratio(own="auto") != ratio(own="auto")
    assert ratio(own="auto", draft_length=4) != ratio(own="auto", draft_length=4)
    assert ratio(drafter="ngram+suffix") != ratio(drafter="ngram+suffix")


def test_the_version_of_grammars_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    known = fingerprints._version
    before = print_of()
    monkeypatch.setattr(
        fingerprints, "_version", lambda name: "99" if name == "llguidance" else known(name)
    )
    assert print_of() != before


def test_the_noise_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = print_of()
    monkeypatch.setattr(fingerprints, "NOISE", 0)
    assert print_of() != before


def test_the_pass_changes_it_and_versions_count_where_their_arithmetic_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("numba")
    from forerun.lean import shape
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
    monkeypatch.setattr(shape, "DOT_PRODUCTS", "vnni512" if shape.is_arm() else "sdot")
    assert arithmetic(lean) != before["lean"]
    monkeypatch.undo()
    monkeypatch.setattr(fingerprints, "__version__", "99")
    assert arithmetic(plain) != before["plain"]
    assert arithmetic(lean) != before["lean"]


def test_nothing_is_known_of_a_function() -> None:
    assert print_of(talker()) != print_of(talker())


def test_number_1_is_this_noise() -> None:
    """If this fails, seeds give other texts than before: raise `NOISE` and write them down."""
    law = np.arange(1, 601) / np.arange(1, 601).sum()
    target = FunctionModel(lambda ids: law, vocab_size=600)
    sampling = fr.Sampling(seed=7, n=2)
    answers = fr.generate(target, [1], drafter=None, sampling=sampling, max_new_tokens=8)
    assert fingerprints.NOISE == 1
    assert [answer.tokens for answer in answers] == NOISE_1
