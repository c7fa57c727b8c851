"""Penalties, bias and bans on the device: the logits of the host, bit by bit, and its texts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("transformers")

from interpreting import IN_INTERPRETER  # noqa: E402
from tiny import build, noisy_copy  # noqa: E402

import forerun as fr  # noqa: E402
from forerun.drafters import Model, NGram  # noqa: E402
from forerun.gpu.model import GpuModel  # noqa: E402
from forerun.gpu_rounds.edits import MOST_WORDS, TAIL, Edits, edits_law, fits_device  # noqa: E402
from forerun.gpu_rounds.sampled_steps import LazyRows  # noqa: E402
from forerun.kernels.scratch import Outcome  # noqa: E402
from forerun.sampling.options import Bans, Sampling, _adjusted  # noqa: E402

pytestmark = IN_INTERPRETER
VOCAB = 40
CPU = torch.device("cpu")
OPTIONS = [
    Sampling(repetition_penalty=1.3),
    Sampling(repetition_penalty=0.7, logit_bias={3: 1.7, 5: -0.3, 7: float("-inf")}),
    Sampling(presence_penalty=0.31, frequency_penalty=0.17),
    Sampling(presence_penalty=-0.4, frequency_penalty=-0.2, repetition_penalty=1.1),
    Sampling(),
    Sampling(min_tokens=4),
]
WORDS: list[tuple[tuple[int, ...], ...]] = [
    (),
    ((9,), (4, 6)),
    ((1, 2, 3, 8), (3, 8), (6, 6)),
    ((4, 3),),
    (),
    ((3,),),
]
ENDINGS = (0, 11)
PROMPT, OUTPUT = [5, 1, 2], [3, 3, 4]


def request_of(options: Sampling, words: Any, output: list[int], **more: Any) -> Any:
    tokens = [*PROMPT, *output]
    known = {
        "sampling": options,
        "prompt": PROMPT,
        "tokens": tokens,
        "bans": Bans(words, ENDINGS),
        "processors": [],
        "num_logprobs": None,
        "logprobs_of": "model",
    }
    return SimpleNamespace(**{**known, **more})


def expected(options: Sampling, words: Any, row: Any, output: list[int]) -> Any:
    return _adjusted(options, row.numpy(), PROMPT, output, Bans(words, ENDINGS), ())


def example(num_rows: int) -> tuple[Any, list[Any], Any]:
    generator = torch.Generator().manual_seed(num_rows)
    logits = 3 * torch.randn((len(OPTIONS) * num_rows, VOCAB), generator=generator)
    requests = [request_of(*pair, OUTPUT) for pair in zip(OPTIONS, WORDS, strict=True)]
    outputs = torch.full((len(OPTIONS),), len(OUTPUT))
    return logits, requests, outputs


def test_every_slot_of_a_chain_counts_the_drafted_tokens_before_it() -> None:
    num_rows, draft = 4, [6, 6, 3]
    logits, requests, outputs = example(num_rows)
    edits = Edits(len(OPTIONS), VOCAB, CPU)
    edits.put(requests, [request.tokens for request in requests])
    edited = logits.clone()
    drafted = torch.tensor([draft] * len(OPTIONS))
    edits.apply(edited, drafted, outputs, num_rows=num_rows)
    for lane, (options, words) in enumerate(zip(OPTIONS, WORDS, strict=True)):
        for slot in range(num_rows):
            row = lane * num_rows + slot
            wanted = expected(options, words, logits[row], OUTPUT + draft[:slot])
            np.testing.assert_array_equal(edited[row].numpy(), wanted)


def test_nodes_of_a_tree_count_those_on_their_path() -> None:
    paths = [[], [6], [6, 6], [4]]
    logits, requests, outputs = example(len(paths))
    edits = Edits(len(OPTIONS), VOCAB, CPU)
    edits.put(requests, [request.tokens for request in requests])
    edited = logits.clone()
    table = torch.zeros((len(OPTIONS) * len(paths), 2), dtype=torch.int64)
    depths = torch.tensor([len(path) for path in paths] * len(OPTIONS), dtype=torch.int32)
    for row in range(len(table)):
        path = paths[row % len(paths)]
        table[row, : len(path)] = torch.tensor(path, dtype=torch.int64)
    edits.apply(edited, table, outputs, num_rows=len(paths), depths=depths)
    for row in range(len(logits)):
        lane, node = divmod(row, len(paths))
        wanted = expected(OPTIONS[lane], WORDS[lane], logits[row], OUTPUT + paths[node])
        np.testing.assert_array_equal(edited[row].numpy(), wanted)


@pytest.mark.parametrize("kept", [0, 2])
def test_what_a_round_emits_is_counted(kept: int) -> None:
    """As if the lanes had been set to the longer texts; one lane has a fault, one is not in use."""
    logits, requests, outputs = example(1)
    draft, count = [6, 8], len(OPTIONS)
    edits = Edits(count, VOCAB, CPU)
    edits.put(requests, [request.tokens for request in requests])
    outcome = Outcome.allocate(count, CPU)
    outcome.accepted.fill_(kept)
    outcome.extra.fill_(9)
    outcome.fault[0] = 1
    lanes = SimpleNamespace(
        rows=torch.arange(count, dtype=torch.int32), remaining=torch.ones(count, dtype=torch.int32)
    )
    lanes.rows[1] = -1
    edits.note(outcome, torch.tensor([draft] * count), lanes)
    edited = logits.clone()
    emitted = [*draft[:kept], 9]
    moved = outputs + len(emitted)
    moved[:2] = len(OUTPUT)
    edits.apply(edited, torch.zeros((count, 0), dtype=torch.int64), moved, num_rows=1)
    for lane, (options, words) in enumerate(zip(OPTIONS, WORDS, strict=True)):
        output = OUTPUT if lane < 2 else OUTPUT + emitted
        wanted = expected(options, words, logits[lane], output)
        np.testing.assert_array_equal(edited[lane].numpy(), wanted)


def test_which_requests_the_device_samples_for() -> None:
    plain, long = Sampling(), tuple(range(TAIL + 2))
    assert [edits_law(request_of(*pair, [])) for pair in zip(OPTIONS, WORDS, strict=True)] == [
        True, True, True, True, False, True,
    ]  # fmt: skip
    assert fits_device(request_of(plain, (), []))
    assert fits_device(request_of(plain, (long[:-1],), []))
    assert not fits_device(request_of(plain, (long,), []))
    assert not fits_device(request_of(plain, ((1,),) * (MOST_WORDS + 1), []))
    assert fits_device(request_of(plain, (), [], num_logprobs=20))
    assert not fits_device(request_of(plain, (), [], num_logprobs=21))
    assert not fits_device(request_of(plain, (), [], num_logprobs=0, logprobs_of="sampling"))
    assert not fits_device(request_of(OPTIONS[0], (), [], num_logprobs=0))
    assert not fits_device(request_of(plain, (), [], processors=[print]))
    guided = Sampling(grammar=lambda _: [1])
    assert fits_device(request_of(guided, (), []))
    assert not fits_device(request_of(guided, (), [], num_logprobs=0))


# --- texts ---------------------------------------------------------------------------------------

MODEL = build()
TARGET = GpuModel(MODEL)
DRAFT = GpuModel(noisy_copy(MODEL, 0.15))
PROMPTS = [[1, 2, 3], [4, 5, 4, 5, 4], [6]]
EDITED = [
    Sampling(temperature=0.8, seed=3, repetition_penalty=1.5, presence_penalty=0.5),
    Sampling(temperature=0.8, seed=3, bad_words=[[4], [5, 4]], logit_bias={6: 2.0}),
    Sampling(temperature=0.0, seed=3, frequency_penalty=1.5, min_tokens=3),
]


def texts(**how: Any) -> list[list[int]]:
    answers = fr.generate(
        TARGET, PROMPTS, sampling=EDITED, max_new_tokens=4, stop_tokens=[7], ignore_eos=True,
        **{"drafter": None} | how,
    )  # fmt: skip
    return [answer.tokens for answer in answers]


@pytest.mark.slow  # half a minute in the interpreter
def test_edited_requests_stay_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The texts of the host (which log-probabilities ask for), with drafts and without."""
    host = texts(logprobs=0)
    monkeypatch.delattr(LazyRows, "__getitem__")
    assert texts() == host
    assert texts(drafter=Model(DRAFT), draft_length=2) == host


@pytest.mark.slow
def test_edited_requests_with_other_drafters(monkeypatch: pytest.MonkeyPatch) -> None:
    host = texts(logprobs=0)
    monkeypatch.delattr(LazyRows, "__getitem__")
    assert texts(drafter=NGram(min_n=1), draft_length=2) == host
    assert texts(drafter=Model(DRAFT), draft_length=3, tree=5) == host
    assert texts(drafter=Model(DRAFT), draft_length=2, batch_size=2) == host
