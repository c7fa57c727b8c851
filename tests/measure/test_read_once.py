"""A prompt that was read once: the same bits as reading it again, and honest about the clock."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import PROMPTS, Letters, target
from tiny_heads import VOCAB_SIZE, save_drafter, tiny_llama

pytest.importorskip("numba")

import forerun as fr
from forerun.base.errors import InputError, UnsupportedError
from forerun.drafters import EarlyExit, Heads, NGram, Suffix
from forerun.lean.model import LeanModel
from forerun.lean.plan import MOST_TOKENS
from forerun.lean.shape import LANES
from forerun.measure.figures import figures
from forerun.measure.job_runner import ReadOnce
from forerun.measure.records import Records, read_records
from forerun.prompts import Prompt

LENGTHS = (MOST_TOKENS + 21, 2 * LANES, 5, 1, 40)  # several passes; whole panels; nothing to keep
RAGGED = [Prompt(str(i), "qa", (("word " * 99)[i : i + n],)) for i, n in enumerate(LENGTHS)]


@cache
def lean() -> LeanModel:
    return LeanModel(tiny_llama(seed=3), Letters(), num_threads=2)


@cache
def long_prompts() -> list[list[int]]:
    generator = random.Random(0)
    return [[generator.randrange(VOCAB_SIZE) for _ in range(n)] for n in LENGTHS]


def swept(drafters: dict[str, Any], folder: Path, **options: Any) -> Records:
    return fr.sweep(
        lean(),
        drafters,
        RAGGED,
        folder,
        draft_lengths=[3, "auto"],
        trees=[6],
        batches=[1, 3],
        temperatures=[0.8],
        max_new_tokens=12,
        predict=False,
        **options,
    )


def counted(records: Records) -> dict[Any, Any]:
    """What must be the same; how far "auto" drafts depends on the clock."""
    return {
        (run.cell, answer.prompt, position): (
            answer.digest,
            run.cell.draft_length == "auto"
            or (
                answer.drafted_by_round,
                answer.accepted_by_round,
                answer.reached_by_position,
                answer.first_tokens,
            ),
        )
        for run in records.runs
        for position, answer in enumerate(run.answers)
    }


@pytest.mark.slow
def test_a_sweep_counts_the_same_and_does_not_time_the_prompt(tmp_path: Path) -> None:
    save_drafter(tmp_path / "heads", lean().model, like_target=True)
    drafters = {
        "ngram": NGram(),
        "suffix": Suffix(),
        "heads": Heads(tmp_path / "heads"),
        "early-exit": EarlyExit(2),
    }
    wanted = swept(drafters, tmp_path / "read")
    found = swept(drafters, tmp_path / "once", read_prompts_once=True)
    assert counted(found) == counted(wanted)
    assert not any(run.notes for run in [*found.runs, *wanted.runs])
    for name in drafters:
        own = [a for run in found.runs if run.cell.drafter == name for a in run.answers]
        assert sum(answer.drafted for answer in own) > 0
        assert sum(answer.accepted for answer in own) > 0 or name in ("ngram", "suffix")
    assert all(run.read_prompts for run in wanted.runs)
    assert all(each.tokens_per_second_with_prompt for each in figures(wanted.runs))
    alone = [run for run in found.runs if run.cell.batch == 1]
    read = Counter(run.answers[0].prompt for run in alone if run.read_prompts)
    assert read.pop("3") == len(alone) / len(RAGGED)  # one token: there is nothing to keep
    assert max(read.values(), default=0) <= 2  # once, and once more with the states that heads read
    assert all(each.tokens_per_second_with_prompt is None for each in figures(found.runs))
    assert read_records(tmp_path / "once") == found


def test_logits_and_states_are_the_same_bits_in_a_batch_of_known_and_unknown() -> None:
    model, prompts = lean(), long_prompts()
    memory = ReadOnce(model)
    for layers in ((), (1, 4)):
        first = memory.target.start(1, 200)
        if layers:
            model.watch(first, layers)
        memory.target.score(first, [0], [prompts[0]], [1])
        before = memory.num_recalled
        states = [memory.target.start(3, 200), model.start(3, 200)]
        for state in states:
            if layers:
                model.watch(state, layers)
        feeds = [[*prompts[2], 7, 8, 9], [*prompts[0], 4, 5], [*prompts[1], 6]]
        parents = [(-1, 0, -1), None, None]  # a tree after the first
        for rows, feed, counts, trees, kept in (
            ([0, 1, 2], feeds, [4, 3, 2], parents, [[*range(5), 7], len(feeds[1]), LENGTHS[1]]),
            ([1, 0, 2], [[9, 9], [1], [2]], [2, 1, 1], None, [1, 1, 1]),
        ):
            ours = memory.target.score(states[0], rows, feed, counts, trees)
            theirs = model.score(states[1], rows, feed, counts, trees)
            for index, count in enumerate(counts):
                assert torch.equal(ours[index, :count], theirs[index, :count])
            for row in rows if layers else ():
                assert np.array_equal(*(state._seen[row] for state in states))
            for each, state in zip((memory.target, model), states, strict=True):
                each.commit(state, rows, kept)
            for row in rows if layers else ():
                assert torch.equal(*(model.watched(state, row) for state in states))
        assert memory.num_recalled == before + 1
        assert states[0].lengths == states[1].lengths


def test_a_row_is_recalled_again_after_its_release() -> None:
    model, memory, prompt = lean(), ReadOnce(lean()), long_prompts()[0]
    state = memory.target.start(1, 200)
    wanted = model.score(model.start(1, 200), [0], [prompt], [1])
    for times in range(3):
        assert torch.equal(memory.target.score(state, [0], [prompt], [1]), wanted)
        assert memory.num_recalled == times
        memory.target.commit(state, [0], [len(prompt)])
        memory.target.score(state, [0], [[3, 1, 4]], [3])
        memory.target.release(state, 0)
    assert len(memory) == 1


def test_what_is_not_needed_for_longest_is_forgotten_first() -> None:
    prompts = [[token] * 30 for token in range(3)]
    one = ReadOnce(lean())
    one.target.score(one.target.start(1, 40), [0], prompts[:1], [1])
    memory = ReadOnce(lean(), most_bytes=2 * one.num_bytes)
    state = memory.target.start(1, 40)
    recalled = []
    for which in (0, 1, 0, 2, 0, 1):  # the third drives out the second
        before = memory.num_recalled
        memory.target.score(state, [0], [prompts[which]], [1])
        memory.target.commit(state, [0], [30])
        memory.target.release(state, 0)
        recalled.append(memory.num_recalled > before)
        assert memory.num_bytes <= 2 * one.num_bytes
    assert recalled == [False, False, True, False, True, False]
    assert len(memory) == 2
    none = ReadOnce(lean(), most_bytes=one.num_bytes - 1)
    none.target.score(none.target.start(1, 40), [0], prompts[:1], [1])
    assert (len(none), none.num_bytes) == (0, 0)


def test_the_model_itself_goes_on_reading() -> None:
    memory, prompt = ReadOnce(lean()), long_prompts()[0]
    assert type(memory.target) is LeanModel  # what drafters look at
    assert memory.target.model is lean().model
    lean().score(lean().start(1, 200), [0], [prompt], [1])
    assert len(memory) == 0
    with pytest.raises(InputError, match="within the 1 rows"):
        memory.target.score(memory.target.start(1, 200), [1], [prompt], [1])


def test_a_target_that_cannot_is_refused_before_any_run(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"HuggingFaceModel.*Leave out --read-prompts-once"):
        fr.sweep(target(), {}, PROMPTS, tmp_path, read_prompts_once=True)
    assert read_records(tmp_path) == Records()
