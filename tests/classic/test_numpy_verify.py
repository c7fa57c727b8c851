"""`speculative_decoding_verify`: the published form, with the target's law."""

import inspect
from typing import Any

import numpy as np
import pytest

import forerun as fr
from forerun.classic import numpy_verify
from forerun.classic.numpy_verify import speculative_decoding_verify
from forerun.proof.cases import Case, contextual, mixed, standard_cases

TARGET = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.2, 0.3, 0.5]])
DRAFT = np.array([[0.4, 0.4, 0.2], [0.3, 0.3, 0.4]])

CASES = [
    case
    for case in standard_cases()
    if case.name in {"no draft", "one draft token", "nothing in common", "certain drafter"}
] + [
    Case("short", 2, contextual(2, 0), contextual(2, 1), 2, 3),
    Case(
        "zeros",
        3,
        contextual(3, 2, zeros=0.4),
        mixed(contextual(3, 3), contextual(3, 2), 0.5),
        1,
        3,
    ),
]


def as_published(tokens: Any, draft: Any, target: Any) -> list[int]:
    return speculative_decoding_verify(tokens.tolist(), list(draft), list(target), target.shape[1])


def test_signature() -> None:
    parameters = list(inspect.signature(speculative_decoding_verify).parameters)
    assert parameters == ["draft_tokens", "draft_probs", "target_probs", "vocab_size"]


def test_law_is_the_targets(draw_from: Any) -> None:
    def function(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
        draw_from(rng)
        return as_published(tokens, draft, target)

    found = fr.certify(function, cases=CASES, method="exact")
    assert found.lossless, str(found)
    assert found.bias < 1e-12


def test_law_is_the_targets_without_a_bonus_row(draw_from: Any) -> None:
    def function(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
        draw_from(rng)
        return as_published(tokens, draft, target[: max(1, len(tokens))])

    found = fr.certify(function, cases=CASES, method="exact")
    assert found.lossless, str(found)


def test_law_holds_for_numpys_global_generator() -> None:
    """Sampled: a false alarm has odds of 1e-6, a bias of 0.16 would slip through in 1e-3."""

    def function(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
        np.random.seed(rng.integers(2**32))  # noqa: NPY002
        return as_published(tokens, draft, target)

    case = Case("two tokens", 2, contextual(2, 0), contextual(2, 1), 1, 2)
    found = fr.certify(function, cases=[case], method="sampled", samples=1000)
    assert found.lossless, str(found)
    assert found.detectable < 0.16


def test_same_verdict_as_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(50):
        monkeypatch.setattr(numpy_verify, "fresh_seed", lambda seed=seed: seed)
        draft = fr.Draft.sampled([[1, 2]], DRAFT[None])
        wanted = fr.verify(draft, TARGET, rule="ratio", seed=seed).tokens()[0]
        assert speculative_decoding_verify([1, 2], list(DRAFT), list(TARGET), 3) == wanted


def test_numpys_seed_repeats_a_round_and_rounds_differ() -> None:
    def rounds() -> list[list[int]]:
        np.random.seed(7)  # noqa: NPY002
        return [
            speculative_decoding_verify([1, 2], list(DRAFT), list(TARGET), 3) for _ in range(20)
        ]

    assert rounds() == rounds()
    assert len({tuple(emitted) for emitted in rounds()}) > 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equal_laws_accept_everything(dtype: Any) -> None:
    rows = TARGET.astype(dtype)
    for _ in range(50):
        emitted = speculative_decoding_verify([0, 2], list(rows[:2]), list(rows), 3)
        assert len(emitted) == 3
        assert emitted[:2] == [0, 2]


def test_disjoint_supports_refuse_everything() -> None:
    target = [np.array([0.0, 0.5, 0.5])] * 3
    draft = [np.array([1.0, 0.0, 0.0])] * 2
    rounds = [speculative_decoding_verify([0, 0], draft, target, 3) for _ in range(50)]
    assert {tuple(emitted) for emitted in rounds} == {(1,), (2,)}


def test_a_refusal_in_the_last_slot_ends_the_round() -> None:
    """The published length test took this for full acceptance and added a bonus."""
    target = [np.array([0.0, 1.0]), np.array([0.5, 0.5])]
    assert speculative_decoding_verify([0], [np.array([1.0, 0.0])], target, 2) == [1]


def test_bonus_only_where_there_is_a_row() -> None:
    rows = list(TARGET[:2])
    assert speculative_decoding_verify([0, 2], rows, rows, 3) == [0, 2]
    more = [*rows, TARGET[2], TARGET[2]]
    assert len(speculative_decoding_verify([0, 2], rows, more, 3)) == 3


def test_no_draft_is_plain_sampling() -> None:
    assert speculative_decoding_verify([], [], [np.array([0.0, 1.0])], 2) == [1]
    assert speculative_decoding_verify([], [], [], 2) == []


def test_plain_lists_and_numpy_integers_are_welcome() -> None:
    tokens: Any = np.array([0], dtype=np.int32)
    emitted = speculative_decoding_verify(tokens, [[1.0, 0.0]], [[1, 0], [0, 1]], 2)  # type: ignore[list-item]
    assert emitted == [0, 1]
    assert all(type(token) is int for token in emitted)


@pytest.mark.parametrize(
    ("tokens", "draft", "target", "vocab_size", "message"),
    [
        ([1, 2], DRAFT, TARGET, 4, "wrong shape"),
        ([1, 2], DRAFT, TARGET[:1], 3, "do not fit"),
        ([1, 2], DRAFT[:1], TARGET, 3, "wrong shape"),
        ([1, 3], DRAFT, TARGET, 3, "not in the vocabulary"),
        ([1, 2], [DRAFT[0], DRAFT[0][:2]], TARGET, 3, "no table"),
        ([1, 2], DRAFT, TARGET * 2, 3, "target_probs"),
        ([0, 2], [[0.0, 0.5, 0.5], DRAFT[1]], TARGET, 3, "draft probability 0"),
    ],
)
def test_bad_input(tokens: Any, draft: Any, target: Any, vocab_size: int, message: str) -> None:
    with pytest.raises(fr.InputError, match=message):
        speculative_decoding_verify(tokens, list(draft), list(target), vocab_size)
