"""Sweeps: in turns, resumable, the same text in every cell, and as predicted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from small import PROMPTS, relative, target

import forerun as fr
from forerun.base.errors import InputError, UnsupportedError
from forerun.measure import round_costs
from forerun.measure.figures import figures
from forerun.measure.grid import cells_of, jobs_of
from forerun.measure.log import Log
from forerun.measure.peers import check_peer
from forerun.measure.records import Records, Run, read_records
from forerun.measure.running import Question
from forerun.measure.summary import replayed

OPTIONS: dict[str, Any] = {
    "draft_lengths": [0, 1, 3],
    "batches": [1, 4],
    "temperatures": [0.0, 0.8],
    "max_new_tokens": 14,
}
NUM_CELLS = (1 + 2 * 2) * 2 * 2  # plain and two drafters with two lengths, batches, temperatures
NUM_RUNS = (1 + 2 * 2) * 2 * (4 + 1)


@pytest.fixture(scope="module")
def model() -> Any:
    return target()


@pytest.fixture(scope="module")
def drafters(model: Any) -> dict[str, Any]:
    return {"near": relative(model), "ngram": fr.drafters.NGram()}


@pytest.fixture(scope="module")
def swept(
    model: Any, drafters: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Records]:
    folder = tmp_path_factory.mktemp("sweep")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(round_costs, "TIMED_TOKENS", 16)  # a few rounds of each length will do
        return folder, fr.sweep(model, drafters, PROMPTS, folder, **OPTIONS)


def test_prompts_may_be_texts(model: Any, tmp_path: Path) -> None:
    how: dict[str, Any] = {"draft_lengths": [1], "max_new_tokens": 4, "predict": False}
    texts = ["the cat sat", "on the mat"]
    records = fr.sweep(model, "ngram", texts, tmp_path / "several", **how)
    asked = {answer.prompt: answer.group for run in records.runs for answer in run.answers}
    assert asked == {"0": "prompts", "1": "prompts"}
    alone = fr.sweep(model, "ngram", "the cat sat", tmp_path / "one", **how)
    assert {answer.prompt for run in alone.runs for answer in run.answers} == {"0"}


def test_every_cell_meets_every_prompt_once(swept: tuple[Path, Records]) -> None:
    folder, records = swept
    assert records == read_records(folder)
    assert len(records.runs) == NUM_RUNS
    met = Counter((run.cell, a.prompt) for run in records.runs for a in run.answers)
    assert set(met.values()) == {1}
    assert len(met) == NUM_CELLS * len(PROMPTS)
    assert len(records.headers) == 1
    assert records.headers[0].machine.packages["torch"]


def test_all_cells_of_a_temperature_write_the_same_text(swept: tuple[Path, Records]) -> None:
    texts: dict[tuple[str, float], set[str]] = {}
    for run in swept[1].runs:
        for answer in run.answers:
            texts.setdefault((answer.prompt, run.cell.temperature), set()).add(answer.digest)
    assert len(texts) == len(PROMPTS) * 2
    assert all(len(found) == 1 for found in texts.values())


def test_counts_of_an_answer_add_up(swept: tuple[Path, Records]) -> None:
    for run in swept[1].runs:
        for a in run.answers:
            assert sum(a.accepted_by_round) == a.accepted == sum(a.accepted_by_position)
            assert sum(a.drafted_by_round) == a.drafted
            assert len(a.drafted_by_round) == a.rounds
            assert a.new_tokens == a.accepted + a.rounds == 14
            assert a.first_tokens == a.accepted_by_round[0] + 1
            assert 0 < a.first_seconds < a.seconds <= run.seconds
            assert sum(a.seconds_by_stage.values()) == pytest.approx(a.seconds)


def test_predictions_agree_with_what_was_measured(swept: tuple[Path, Records]) -> None:
    """Tokens per round: greedy exactly, and lookups exactly at any temperature."""
    _, records = swept
    measured = {each.cell: each for each in figures(records.runs)}
    assert len(records.predictions) == NUM_CELLS - 4
    for each in records.predictions:
        found = measured[each.cell].tokens_per_round.mean
        if each.cell.temperature == 0 or each.cell.drafter == "ngram":
            assert each.tokens_per_round.mean == pytest.approx(found)
        assert each.speedup.low <= each.speedup.mean <= each.speedup.high


def test_the_simulator_replays_what_was_recorded(swept: tuple[Path, Records]) -> None:
    found = replayed(swept[1].runs)
    assert len(found) == NUM_CELLS - 4
    assert all(each.error < 0.03 for each in found)
    assert any(each.measured > 1.3 for each in found)
    for each in found:  # cutting longer drafts starts rounds elsewhere: close, not equal
        assert each.from_longest == pytest.approx(each.measured, rel=0.15)


def test_a_generation_of_each_drafter_is_shown_token_by_token(
    swept: tuple[Path, Records], model: Any
) -> None:
    _, records = swept
    assert [each.cell.drafter for each in records.samples] == ["near", "ngram"]
    for each in records.samples:
        assert len(each.tokens) == 14
        assert {token.fate for token in each.tokens} <= {"accepted", "correction", "bonus"}
        assert all(0 < token.probability <= 1 for token in each.tokens)
        assert all(len(token.text) == 1 for token in each.tokens)
    speeds = {each.cell: each.tokens_per_second.mean for each in figures(records.runs)}
    for each in records.samples:  # the fastest way of each
        own = [c for c in speeds if c.drafter == each.cell.drafter and c.batch == 1]
        assert speeds[each.cell] == max(speeds[c] for c in own)


def test_cells_take_turns_on_the_same_prompts(drafters: dict[str, Any]) -> None:
    options = {**OPTIONS, "draft_lengths": [0, 1, 3, "auto"], "rule": "match"}
    options.pop("max_new_tokens")
    cells = cells_of("t", drafters, trees=[8], **options)
    assert len(cells) == (1 + 2 * (3 + 1)) * 4
    assert {cell.draft_length for cell in cells if cell.tree} == {3}
    questions = [Question(str(i), "ab"[i // 3], "", [1], 0) for i in range(6)]
    jobs = list(jobs_of(cells, questions, {1: 2, 4: 2}))
    first = [job for job in jobs if job.repeat == 0 and job.cell.batch == 1][: len(cells) // 2]
    assert {job.questions[0].id for job in first} == {"0"}
    assert len({job.cell for job in first}) == len(cells) // 2
    starters = {jobs[at].cell for at in range(0, len(jobs), len(cells) // 2)}
    assert len(starters) > 3  # someone else goes first
    fours = [job.questions for job in jobs if job.cell.batch == 4]
    assert {"".join(q.id for q in some) for some in fours} == {"0314", "2503"}
    with pytest.raises(InputError, match="larger than the prompt set"):
        list(jobs_of(cells, questions[:3], {1: 1, 4: 1}))
    some = [(job.repeat, job.cell.batch) for job in jobs_of(cells, questions, {1: 3, 4: 1})]
    assert {repeat for repeat, batch in some if batch == 1} == {0, 1, 2}
    assert {repeat for repeat, batch in some if batch == 4} == {0}


class Killed(Exception):
    pass


def test_a_killed_sweep_goes_on_and_loses_nothing(
    model: Any, drafters: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**OPTIONS, "batches": [1], "temperatures": [0.0], "predict": False}
    options["max_new_tokens"] = 6
    add = Log.add

    def add_until_killed(self: Log, record: Any) -> None:
        if len(self.records.runs) == 7:
            with self.path.open("a") as file:
                file.write('{"kind": "run", "ce')  # the line it was writing
            raise Killed
        add(self, record)

    with monkeypatch.context() as patched:
        patched.setattr(Log, "add", add_until_killed)
        with pytest.raises(Killed):
            fr.sweep(model, drafters, PROMPTS, tmp_path, **options)
    kept = read_records(tmp_path).runs
    assert len(kept) == 7
    found = fr.sweep(model, drafters, PROMPTS, tmp_path, **options)
    assert found.runs[:7] == kept
    assert len(found.runs) == len({_key(run) for run in found.runs}) == 5 * 4
    assert len(found.headers) == 2
    again = fr.sweep(model, drafters, PROMPTS, tmp_path, **options)
    assert again.runs == found.runs
    more = fr.sweep(model, drafters, PROMPTS, tmp_path, **{**options, "draft_lengths": [1, 2, 3]})
    assert len(more.runs) == 7 * 4
    with pytest.raises(InputError, match="another number of new tokens"):
        fr.sweep(model, drafters, PROMPTS, tmp_path, **{**options, "max_new_tokens": 9})


def _key(run: Run) -> tuple[Any, ...]:
    return run.cell, run.repeat, tuple(answer.prompt for answer in run.answers)


@pytest.mark.slow
def test_transformers_runs_the_same_cells(
    model: Any, drafters: dict[str, Any], tmp_path: Path
) -> None:
    """Greedy its texts are ours, so each mode is the one it is taken for."""
    records = fr.sweep(
        model,
        drafters,
        PROMPTS,
        tmp_path,
        draft_lengths=[3],
        batches=[1, 2],
        max_new_tokens=20,
        against=["transformers"],
        predict=False,
    )
    theirs = [run for run in records.runs if run.cell.peer == "transformers"]
    modes = {(run.cell.drafter, run.cell.batch) for run in theirs}
    assert modes == {(None, 1), (None, 2), ("near", 1), ("ngram", 1)}
    ours = {a.prompt: a.digest for run in records.runs for a in run.answers if not run.cell.peer}
    for run in theirs:
        for answer in run.answers:
            assert answer.digest == ours[answer.prompt]
            assert answer.new_tokens == 20
            assert 0 < answer.first_seconds < answer.seconds <= run.seconds
            assert answer.rounds == 20 or run.cell.drafter is not None
    assisted = [a for run in theirs for a in run.answers if run.cell.drafter == "near"]
    assert all(sum(a.accepted_by_round) + a.rounds == 20 for a in assisted)
    assert sum(a.rounds for a in assisted) < 20 * len(assisted)
    with pytest.raises(UnsupportedError, match="no `generate` of transformers"):
        check_peer(SimpleNamespace(name="a function"))
