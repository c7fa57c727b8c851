"""Folders that hold no EAGLE-3 head, or one that is damaged, newer, or of another target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from eagle3_reference import VOCAB, WIDTH, Head
from safetensors.torch import load_file, save_file
from tiny_heads import save_drafter, tiny_llama

import forerun as fr
from forerun.base.errors import InputError, UnsupportedError
from forerun.drafters import Heads
from forerun.drafters.folders import kind_of
from forerun.generation.choosing import make_drafter

OTHER_KINDS: dict[str, dict[str, Any]] = {
    "P-EAGLE": {"speculators_model_type": "peagle"},
    "DFlash draft": {"architectures": ["DFlashDraftModel"], "model_type": "qwen3"},
    "DFlash2": {"architectures": ["DFlash2DraftModel"]},
    "DSpark": {"architectures": ["Qwen3DSparkModel"]},
    "MTP layers": {"speculators_model_type": "mtp"},
    "XPress": {"speculators_model_type": "xpress"},
    "first or second generation": {"architectures": ["EAGLEModel"], "model_type": "eagle"},
    "Medusa heads": {"medusa_num_heads": 5},
    "MLP speculator": {"model_type": "mlp_speculator"},
    "a whole model": {"model_type": "llama", "vocab_size": 61},
    r"not know \(eagle4\)": {"speculators_model_type": "eagle4"},
    "nothing that is known": {"colour": "blue"},
}


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_another_kind_is_named(kind, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(OTHER_KINDS[kind]))
    for make in (lambda: Heads(tmp_path), lambda: make_drafter(f"eagle3:{tmp_path}")):
        with pytest.raises((UnsupportedError, InputError), match=rf"{kind}|heads.json is missing"):
            make()
    with pytest.raises(UnsupportedError, match=kind):
        make_drafter(f"eagle3:{tmp_path}")


def test_a_drafter_of_ours_is_none_of_theirs(tmp_path):
    save_drafter(tmp_path, tiny_llama())
    with pytest.raises(UnsupportedError, match=rf"Forerun trained.*Name it heads:{tmp_path}"):
        make_drafter(f"eagle3:{tmp_path}")


def test_a_drafter_beside_its_target_does_not_hide_it(tmp_path):
    tiny_llama().save_pretrained(tmp_path)
    save_drafter(tmp_path, tiny_llama())
    assert kind_of(tmp_path, {}) == "forerun"
    assert Heads(tmp_path).layers
    fr.load(str(tmp_path), lean=False)


def altered(folder: Path, change: Any) -> Path:
    """Change the tensors of a folder."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file({n: v.contiguous() for n, v in tensors.items()}, folder / "model.safetensors")
    return folder


def narrower(tensors: dict[str, Any]) -> None:
    tensors["midlayer.self_attn.q_proj.weight"] = tensors["midlayer.self_attn.q_proj.weight"][:-1]


def set_nan(tensors: dict[str, Any]) -> None:
    tensors["midlayer.mlp.up_proj.weight"][3, 4] = torch.nan


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("fc.weight"), "1 missing: fc.weight"),
        (lambda t: t.pop("d2t"), "d2t is missing: 40 draft tokens of 61"),
        (lambda t: t.update(d2t=t["d2t"] + 40), "leads outside the vocabulary of 61"),
        (lambda t: t.update(d2t=t["d2t"] + torch.arange(40)), "look like ids"),
        (lambda t: t.update(d2t=-torch.arange(40)), "names a token twice"),
        (lambda t: t.update(d2t=t["d2t"][:-1]), "another length"),
        (narrower, r"q_proj.weight is of another shape.*\(31, 64\) rather than \(32, 64\)"),
        (set_nan, "layers.0.mlp.up_proj.weight holds NaN"),
        (lambda t: t.update({"midlayer.gate.weight": torch.ones(3)}), "says nothing of its tensor"),
        (lambda t: t.update({"input_norm.weight": torch.ones(96)}), "nothing of its tensor input_"),
        (lambda t: t.update(mask_hidden=torch.ones(1, 1, 96)), "P-EAGLE: mask_hidden"),
    ],
    ids=[
        "fc",
        "d2t",
        "outside",
        "ids",
        "twice",
        "short",
        "narrower",
        "nan",
        "more",
        "norm",
        "parallel",
    ],
)
def test_damaged_tensors_are_named(change, message, tmp_path):
    folder = altered(Head(rope_theta=1e4).save(tmp_path), change)
    with pytest.raises((InputError, UnsupportedError), match=message):
        Heads(folder)


@pytest.mark.parametrize(
    ("layout", "stated", "message"),
    [
        ("speculators", {"speculators_version": "1.3.0"}, "newer layout of `speculators`"),
        ("flat", {"norm_embedding_too": True}, "norm_embedding_too is True, a switch"),
        ("flat", {"fc_norm": True}, "3 missing: fc_norm.0.weight"),
        ("flat", {"fc_norm": True, "norm_before_fc": True}, "exclude one another"),
        ("flat", {"hidden_act": "gelu"}, "activation is gelu"),
        ("flat", {"quantization_config": {"bits": 4}}, "its tensors are quantised"),
        ("flat", {"eagle_config": {"use_aux_hidden_state": False}}, "last hidden state alone"),
        ("flat", {"layer_types": ["sliding_attention"]}, "other kinds: sliding_attention"),
        ("flat", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "changes with the"),
        ("flat", {"num_hidden_layers": 2}, "missing: layers.1.input_layernorm.weight"),
        ("flat", {"num_hidden_layers": 10**9}, "num_hidden_layers is no size of its tensors"),
        ("flat", {"head_dim": 10**12}, "head_dim is no size of its tensors"),
        ("flat", {"draft_vocab_size": "40"}, "draft_vocab_size is no size of its tensors"),
        ("flat", {"eagle_aux_hidden_state_layer_ids": "three"}, "no list of whole numbers"),
        ("speculators", {"transformer_layer_config": 3}, "no transformer_layer_config"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else None,
)
def test_settings_that_are_not_served_are_named(layout, stated, message, tmp_path):
    folder = Head().save(tmp_path, layout, **stated)
    with pytest.raises((InputError, UnsupportedError), match=message):
        Heads(folder)


def test_files_that_are_cut_short_or_absent(tmp_path):
    folder = Head().save(tmp_path)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="cut short or broken"):
        Heads(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match="has no weights"):
        Heads(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"config\.json is damaged"):
        Heads(folder)


class Evil:
    """A pickle of it runs code where it is read carelessly."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("harm-was-done"),))


@pytest.mark.parametrize("extra", [Evil(), "a text"], ids=["code", "text"])
def test_a_pickle_with_more_than_tensors_is_refused_and_never_run(extra, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Head().save(tmp_path / "head", as_bin=True)
    stored = torch.load(folder / "pytorch_model.bin")
    torch.save({**stored, "more": extra}, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="holds more than tensors"):
        Heads(folder)
    assert not (tmp_path / "harm-was-done").exists()


@pytest.mark.parametrize(
    ("changes", "stated", "message"),
    [
        ({"hidden_size": 36, "own_embedding": True}, {}, "hidden_size is 32 rather than 36"),
        ({"vocab_size": 71, "own_embedding": True}, {}, "vocab_size is 61 rather than 71"),
        ({"layers": [2, 4, 9]}, {}, r"layers that its target of 5 layers does not have.*9"),
        ({"layers": [2, 2, 3]}, {}, "layers that its target"),
    ],
    ids=["width", "vocabulary", "layers", "twice"],
)
def test_another_target_is_refused_before_a_pass(changes, stated, message, tmp_path, monkeypatch):
    if "hidden_size" in changes:
        changes = {**changes, "target_hidden_size": 36}
    drafter = Heads(Head(**changes).save(tmp_path, **stated))
    target = fr.wrap(tiny_llama())
    monkeypatch.setattr(type(target), "score", lambda *_: pytest.fail("a pass was run"))
    with pytest.raises(UnsupportedError, match=message):
        fr.generate(target, [1, 2, 3], drafter=drafter)


def test_the_target_is_named_where_the_files_name_it(tmp_path):
    drafter = Heads(Head(vocab_size=71).save(tmp_path, "speculators"))
    with pytest.raises(UnsupportedError, match="trained for somebody/target"):
        fr.generate(fr.wrap(tiny_llama()), [1, 2, 3], drafter=drafter)


def test_a_narrow_head_needs_an_embedding(tmp_path):
    head = Head(hidden_size=24, target_hidden_size=WIDTH)
    with pytest.raises(InputError, match=r"embed_tokens\.weight is missing"):
        Heads(head.save(tmp_path))


def test_one_object_serves_targets_alike_and_no_other(tmp_path):
    folder = Head().save(tmp_path, eagle_aux_hidden_state_layer_ids="left out")
    drafter = Heads(folder)
    for seed in (0, 1):
        target = fr.wrap(tiny_llama(seed, num_hidden_layers=8))
        fr.generate(target, [1, 2, 3], drafter=drafter, max_new_tokens=2)
    with pytest.raises(UnsupportedError, match="already drafts for a target"):
        fr.generate(fr.wrap(tiny_llama(num_hidden_layers=10)), [1, 2, 3], drafter=drafter)


def test_a_model_folder_that_is_a_head_is_sent_to_the_drafters(tmp_path):
    folder = Head().save(tmp_path)
    with pytest.raises(UnsupportedError, match=rf"this folder as the drafter: eagle3:{folder}"):
        fr.load(str(folder))


def test_old_names_are_read(tmp_path):
    """Tensors as earlier files call them."""
    head = Head(fc_norm=True)
    new = Heads(head.save(tmp_path / "new"))
    for index, old in enumerate(("low", "mid", "high")):
        head.tensors[f"aux_norm_{old}.weight"] = head.tensors.pop(f"fc_norm.{index}.weight")
    old = Heads(head.save(tmp_path / "old", fc_norm="left out", use_aux_norm=True))
    assert new.source.design == old.source.design
    for name, values in new.source.weights.items():
        np.testing.assert_array_equal(values, old.source.weights[name])
    assert len(new.tokens) == 40 < VOCAB
