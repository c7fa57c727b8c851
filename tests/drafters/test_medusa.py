"""Medusa heads: their guesses against the plain formula, the texts, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny_heads import VOCAB_SIZE, tiny_llama

import forerun as fr
from forerun.base.errors import InputError, UnsupportedError
from forerun.drafters import Medusa
from forerun.drafters.base import Outcome
from forerun.drafters.medusa import MedusaRunner
from forerun.generation.choosing import make_drafter
from forerun.testing import Witness, check_drafter
from forerun.trees.tree import Tree

WIDTH, NUM_HEADS = 32, 3
PROMPTS = [[5, 9, 3], [7] * 11, [1, 2, 30, 4, 50, 6]]
GREEDY = fr.Sampling(temperature=0.0)


def save(folder: Path, *, num_layers: int = 1, as_pickle: bool = True, **changes: Any) -> Path:
    """Heads that begin as the target's own, as Medusa's training does."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    head, tensors = tiny_llama(seed=3).get_output_embeddings().weight.detach(), {}
    for number in range(NUM_HEADS):
        for layer in range(num_layers):
            tensors[f"{number}.{layer}.linear.weight"] = torch.randn(WIDTH, WIDTH) * 0.1
            tensors[f"{number}.{layer}.linear.bias"] = torch.randn(WIDTH) * 0.1
        tensors[f"{number}.{num_layers}.weight"] = head.clone() + 0.1 * number
    tensors = {name: value for name, value in (tensors | changes).items() if value is not None}
    about = {"medusa_num_heads": NUM_HEADS, "medusa_num_layers": num_layers}
    (folder / "config.json").write_text(json.dumps(about))
    if as_pickle:
        torch.save(tensors, folder / "medusa_lm_head.pt")
    else:
        save_file(tensors, folder / "medusa_lm_head.safetensors")
    return folder


def expected(folder: Path, num_layers: int, text: list[int], head: int) -> Any:
    """Logits of a head after a text, whose last token the target has not seen."""
    model = tiny_llama(seed=3)
    tensors = torch.load(folder / "medusa_lm_head.pt")
    with torch.no_grad():
        hidden = model.model(torch.tensor([text[:-1]])).last_hidden_state[0, -1]
        for layer in range(num_layers):
            at = f"{head}.{layer}.linear."
            inner = tensors[f"{at}weight"] @ hidden + tensors[f"{at}bias"]
            hidden = hidden + inner * torch.sigmoid(inner)
        return (tensors[f"{head}.{num_layers}.weight"] @ hidden).numpy()


@pytest.mark.parametrize("num_layers", [1, 2])
def test_guesses_are_the_likeliest_of_each_head(num_layers, target, tmp_path):
    folder = save(tmp_path, num_layers=num_layers)
    witness = Witness(Medusa(folder), VOCAB_SIZE)
    how = {"sampling": GREEDY, "max_new_tokens": 8, "ignore_eos": True, "draft_length": 5}
    found = fr.generate(target, PROMPTS, drafter=witness, **how)
    plain = fr.generate(target, PROMPTS, drafter=None, **how | {"draft_length": "auto"})
    assert [each.tokens for each in found] == [each.tokens for each in plain]
    drafts = [each for each in witness.seen if each.guess.tokens]
    assert max(len(each.guess.tokens) for each in drafts) == NUM_HEADS
    for each in drafts:
        for head, token in enumerate(each.guess.tokens):
            assert token == expected(folder, num_layers, list(each.text), head).argmax()


@pytest.mark.parametrize("tree", [None, 9])
@pytest.mark.parametrize("rule", ["match", "ratio"])
def test_rules_and_trees(rule, tree, tmp_path):
    target = fr.wrap(tiny_llama(seed=3))
    sampling = fr.Sampling(temperature=0.8, seed=1)
    how = {"sampling": sampling, "max_new_tokens": 10, "ignore_eos": True}
    if rule == "ratio" and tree:  # rules with coins want the shape beforehand
        rule, tree = "siblings", Tree.of_branching((2, 2))
    found = fr.generate(
        target, PROMPTS, drafter=f"medusa:{save(tmp_path)}", rule=rule, tree=tree, draft_length=3,
        **how,
    )  # fmt: skip
    assert not any(each.stats.notes for each in found)
    if rule == "match":
        plain = fr.generate(target, PROMPTS, drafter=None, **how)
        assert [each.tokens for each in found] == [each.tokens for each in plain]


@pytest.mark.parametrize("target", ["lean"], indirect=True)
def test_the_promises_of_every_drafter(target, tmp_path):
    folder = save(tmp_path, as_pickle=False)
    check_drafter(lambda: Medusa(folder), target, prompts=PROMPTS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"2.0.linear.bias": None}, r"promises 3 Medusa heads.*2\.block\.0\.bias is missing"),
        ({"2.1.weight": None}, r"2\.head\.weight is missing.*Received \d+ tensors"),
        ({"1.1.weight": torch.ones(VOCAB_SIZE, 9)}, r"1\.head\.weight is of another shape"),
        ({"1.0.linear.bias": torch.full((WIDTH,), np.nan)}, "holds NaN"),
        ({"0.1.weight": torch.ones(VOCAB_SIZE, WIDTH, dtype=torch.int8)}, "holds whole numbers"),
        ({"token_map": torch.arange(40)}, "vocab_size None"),
        ({"token_map": torch.arange(0)}, "no list of token ids"),
        ({"token_map": torch.zeros(4, 2, dtype=torch.long)}, "no list of token ids"),
        ({"token_map": torch.ones(40)}, "no list of token ids"),
        ({"0.1.weight": torch.ones(VOCAB_SIZE)}, r"0\.head\.weight is of another shape"),
        ({"0.0.linear.weight": torch.tensor(1.0)}, r"0\.block\.0\.weight is of another shape"),
    ],
)
def test_damaged_heads_are_refused(changes, message, tmp_path):
    with pytest.raises(InputError, match=message):
        Medusa(save(tmp_path, **changes))


@pytest.mark.parametrize("name", ["0.prefix_layernorm.weight", "rotary.inv_freq"])
def test_tensors_that_nobody_knows_are_refused(name, tmp_path):
    folder = save(tmp_path, **{name: torch.ones(WIDTH)})
    with pytest.raises(UnsupportedError, match=f"nothing is known of {name}"):
        Medusa(folder)


@pytest.mark.parametrize("scale", ["abc", 0, float("inf"), True])
def test_a_scale_is_a_positive_number(scale, tmp_path):
    about = {"medusa_num_heads": NUM_HEADS, "medusa_num_layers": 1, "logit_scale": scale}
    (save(tmp_path) / "config.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match=r"logit_scale in .* is no positive number"):
        Medusa(tmp_path)


def test_only_the_heads_of_a_draft_are_run(tmp_path, monkeypatch):
    """A draft of one guess costs one head."""
    run, head = [], MedusaRunner.head
    monkeypatch.setattr(MedusaRunner, "head", lambda *given: run.append(given[1]) or head(*given))
    how = {"sampling": GREEDY, "max_new_tokens": 6, "ignore_eos": True, "draft_length": 1}
    fr.generate(fr.wrap(tiny_llama(seed=3)), PROMPTS[0], drafter=Medusa(save(tmp_path)), **how)
    assert set(run) == {0}


def test_only_the_last_hidden_state_is_kept(tmp_path):
    drafter, target = Medusa(save(tmp_path)), fr.wrap(tiny_llama(seed=3))
    state = drafter.start(target, 1, 500)
    drafter.enter(state, 0, list(range(50)), 50)
    for processed in (20, 49):  # the second part does not follow upon the first
        drafter.observe(
            state, [Outcome(0, 0, states=torch.randn(15, WIDTH), num_processed=processed)]
        )
        assert state.can_draft(0)
        ((kept, following),) = state._heard[0].waiting
        assert kept.untyped_storage().nbytes() == 4 * WIDTH
        assert following == [processed]


def test_a_head_that_all_share_is_stored_once(tmp_path):
    folder = save(tmp_path)
    about = {"medusa_num_heads": NUM_HEADS, "medusa_num_layers": 1, "original_lm_head": True}
    (folder / "config.json").write_text(json.dumps(about))
    runner = Medusa(folder).fit(fr.wrap(tiny_llama(seed=3)))
    assert len({head[-1].data_ptr() for head in runner._heads}) == 1


@pytest.mark.parametrize(
    ("stored", "message"),
    [([torch.ones(2)], "holds no tensors by name"), ({"a": [1]}, "more than tensors")],
)
def test_a_pickle_is_read_as_tensors_alone(stored, message, tmp_path):
    torch.save(stored, save(tmp_path) / "medusa_lm_head.pt")
    with pytest.raises(InputError, match=message):
        Medusa(tmp_path)


@pytest.mark.parametrize("kept", [None, 40])
def test_the_layout_of_vllm_is_the_same_drafter(kept, tmp_path):
    """Other names, no biases, and perhaps the frequent tokens alone."""
    none = {f"{number}.0.linear.bias": torch.zeros(WIDTH) for number in range(NUM_HEADS)}
    original = Medusa(save(tmp_path / "one", **none))
    tensors = {
        re.sub(r"^(\d)\.0\.linear", r"medusa_heads.blocks.\1.layers.0", name): values
        for name, values in torch.load(tmp_path / "one" / "medusa_lm_head.pt").items()
        if not name.endswith("bias")
    }
    tensors = {
        re.sub(r"^(\d)\.1", r"medusa_heads.lm_heads.\1", name): values
        for name, values in tensors.items()
    }
    about = {
        "model_type": "medusa", "architectures": ["MedusaModel"], "num_heads": NUM_HEADS,
        "num_hidden_layers": 1, "hidden_size": WIDTH, "vocab_size": VOCAB_SIZE,
        "truncated_vocab_size": kept or VOCAB_SIZE,
    }  # fmt: skip
    if kept:
        tensors["token_map"] = torch.randperm(VOCAB_SIZE)[:kept].sort().values
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "config.json").write_text(json.dumps(about))
    save_file(tensors, tmp_path / "two" / "model.safetensors")
    found = Medusa(tmp_path / "two")
    target = fr.wrap(tiny_llama(seed=3))
    torch.manual_seed(1)
    states = torch.randn(4, WIDTH).numpy()
    for head in range(NUM_HEADS):
        ours, theirs = (each.fit(target).head(head, states) for each in (found, original))
        np.testing.assert_array_equal(ours, theirs[:, found.tokens])
    if kept:
        del tensors["token_map"]
        save_file(tensors, tmp_path / "two" / "model.safetensors")
        with pytest.raises(InputError, match="token_map is missing: 40 draft tokens"):
            Medusa(tmp_path / "two")


def test_a_description_may_name_fewer_heads_than_there_are(tmp_path):
    """The first ones that were published say 2 and have 5."""
    (save(tmp_path) / "config.json").write_text('{"medusa_num_heads": 2, "medusa_num_layers": 1}')
    assert Medusa(tmp_path).num_guesses == NUM_HEADS


@pytest.mark.parametrize("stated", [{"medusa_num_layers": 10**9}, {"medusa_num_heads": "3"}])
def test_counts_are_believed_as_far_as_there_are_tensors(stated, tmp_path):
    about = {"medusa_num_heads": NUM_HEADS, "medusa_num_layers": 1}
    (save(tmp_path) / "config.json").write_text(json.dumps(about | stated))
    with pytest.raises(InputError, match="promises more than the 9 tensors"):
        Medusa(tmp_path)


def test_another_target_or_kind_is_refused(tmp_path):
    drafter = Medusa(save(tmp_path))
    for changes in ({"vocab_size": 71}, {"hidden_size": 40}):
        with pytest.raises(UnsupportedError, match="trained for another model and does not fit"):
            fr.generate(fr.wrap(tiny_llama(**changes)), [1, 2], drafter=drafter)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"speculators_model_type": "eagle3"}')
    with pytest.raises(UnsupportedError, match="EAGLE-3 draft model, and not Medusa heads"):
        make_drafter(f"medusa:{tmp_path / 'other'}")
