"""Grammars as bit masks: what the device forbids, and the texts of the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("transformers")

from automata import Sums  # noqa: E402
from interpreting import IN_INTERPRETER  # noqa: E402
from rounds import decided, example, launch  # noqa: E402
from tiny import build, noisy_copy  # noqa: E402

import forerun as fr  # noqa: E402
from forerun import Sampling, rules  # noqa: E402
from forerun.drafters import Model, NGram  # noqa: E402
from forerun.engine.answer_options import AnswerOptions  # noqa: E402
from forerun.engine.engine import Engine  # noqa: E402
from forerun.engine.proposal import Proposal  # noqa: E402
from forerun.generation.intake import make_request  # noqa: E402
from forerun.gpu.model import GpuModel  # noqa: E402
from forerun.gpu_rounds import executor  # noqa: E402
from forerun.gpu_rounds.choosing import executor_of  # noqa: E402
from forerun.gpu_rounds.masks import Masks, masks_of  # noqa: E402
from forerun.gpu_rounds.sampled_steps import LazyRows  # noqa: E402
from forerun.grammars.base import packed, unpacked  # noqa: E402
from forerun.rules.types import Drawn  # noqa: E402
from forerun.trees.tree import Tree  # noqa: E402

pytestmark = IN_INTERPRETER
CPU = torch.device("cpu")
VOCAB = 40

# --- bits ----------------------------------------------------------------------------------------


def some_masks(num_rows: int, vocab_size: int, share: float = 0.5) -> Any:
    chances = np.random.default_rng([num_rows, vocab_size]).random((num_rows, vocab_size))
    return chances < share


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 352])
def test_token_t_is_bit_t_mod_32_of_word_t_div_32(vocab_size: int) -> None:
    mask = some_masks(1, vocab_size)[0]
    words = packed(mask)
    assert (words.dtype, words.shape) == (np.int32, (-(-vocab_size // 32),))
    bits = [int(words[at // 32]) >> at % 32 & 1 for at in range(32 * len(words))]
    assert bits == [*mask.astype(int).tolist(), *[0] * (32 * len(words) - vocab_size)]
    np.testing.assert_array_equal(unpacked(words, vocab_size), mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("vocab_size", [VOCAB, 2500])
def test_the_device_forbids_what_the_host_forbids(vocab_size: int, dtype: Any) -> None:
    """In some rows, the other ones stay; a forbidden NaN counts for nothing."""
    logits = torch.randn((5, vocab_size), generator=torch.Generator().manual_seed(1)).to(dtype)
    logits[:, 7] = torch.nan
    allowed = some_masks(5, vocab_size)
    expected = logits.numpy().copy()
    masks = Masks(8, vocab_size, CPU)
    for rows in ([0, 3, 4], [1], []):
        masks.put({row: packed(allowed[row]) for row in rows})
        masked = logits.clone()
        masks.apply(masked)
        expected = logits.numpy().copy()
        expected[rows] = np.where(allowed[rows], expected[rows], -np.inf)
        np.testing.assert_array_equal(masked.numpy(), expected)


@pytest.mark.parametrize("rule", ["match", "ratio"])
def test_a_masked_round_is_decided_as_by_the_rule(rule: str) -> None:
    """Kernel after kernel, as in a captured round; at temperature 0 too."""
    made = example(4, 6, 3, 700)
    mask = some_masks(24, 700, 0.3)
    masks = Masks(24, 700, CPU)
    masks.put({row: packed(mask[row]) for row in range(24)})
    on_device = made.round(torch.float32, "cpu", law=True)
    masks.apply(on_device.logits.view(24, 700))
    made.target[~torch.tensor(mask).view(made.target.shape)] = -torch.inf
    accepted, extra = decided(launch(rule, on_device))
    assert (accepted, extra) == made.reference(rule)
    assert all(
        mask[4 * row + count, token]
        for row, (count, token) in enumerate(zip(accepted, extra, strict=True))
    )


# --- the slots of a draft ------------------------------------------------------------------------


def request_with(grammar: Any) -> Any:
    return make_request(TARGET, [1], AnswerOptions(Sampling(grammar=grammar), max_new_tokens=9))


def test_slots_that_no_round_reaches_are_not_asked_about() -> None:
    """Of a tree whose nodes 1 and 3 are forbidden; node 4 comes after 1."""
    asked: list[list[int]] = []

    def grammar(output: Sequence[int]) -> list[int]:
        asked.append(list(output))
        if len(output) == 3:
            raise ZeroDivisionError
        return [5, 6]

    tree = Tree((-1, -1, 0, 0, 1, 2))
    draft = Proposal([5, 8, 6, 9, 5, 6], Drawn.SHARED, tree=tree)
    masks, faults = masks_of(request_with(grammar), [6], draft, VOCAB)
    assert asked == [[6], [6, 5], [6, 5, 6]]
    assert sorted(masks) == [0, 1]
    assert all(np.flatnonzero(unpacked(mask, VOCAB)).tolist() == [5, 6] for mask in masks.values())
    assert list(faults) == [3]
    assert isinstance(faults[3], ZeroDivisionError)


# --- texts ---------------------------------------------------------------------------------------

MODEL = build()
TARGET = GpuModel(MODEL)
DRAFT = GpuModel(noisy_copy(MODEL, 0.15))
PROMPTS = [[1, 2, 3], [4, 5, 4, 5, 4], [6]]
LIMITS = [4, 3, 4]
ODD, EVEN = tuple(range(1, VOCAB, 2)), tuple(range(0, VOCAB, 2))
SAMPLINGS = [
    Sampling(temperature=0.8, seed=3, grammar=Sums((ODD, EVEN, tuple(range(20))))),
    Sampling(temperature=0.8, seed=3),
    Sampling(temperature=0.0, seed=3, grammar=lambda output: EVEN[len(output) :], top_k=9),
]


def texts(**how: Any) -> list[list[int]]:
    answers = fr.generate(
        TARGET, PROMPTS, sampling=SAMPLINGS, max_new_tokens=LIMITS, ignore_eos=True,
        **{"drafter": None} | how,
    )  # fmt: skip
    return [answer.tokens for answer in answers]


@pytest.fixture(scope="module")
def by_host() -> list[list[int]]:
    """One after the other, with the masks and the laws of the host."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executor, "fits_device", lambda request: False)
        return texts(batch_size=1)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"drafter": Model(DRAFT), "draft_length": 2},
        {"drafter": NGram(min_n=1), "draft_length": 2},
        pytest.param({"batch_size": 1}, marks=pytest.mark.slow),
        pytest.param({"drafter": Model(DRAFT), "tree": 5}, marks=pytest.mark.slow),
    ],
    ids=["plain", "model", "ngram", "alone", "tree"],
)
def test_requests_with_a_grammar_stay_on_the_device(
    how: dict[str, Any], by_host: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(LazyRows, "__getitem__")
    assert texts(**how) == by_host
    assert [token % 2 for token in by_host[2]] == [0] * 4


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_rules_that_divide_by_the_drafts_law_keep_to_grammars(rule: str) -> None:
    """The draft's law is not masked, and stands for what was drafted."""
    found = texts(drafter=Model(DRAFT), draft_length=2, rule=rule)
    assert [len(text) for text in found] == LIMITS
    total = 0
    for token in found[0]:
        assert token in SAMPLINGS[0].grammar.allowed[total % 3]
        total += token
    assert [token in EVEN[place:] for place, token in enumerate(found[2])] == [True] * 4


def test_they_are_in_every_round() -> None:
    engine = Engine(
        TARGET, executor_of=executor_of, drafter=None, num_rows=2, draft_length=0,
        rule=rules.get("match"),
    )  # fmt: skip
    requests = [
        make_request(TARGET, prompt, AnswerOptions(sampling, max_new_tokens=3, ignore_eos=True))
        for prompt, sampling in zip(PROMPTS[:2], SAMPLINGS, strict=False)
    ]
    for request in requests:
        engine.submit(request)
    for count in (1, 2, 3):
        engine.step()
        assert [request.num_output for request in requests] == [count, count]
    engine.close()


@pytest.mark.parametrize(
    ("answer", "words"), [([], "the grammar allows no token"), (1 / 2, "neither a mask nor")]
)
@pytest.mark.parametrize("drafter", [None, NGram(min_n=1)], ids=["none", "ngram"])
def test_a_grammar_that_fails_ends_its_request_alone(
    answer: Any, words: str, drafter: Any, by_host: list[list[int]]
) -> None:
    def grammar(output: Sequence[int]) -> Any:
        return answer if len(output) == 2 else EVEN

    answers = fr.generate(
        TARGET, PROMPTS[:2], sampling=[Sampling(seed=3, grammar=grammar), SAMPLINGS[1]],
        max_new_tokens=3, ignore_eos=True, errors="return", drafter=drafter,
    )  # fmt: skip
    assert [one.finish_reason for one in answers] == ["error", "length"]
    assert len(answers[0].tokens) == 2
    assert answers[0].error.startswith("at output position 2: ")
    assert words in answers[0].error
    assert answers[1].tokens == by_host[1]
