"""`Heads` in captured rounds, in Triton's interpreter; graphs are in test_heads_rounds_gpu.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("transformers")

import array_api_compat as compat  # noqa: E402
import numpy as np  # noqa: E402
from interpreting import IN_INTERPRETER  # noqa: E402
from tiny import build, stored  # noqa: E402
from tiny_heads import save_drafter  # noqa: E402

import forerun as fr  # noqa: E402
from forerun import rules  # noqa: E402
from forerun.drafters import Forced, Heads  # noqa: E402
from forerun.drafters.heads.files import save  # noqa: E402
from forerun.drafters.heads.listening import Listening  # noqa: E402
from forerun.engine.answer_options import AnswerOptions  # noqa: E402
from forerun.engine.engine import Engine  # noqa: E402
from forerun.engine.request import Request  # noqa: E402
from forerun.generation.choosing import BESIDE, usual_drafter  # noqa: E402
from forerun.generation.intake import make_request  # noqa: E402
from forerun.gpu.heads_rows import HeadsRows  # noqa: E402
from forerun.gpu.heads_storage import HeadsStorage  # noqa: E402
from forerun.gpu.model import GpuModel  # noqa: E402
from forerun.gpu.pool import DeviceMemoryError, Pool  # noqa: E402
from forerun.gpu.weights import Weights  # noqa: E402
from forerun.gpu_rounds.choosing import executor_of  # noqa: E402
from forerun.gpu_rounds.device_heads import DeviceHeads, device_heads  # noqa: E402
from forerun.gpu_rounds.draft_steps import HeadsSteps  # noqa: E402
from forerun.gpu_rounds.executor import Captured  # noqa: E402
from forerun.gpu_rounds.host_drafts import HostDrafts  # noqa: E402
from forerun.gpu_rounds.lanes import Lane, Lanes  # noqa: E402
from forerun.gpu_rounds.sampled_steps import LazyRows  # noqa: E402
from forerun.gpu_rounds.tree_steps import TreeSteps  # noqa: E402
from forerun.gpu_rounds.tree_tables import TreeTables  # noqa: E402
from forerun.kernels.scratch import Outcome  # noqa: E402
from forerun.noise.race import exponentials, seed_key  # noqa: E402
from forerun.trees.tree import Tree  # noqa: E402

pytestmark = IN_INTERPRETER
TARGET = GpuModel(build(num_hidden_layers=3, vocab_size=50))
XP = compat.array_namespace(np.empty(0))
PROMPTS = [[1, 2, 3], [4, 5, 4, 5, 4], [6]]
LIMITS = [1, 3, 2]
SAMPLING = fr.Sampling(temperature=0.8, seed=3)


@cache
def heads() -> Heads:
    """One that knows 40 of the 50 tokens; what it attends to shows in its laws."""
    with TemporaryDirectory() as folder:
        trained = save_drafter(Path(folder), TARGET.model, like_target=True)
        save(Path(folder), replace(trained, weights=attentive(trained.weights)))
        return Heads(folder)


def attentive(weights: Any) -> Any:
    return {name: 8 * w if name == "output.weight" else w for name, w in weights.items()}


def generate(**options: Any) -> list[fr.Generation]:
    options = {"drafter": heads(), "sampling": SAMPLING, "max_new_tokens": LIMITS} | options
    made: list[fr.Generation] = fr.generate(TARGET, PROMPTS, ignore_eos=True, **options)
    return made


def texts(answers: Sequence[fr.Generation]) -> list[list[int]]:
    return [answer.tokens for answer in answers]


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    """By plain decoding, one request after the other."""
    return texts(generate(drafter=None, batch_size=1))


def engine_of(num_rows: int = 2, **options: Any) -> Engine:
    options = {"drafter": heads(), "draft_length": 2, "rule": rules.get("match")} | options
    return Engine(TARGET, executor_of=executor_of, num_rows=num_rows, **options)


def request_of(prompt: Sequence[int], limit: int, **options: Any) -> Request:
    return make_request(
        TARGET, list(prompt), AnswerOptions(SAMPLING, max_new_tokens=limit, **options)
    )


def finish(engine: Engine) -> None:
    while engine.busy:
        engine.step()


# --- the same text -------------------------------------------------------------------------------


@pytest.mark.slow
def test_requests_come_and_go(plain: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Three requests of different lengths in two rows; the drafter is never asked on the host."""
    monkeypatch.setattr(Listening, "begin", None)
    answers = generate(draft_length=2, batch_size=2)
    assert texts(answers) == plain
    assert sum(answer.stats.drafted for answer in answers) > 0
    assert not any(answer.stats.notes for answer in answers)


GUIDED = fr.Sampling(temperature=0.9, seed=1, grammar=lambda output: range(len(output) % 2, 50, 2))
SLOW: dict[str, dict[str, Any]] = {
    "alone": {"draft_length": 3, "batch_size": 1},
    "as long as it pays": {},
    "greedy": {"draft_length": 2, "sampling": fr.Sampling(temperature=0.0)},
    "top-k": {"draft_length": 2, "sampling": fr.Sampling(temperature=0.9, seed=1, top_k=5)},
    "penalties": {
        "draft_length": 2,
        "sampling": fr.Sampling(
            temperature=0.9, seed=1, repetition_penalty=1.3, logit_bias={7: 2.0, 9: float("-inf")}
        ),
    },
    "a grammar": {"draft_length": 2, "sampling": GUIDED},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_the_text_does_not_depend_on_the_draft(name: str) -> None:
    how = SLOW[name]
    assert texts(generate(**how)) == texts(generate(**how | {"drafter": None, "batch_size": 1}))


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["ratio", "block"])
def test_rules_that_divide_by_the_drafts_law(rule: str) -> None:
    """They count, and give the same texts again; the law is in test_heads_rounds_gpu.py."""
    answers = generate(draft_length=2, rule=rule)
    assert texts(answers) == texts(generate(draft_length=2, rule=rule))
    assert [len(answer.tokens) for answer in answers] == LIMITS
    for answer in answers:
        assert 0 <= answer.stats.accepted <= answer.stats.drafted
        assert answer.stats.accepted + answer.stats.rounds == len(answer.tokens)


def test_no_hidden_states_are_kept_that_nobody_reads() -> None:
    """Of a prompt they take a sixth of the memory of its keys, beside the pool."""
    engine = engine_of()
    engine.submit(request_of(PROMPTS[1], 40))
    engine.step()
    state: Any = engine._executor._state  # type: ignore[attr-defined]
    assert state.listener.lengths[0] > 0
    assert state._history is None
    assert not any(len(seen) for seen in state._seen)
    engine.close()


def test_which_rounds_draft_on_the_device() -> None:
    def kind(**options: Any) -> Any:
        executor: Any = engine_of(**options)._executor
        return type(getattr(executor, "_drafter", None))

    assert kind() is kind(rule=rules.get("ratio")) is kind(drafter=Forced(heads())) is DeviceHeads
    assert kind(tree=4, rule=rules.get("match")) is DeviceHeads


@pytest.mark.slow
def test_a_request_that_needs_the_host_beside_one_that_does_not(
    plain: list[list[int]],
) -> None:
    """Both as alone, and both with drafts."""
    told = request_of(PROMPTS[1], LIMITS[1], logprobs=0, logprobs_of="sampling")
    untold = request_of(PROMPTS[1], LIMITS[1])
    engine = engine_of()
    for request in (told, untold):
        engine.submit(request)
    finish(engine)
    engine.close()
    assert untold.output == told.output == plain[1]
    assert told.stats.drafted > 0
    assert untold.stats.drafted > 0
    assert not told.stats.notes


# --- what the network computes -------------------------------------------------------------------


def fresh(text: Sequence[int]) -> tuple[Any, HeadsRows]:
    """Rows that have read all of a text but its last token, and those of its drafter."""
    state = TARGET.start(1, 64)
    TARGET.watch(state, heads().layers)
    listening = heads().start(TARGET, 1, 64)
    runner: Any = listening.runner
    pages = state.storage.pages
    storage = HeadsStorage(runner.network, runner.embedding, heads().tokens, pages, runner)
    state.listener = rows = HeadsRows(storage, 1)
    with torch.inference_mode():
        state.feed([(0, 0, text[:-1])])
        rows.extend([(0, at, text[at + 1]) for at in range(len(text) - 1)])
    return state, rows


def test_draft_steps_give_the_laws_of_the_torch_runner() -> None:
    """Three steps after a text, the guesses of the first two given."""
    text, guesses = [7, 3, 3, 9, 11, 2], [8, 5]
    state, rows = fresh(text)
    steps, lanes = HeadsSteps(rows.storage, 1, 1), Lanes(1, torch.device("cpu"))
    lanes.put([Lane(0, text[-2], text[-1], len(text) - 1, 0, 9, 3, 0.8, 0.8, SAMPLING)], [3])
    sampled, drafts = Outcome.allocate(1, "cpu"), torch.zeros((1, 3), dtype=torch.int64)
    ours, logits = [], rows.storage.logits("step", 1)
    with torch.inference_mode():
        for step in range(3):
            steps.queue(step, lanes, sampled, drafts, logits)
            ours.append(logits[0].clone())
            sampled.extra.fill_(guesses[step] if step < 2 else 0)
    assert drafts.tolist() == [[*guesses, 0]]
    runner: Any = heads().start(TARGET, 1, 64).runner
    theirs_of = runner.start(1, 64)
    states = state._seen[0]
    theirs = [runner.extend(theirs_of, [0], [states], [text[1:]])[0]]
    for node, guess in enumerate(guesses):
        theirs.append(runner.step(theirs_of, [0], [node - 1], [guess])[0])
    known = torch.from_numpy(heads().tokens)
    others = torch.ones(50, dtype=torch.bool)
    others[known] = False
    for mine, other in zip(ours, theirs, strict=True):
        expected = torch.from_numpy(other)
        assert (mine[known] - expected).abs().max() < 0.02 * expected.std()
        assert torch.isneginf(mine[others]).all()


def check_entries(engine: Engine, row: int, text: Sequence[int]) -> None:
    """A row's drafter has the features, keys and values of a text that is read at once."""
    executor: Any = engine._executor
    rows: HeadsRows = executor._drafter.rows
    count = len(text) - 1
    assert rows.lengths[row] == executor._state.lengths[row] == count
    _, others = fresh(text)
    both = [
        [*stored(storage, row, count), features(storage, row, count)]
        for storage, row in ((rows.storage, row), (others.storage, 0))
    ]
    for mine, other in zip(*both, strict=True):
        torch.testing.assert_close(mine, other, rtol=0.02, atol=0.02)


def features(storage: HeadsStorage, row: int, count: int) -> Any:
    """Of the first tokens of a row, (count, D)."""
    pages = [page.number for page in storage.pages.of_row(row, count)]
    return storage.features[pages].flatten(0, 1)[:count]


@pytest.mark.parametrize(
    "lengths",
    [(2, 2, 2, 2), (3, 3, 0, 0, 2, 2, 2)],
    ids=["K 2", "changing"],
)
@pytest.mark.slow
def test_every_round_tells_the_drafter_what_was_emitted(lengths: Sequence[int]) -> None:
    """Whatever was accepted of a draft, and when the drafter pauses."""
    engine = engine_of(draft_length=max(lengths))
    first, second = request_of(PROMPTS[0], 40), request_of(PROMPTS[2], 40)
    engine.submit(first)
    for number, length in enumerate(lengths):
        engine._planner._length = length
        if number == 1:
            engine.submit(second)
        engine.step()
    accepted = [sum(request.stats.accepted_by_round) for request in (first, second)]
    assert sum(accepted) > 0
    executor: Any = engine._executor
    executor._flight = None
    for row, request in enumerate((first, second)):
        check_entries(engine, row, request.tokens)
    engine.close()


@pytest.mark.slow
def test_a_prompt_that_is_read_in_the_rounds_of_others_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its features are kept by the rounds that read it; it is drafted for from its second round
    on."""
    engine = engine_of(num_rows=3)
    requests = [request_of(prompt, 40) for prompt in PROMPTS[:2]]
    for request in requests:
        engine.submit(request)
    engine.step()
    executor: Any = engine._executor
    fed: list[Any] = []
    monkeypatch.setattr(executor._state, "feed", fed.extend)
    requests.append(request_of([(3 * place) % 50 for place in range(24)], 40))
    engine.submit(requests[2])
    for _ in range(5):
        engine.step()
    assert not fed
    assert requests[2].stats.drafted_by_round[:2] == [0, 2]
    executor._flight = None
    for row, request in enumerate(requests):
        check_entries(engine, row, request.tokens)
    engine.close()


@pytest.mark.slow
def test_a_text_that_begins_like_another_one() -> None:
    """Its row takes over what another row stores, with the features."""
    begin = [1 + at % 9 for at in range(40)]
    engine = engine_of()
    first, second = request_of([*begin, 3], 30), request_of([*begin, 4], 30)
    engine.submit(first)
    engine.step()
    engine.submit(second)
    for _ in range(3):
        engine.step()
    assert second.stats.drafted > 0
    check_entries(engine, 1, second.tokens)
    engine.close()


# --- memory --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_without_memory_for_its_keys_drafts_come_from_the_host(
    plain: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise DeviceMemoryError("no memory")

    monkeypatch.setattr(TARGET._pass, "idle", [])
    monkeypatch.setattr(Pool, "part", refuse)
    monkeypatch.delattr(LazyRows, "__getitem__")
    answers = generate(draft_length=2)
    assert texts(answers) == plain
    assert not any(answer.stats.notes for answer in answers)


def test_so_they_do_without_memory_for_its_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise torch.cuda.OutOfMemoryError("no memory")

    monkeypatch.setattr(TARGET._pass, "idle", [])
    monkeypatch.setattr(HeadsStorage, "__init__", refuse)
    engine = engine_of()
    assert type(engine._executor) is HostDrafts
    engine.close()


def test_the_usual_drafter_is_one_that_drafts_within_the_rounds(tmp_path: Path) -> None:
    model = GpuModel(TARGET.model)
    save_drafter(tmp_path / BESIDE, model.model)
    model.name = str(tmp_path)
    assert type(usual_drafter(model)) is Heads


def test_what_a_pass_reads_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices are asked for several times in every round."""
    engine = engine_of(draft_length="auto")
    monkeypatch.setattr(Weights, "num_bytes", None)
    rungs = engine._executor.ladder(2)  # type: ignore[attr-defined]
    assert rungs.costs == sorted(rungs.costs)
    assert rungs.costs[0] == 1.0 < rungs.costs[1]
    engine.close()


def test_the_storage_of_a_drafter_stays_with_its_targets() -> None:
    """So a later engine finds its captured rounds; another drafter gets storage of its own."""
    engine = engine_of()
    executor: Any = engine._executor
    assert isinstance(executor, Captured)
    storage = executor._drafter.rows.storage
    state = executor._state
    again = device_heads(heads(), engine._drafting, state)
    assert again is not None
    assert again.heads.storage is storage
    assert again.heads.lengths == [0, 0]
    heads()._runners.clear()
    other = engine_of()
    assert device_heads(heads(), other._drafting, state).heads.storage is not storage  # type: ignore[union-attr]
    for made in (engine, other):
        made.close()


# --- trees ---------------------------------------------------------------------------------------

TREE = Tree((-1, -1, 0, 0, 1, 2))  # 2 children of the text, 2 and 1 of these, and a third level


def test_a_tree_is_drafted_and_followed_on_the_device(
    plain: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Listening, "begin", None)
    answers = generate(tree=TREE, batch_size=2)
    assert texts(answers) == plain
    assert not any(answer.stats.notes for answer in answers)
    assert max(answer.stats.drafted for answer in answers) > 3


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SLOW])
def test_the_text_does_not_depend_on_the_tree(name: str) -> None:
    how = {**SLOW[name], "max_new_tokens": 4}
    drafted = generate(**how | {"tree": 6})
    assert texts(drafted) == texts(generate(**how | {"drafter": None, "batch_size": 1}))
    assert not any(answer.stats.notes for answer in drafted)


@pytest.mark.slow
def test_every_round_with_a_tree_tells_the_drafter_what_was_emitted() -> None:
    """Keys of the accepted path stand where the text goes on, the target's and the drafter's."""
    engine = engine_of(tree=TREE)
    first, second = request_of(PROMPTS[0], 40), request_of(PROMPTS[2], 40)
    engine.submit(first)
    for number in range(4):
        if number == 1:
            engine.submit(second)
        engine.step()
    executor: Any = engine._executor
    assert max(max(request.stats.accepted_by_round) for request in (first, second)) > 0
    for row, request in enumerate((first, second)):
        check_entries(engine, row, request.tokens)
        count = len(request.tokens) - 1
        state, _ = fresh(request.tokens)
        both = stored(executor._state.storage, row, count), stored(state.storage, 0, count)
        for mine, other in zip(*both, strict=True):
            torch.testing.assert_close(mine, other, rtol=0.02, atol=0.02)
    engine.close()


@pytest.mark.parametrize("tree", [None, TREE], ids=["chain", "tree"])
def test_a_decision_that_waits_for_masks_writes_nothing_for_who_has_left(tree: Any) -> None:
    """The row may be another request's by then, or share pages with one."""
    engine = engine_of(tree=tree)
    asked = AnswerOptions(GUIDED, max_new_tokens=40)
    requests = [make_request(TARGET, prompt, asked) for prompt in PROMPTS[:2]]
    for request in requests:
        engine.submit(request)
    engine.step()
    executor: Any = engine._executor
    flight, state = executor._flight, executor._state
    assert not flight.is_decided

    def kept() -> list[Any]:
        parts = [*state.storage.cache[:2], *state.storage.heads._paged.tensors]
        pages = [[page.number for page in state.storage.pages.of_row(row, 64)] for row in (0, 1)]
        return [torch.cat([part[:, own].flatten() for part in parts]) for own in pages]

    before = kept()
    with torch.inference_mode():
        flight.leave([0])
        flight.decide({})
    flight.wait()
    after = kept()
    assert torch.equal(before[0], after[0])
    assert not torch.equal(before[1], after[1])
    executor._flight = None
    engine.close()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_nodes_of_a_tree_arrive_first_by_the_torch_runners_laws(temperature: float) -> None:
    text, output, seed = [7, 3, 3, 9, 11, 2], 4, 3
    state, rows = fresh(text)
    tables, lanes = TreeTables(TREE), Lanes(1, torch.device("cpu"))
    tree = tables.tree
    lane = Lane(
        0, text[-2], text[-1], len(text) - 1, output, 9, seed, temperature, temperature, SAMPLING
    )
    lanes.put([lane], [3])
    drafts = torch.zeros((1, len(tree)), dtype=torch.int64)
    with torch.inference_mode():
        TreeSteps(rows.storage, tables, 1, 1).queue(lanes, drafts)
    tokens = drafts[0].tolist()
    runner: Any = heads().start(TARGET, 1, 64).runner
    theirs = runner.start(1, 64)
    laws = {-1: runner.extend(theirs, [0], [state._seen[0]], [text[1:]])[0].copy()}
    number = {-1: -1}
    for node in range(len(tree)):
        number[node] = len(number) - 1
        parent = number[tree.parents[node]]
        laws[node] = runner.step(theirs, [0], [parent], [tokens[node]])[0].copy()
    known, key = heads().tokens, seed_key(XP, [seed], None)
    for node in (-1, *range(len(tree))):
        children, scores = [tokens[child] for child in tree.children[node]], laws[node]
        if temperature:
            position = np.array([output + tables.depths[node + 1]])
            noise = exponentials(XP, key, position, known[None])[0]
            scores = scores / temperature - np.log(noise)
        assert children == known[(-scores).argsort()][: len(children)].tolist()
    last = tables.levels[-1].nodes
    ours = rows.storage.narrow_logits(len(last))
    expected = torch.from_numpy(np.stack([laws[node] for node in last]))
    assert (ours - expected).abs().max() < 0.02 * expected.std()


def test_which_trees_are_drafted_on_the_device() -> None:
    """Up to 128 nodes and texts in a pass, under `match`; a number of nodes is a limit."""

    def shape(rows: int = 1, tree: int | Tree = 16, **options: Any) -> Tree | None:
        engine = engine_of(rows, tree=tree, **options)
        captures = getattr(engine._executor, "_captures", None)
        return None if captures is None else captures.tree

    assert shape(draft_length="auto").height <= 5  # type: ignore[union-attr]
    assert [len(shape(rows) or ()) for rows in (4, 5, 16)] == [16, 15, 7]
    assert shape(8, Tree.chain(16)) is None
    assert shape(8, Tree.chain(5)) == Tree.chain(5)
    assert shape(tree=Tree((-1, 0, -1))) == Tree((-1, -1, 0))
    assert shape(tree=Tree((-1, 0)), rule=rules.get("siblings")) is None
    assert len(shape(tree=40, draft_length=5) or ()) == 26
    assert shape(rows=129) is shape(draft_length=32) is None


def test_the_tables_of_a_tree() -> None:
    made = TreeTables(Tree((-1, 0, 1, -1, 3, 1)))
    assert made.tree == Tree((-1, -1, 0, 1, 2, 2))
    assert made.depths == [0, 1, 1, 2, 2, 3, 3]
    assert made.paths[0] == [0, 0, 0]
    assert made.paths[6] == [1, 3, 6]
    assert made.levels[0][3:] == ([0], [2])
    assert made.levels[1] == ([0, 1], [0, 0], [[0], [1]], [2, 3], [1, 1])
    assert made.levels[2] == ([2], [0], [[0, 2]], [4], [2])
    assert len(made.levels) == 3
