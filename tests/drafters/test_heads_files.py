"""A drafter on disk: read back as it was saved, within 8 bits, and refused when it is not whole."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from tiny_heads import save_drafter, tiny_llama, tiny_network

from forerun.base.errors import InputError, MissingExtraError, UnsupportedError
from forerun.drafters import Heads
from forerun.drafters.heads.files import (
    DESCRIPTION,
    WEIGHTS,
    Trained,
    from_blocks,
    load,
    save,
    to_blocks,
)
from forerun.drafters.heads.fingerprint import Fingerprint
from forerun.generation.choosing import make_drafter


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_drafter(tmp_path, tiny_llama())
    return tmp_path


def describe(folder: Path, change: Any) -> None:
    """Alter the JSON file."""
    file = folder / DESCRIPTION
    description = json.loads(file.read_text())
    change(description)
    file.write_text(json.dumps(description))


def alter(folder: Path, change: Any) -> None:
    """Alter the weights."""
    stored = load_file(folder / WEIGHTS)
    change(stored)
    save_file(stored, folder / WEIGHTS)


@pytest.mark.parametrize("shape", [(1, 1), (3, 32), (5, 33), (7, 100)])
def test_eight_bits_keep_each_number_within_half_a_step(shape):
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    q, scale = to_blocks(values)
    assert q.dtype == np.int8
    step = np.repeat(scale.astype(np.float32), 32, axis=1)[:, : shape[1]]
    assert (abs(from_blocks(q, scale) - values) <= step * 0.51).all()


def test_blocks_of_zeros_stay_zeros():
    assert not from_blocks(*to_blocks(np.zeros((2, 40), np.float32))).any()


def test_it_is_read_back_as_it_was_saved(tmp_path):
    network = tiny_network()
    weights = {name: value.numpy() for name, value in network.state_dict().items()}
    target = Fingerprint.of(tiny_llama(), "tiny")
    saved = Trained(network.design, target, np.arange(15, 55), weights)
    save(tmp_path, saved)
    found = load(str(tmp_path))
    assert (found.design, found.target) == (saved.design, saved.target)
    np.testing.assert_array_equal(found.tokens, saved.tokens)
    assert found.weights.keys() == weights.keys()
    for name, values in weights.items():
        assert found.weights[name].dtype == np.float32
        np.testing.assert_allclose(found.weights[name], values, atol=abs(values).max() / 200)
    save(tmp_path / "again", found)  # what is rounded already is not rounded any further
    for name, values in load(tmp_path / "again").weights.items():
        np.testing.assert_array_equal(values, found.weights[name])
    assert sorted(path.name for path in tmp_path.glob("heads*")) == [DESCRIPTION, WEIGHTS]


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_truncated_weight_file_is_refused(folder, share):
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: int(share * len(content))])
    with pytest.raises(InputError, match="cut short or broken"):
        Heads(folder)


@pytest.mark.parametrize("name", [WEIGHTS, DESCRIPTION])
def test_a_missing_file_is_refused(folder, name):
    (folder / name).unlink()
    with pytest.raises(InputError, match="broken"):
        Heads(folder)


def narrower(stored: dict[str, Any]) -> None:
    stored["qkv.weight.q8"] = stored["qkv.weight.q8"][:-1].copy()
    stored["qkv.weight.scale"] = stored["qkv.weight.scale"][:-1].copy()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda s: s.update(tokens=s["tokens"][:-1].copy()), "tokens"),
        (lambda s: s.update(tokens=s["tokens"][::-1].copy()), "tokens"),
        (lambda s: s.update(tokens=s["tokens"] + 1000), "tokens"),
        (narrower, "qkv.weight"),
        (lambda s: s.pop("norm_mlp.weight"), "norm_mlp.weight"),
        (lambda s: s.update(extra=np.ones(3, np.float32)), "extra"),
    ],
    ids=["fewer", "unsorted", "outside", "narrower", "missing", "more"],
)
def test_weights_of_other_sizes_are_refused(folder, change, named):
    alter(folder, change)
    with pytest.raises(InputError, match=f"{named} differs"):
        Heads(folder)


def test_layers_that_are_only_stated_take_no_memory(folder):
    describe(folder, lambda about: about["design"].update(num_layers=10**9))
    with pytest.raises(InputError, match="do not fit"):
        Heads(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("design"),
        lambda d: d["design"].pop("layers"),
        lambda d: d["design"].update(colour="blue"),
        lambda d: d["target"].pop("name"),
    ],
)
def test_a_description_that_lacks_something_is_refused(folder, change):
    describe(folder, change)
    with pytest.raises(InputError, match="missing or broken"):
        Heads(folder)


def test_another_format_is_named(folder):
    describe(folder, lambda d: d.update(version=99))
    with pytest.raises(InputError, match="version 99"):
        Heads(folder)


def test_a_place_that_is_not_there_is_explained(tmp_path, monkeypatch):
    import huggingface_hub

    def offline(*args: Any) -> None:
        raise OSError("no connection")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", offline)
    with pytest.raises(InputError, match="folder and on the Hugging Face hub"):
        Heads("nobody/nothing")


@pytest.mark.parametrize("place", ["nowhere", "no/where/at/all", ""])
def test_what_can_only_be_a_folder_is_not_looked_for_on_the_hub(place, monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", None)
    with pytest.raises(InputError, match="no such folder"):
        Heads(place)


def test_a_drafter_comes_from_the_hub(folder, monkeypatch):
    import huggingface_hub

    asked = []

    def download(name: str, file: str) -> str:
        asked.append((name, file))
        return str(folder / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert Heads("somebody/heads").name == "heads:somebody/heads"
    assert sorted(asked) == [("somebody/heads", DESCRIPTION), ("somebody/heads", WEIGHTS)]


def test_a_target_is_known_in_other_precisions_and_by_no_other_name():
    model = tiny_llama()
    own = Fingerprint.of(model, "own")
    own.check(Fingerprint.of(tiny_llama().to(torch.bfloat16), "a copy in half precision"))
    with pytest.raises(UnsupportedError, match=r"trained for own .* not fit other"):
        own.check(Fingerprint.of(tiny_llama(seed=1), "other"))
    with pytest.raises(UnsupportedError, match="num_layers is 3 rather than 5"):
        own.check(Fingerprint.of(tiny_llama(num_hidden_layers=3), "other"))
    assert Fingerprint.from_dict(json.loads(json.dumps(own.to_dict()))) == own


def test_a_missing_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the drafter was asked for by its name."""
    for name in ("safetensors", "safetensors.numpy"):
        monkeypatch.setitem(sys.modules, name, None)
    message = r'without safetensors.*Install them with: pip install "forerun\[hf\]"'
    with pytest.raises(MissingExtraError, match=message):
        Heads(folder)
    with pytest.raises(MissingExtraError, match=message):
        make_drafter(f"heads:{folder}")
