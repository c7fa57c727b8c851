"""What the target is heard to say is what it says; and it is all there afterwards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from test_preflight import tiny
from tiny_heads import VOCAB_SIZE, tiny_llama
from tiny_training import some_texts, tiny_tokenizer

from forerun.base.errors import InputError
from forerun.train import sampler
from forerun.train.chat import Chat
from forerun.train.collection import Collection, collect, count_answers
from forerun.train.shards import list_shards, read, write, write_shard
from forerun.train.stages import Assignment, Scale, Stages, answer_each

ENDING = 2
NUM = 2000
PROMPTS = [[5], [9, 8, 7, 6, 5, 4, 3], [11, 12, 13], [20, 21, 22, 23], [30, 31]]


def answers(model, **how):
    settings = {"endings": [ENDING], "temperature": 0.0, "num_rows": 2, "seed": 0}
    found = answer_each(model, PROMPTS, max_new_tokens=9, **settings | how)
    return {index: (text, start) for index, text, start in found}


def test_greedy_answers_are_those_of_generate():
    """Fewer rows than prompts: rows are used again, beside others of another length."""
    model = tiny_llama(seed=1)
    found = answers(model)
    assert sorted(found) == list(range(len(PROMPTS)))
    for index, prompt in enumerate(PROMPTS):
        ids = torch.tensor([prompt])
        expected = model.generate(ids, max_new_tokens=9, do_sample=False, eos_token_id=ENDING)
        assert found[index] == (expected[0].tolist(), len(prompt))


def without_window(query, key, value, positions, scaling):
    """What the kernel computes: attention to all slots up to a position."""
    mask = torch.arange(key.shape[2]) <= positions[:, :, None, None]
    scores = (query @ key.transpose(2, 3)[:, :1] * scaling).masked_fill(~mask, -torch.inf)
    return (scores.softmax(-1) @ value[:, :1]).transpose(1, 2)


@pytest.mark.parametrize(
    ("kind", "has_kernel"),
    [
        ("gemma3_text", True),
        ("mistral", False),
        pytest.param("gemma3_text", False, marks=pytest.mark.slow),
        pytest.param("mistral", True, marks=pytest.mark.slow),
    ],
)
def test_greedy_answers_keep_to_a_sliding_window(kind, has_kernel, monkeypatch):
    """Texts that end inside the window of 8, reach its end while they are answered, or begin
    beyond it; a longer one is in the same pass.  The kernel knows no window."""
    monkeypatch.setattr(sampler, "_has_kernel", lambda query: has_kernel)
    monkeypatch.setattr(sampler, "by_kernel", without_window)
    model = tiny(kind, initializer_range=0.3, num_key_value_heads=1)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, VOCAB_SIZE, size).tolist() for size in (1, 3, 7, 8, 9, 20, 41)]
    how = {"max_new_tokens": 9, "do_sample": False, "eos_token_id": None}
    settings = {"endings": [], "temperature": 0.0, "num_rows": 3, "seed": 0}
    found = {i: text for i, text, _ in answer_each(model, prompts, max_new_tokens=9, **settings)}
    for index, prompt in enumerate(prompts):
        ids = torch.tensor([prompt])
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), **how)
        assert found[index] == expected[0].tolist()


def test_sampled_answers_follow_the_law():
    model = tiny_llama(seed=1)
    found = answer_each(
        model, [[5, 6]] * NUM, endings=[], temperature=0.7, num_rows=NUM, max_new_tokens=1, seed=0
    )
    counts = np.bincount([text[2] for _, text, _ in found], minlength=VOCAB_SIZE)
    with torch.no_grad():
        logits = model(torch.tensor([[5, 6]])).logits[0, -1].double()
    law = (logits / 0.7).softmax(-1).numpy()
    spread = np.sqrt(NUM * law * (1 - law))
    assert counts.sum() == NUM
    assert (abs(counts - NUM * law) < 5 * spread + 1).all()


def gather(folder: Path, prompts, context=48, num_answer_tokens=250, report=lambda gained: None):
    """The tokens that were gained, first those that were there."""
    chat = Chat.of(tiny_tokenizer())
    collection = Collection(folder, [chat.ask(prompt) for prompt in prompts])
    told = [collection.num_answer_tokens]
    seed = 1000 * collection.num_shards
    scales = [Scale(4, context, 0.6), Scale(2, 60, 0.4)]
    work = Assignment(prompts, collection.asked, [ENDING], scales, 320, seed)

    def tell(gained):
        told.append(gained)
        report(gained)

    collect(
        Stages(tiny_llama(seed=1), chat, work),
        collection,
        num_answer_tokens=num_answer_tokens,
        seconds=60.0,
        report=tell,
    )
    return told


def test_collected_texts_are_prompts_and_answers(tmp_path):
    told = gather(tmp_path, ["w1 w2", "w3 w4 w5"])
    spoken = [each for file in list_shards(tmp_path) for each in read(file)]
    assert sum(told) == count_answers(spoken) >= 250
    openings = {(1, 5, 6, 2, 1), (1, 7, 8, 9, 2, 1)}
    for each in spoken:
        first = int(np.argmax(each.is_answer))
        assert 0 < first < len(each) <= 60
        assert each.is_answer[-1]
        asked = tuple(each.tokens[:first].tolist())
        assert asked in openings or asked[0] == 1  # or the model wrote the question
    assert any(tuple(each.tokens[:5].tolist()) in openings for each in spoken)


def test_collecting_goes_on_with_something_new(tmp_path):
    """The greedy answer to the prompt, too, is not asked for again."""
    gather(tmp_path, ["w1 w2"], num_answer_tokens=60)
    told = gather(tmp_path, ["w1 w2"], num_answer_tokens=150)
    assert told[0] >= 60  # what is there counts
    before, after = (list(map(tuple, texts_of(file))) for file in list_shards(tmp_path))
    assert after
    assert not set(after) & set(before)


def texts_of(file: Path) -> list[list[int]]:
    return [text.tokens.tolist() for text in read(file)]


def test_an_interrupt_keeps_what_was_said(tmp_path):
    said = []

    def report(gained):
        said.append(gained)
        if sum(said) > 60:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gather(tmp_path, ["w1 w2"], report=report)
    kept = [each for file in list_shards(tmp_path) for each in read(file)]
    assert count_answers(kept) == sum(said)


def test_prompts_that_never_fit_are_told(tmp_path):
    with pytest.raises(InputError, match="fits the 48 tokens"):
        gather(tmp_path, [" ".join(["w1"] * 70)])


def test_shards_are_read_as_they_were_written(tmp_path):
    texts = some_texts()
    file = write_shard(tmp_path, texts)
    for one, other in zip(texts, read(file), strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_array_equal(one.is_answer, other.is_answer)
        assert (one.group, one.temperature) == (other.group, other.temperature)


def test_a_shard_cut_short_is_explained(tmp_path):
    file = tmp_path / "shard-00000.npz"
    write(file, some_texts())
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(InputError, match="cannot be read"):
        read(file)
