"""Packed models on disk: found again, never mistaken for others, and done without where need be."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tiny_models import Architecture, random_tokens
from words import save_tokenizer

pytest.importorskip("numba")

from few_bits import FORMATS, PASSES, few_bit_model

import forerun as fr
from forerun.generation.intake import ending_tokens
from forerun.lean import kept_file, storage
from forerun.lean.model import LeanModel
from forerun.lean.packed import Facts, Rotary
from forerun.loading import folder_digest, folders, packed_files
from forerun.loading.device_choice import may_have_gpu
from forerun.loading.light_tokenizer import NONE
from forerun.loading.packed_files import KeptModel
from forerun.serve.openai.fingerprint import model_digest
from forerun.serve.openai.offer import defaults_of


class Inner(NamedTuple):
    number: Any
    rotary: Rotary
    facts: Facts


TEXT = random_tokens(random.Random(1), 9)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache that also keeps what is tiny, and files that were made just now."""
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(packed_files, "LEAST_BYTES", 0)
    monkeypatch.setattr(folder_digest, "JUST_NOW", -1.0)
    return tmp_path / "cache"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder with a model and its tokenizer."""
    folder = tmp_path / "model"
    save(folder, seed=0)
    save_tokenizer(folder)
    return folder


def save(folder: Path, seed: int) -> None:
    options = {"intermediate_size": 64, "eos_token_id": 5}
    model = Architecture("llama", "", options, dtype=torch.float32).build()
    torch.manual_seed(seed)
    torch.nn.init.normal_(model.lm_head.weight)
    model.save_pretrained(folder)


def logits_of(model: Any) -> Any:
    return model.score(model.start(1, 16), [0], [TEXT], [len(TEXT)])


def is_recalled(model: LeanModel) -> bool:
    return model._model is None


def test_a_second_start_has_the_same_bits(saved: Path) -> None:
    first, second = fr.load(str(saved)), fr.load(str(saved))
    assert not is_recalled(first)
    assert is_recalled(second)
    assert torch.equal(logits_of(second), logits_of(first))
    assert repr(second) == repr(first)
    assert second.max_context == first.max_context == 128
    assert ending_tokens(second) == (5,)
    assert is_recalled(second)  # nothing so far has asked for the transformers model
    assert torch.equal(second.fresh(TEXT), first.fresh(TEXT))
    assert not is_recalled(second)
    assert ending_tokens(second) == (5,)


@pytest.mark.parametrize("name", FORMATS)
def test_few_bits_come_back(name: str, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "BLOCKS_PAY", True)
    packed = LeanModel(few_bit_model(FORMATS[name])).packed
    packed_files.keep(saved, "auto", False, KeptModel(packed, NONE))
    recalled = packed_files.recall(saved, "auto", False)
    assert recalled is not None
    kept, given = recalled.packed.weights.matrices, packed.weights.matrices
    assert kept.has_k_quants is given.has_k_quants is (True if "K" in name else None)
    assert all(np.array_equal(*fields) for fields in zip(kept, given, strict=True))


@pytest.mark.parametrize("name", PASSES)
def test_a_second_start_has_the_same_few_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "BLOCKS_PAY", True)
    few_bit_model(FORMATS[name]).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    first, second = fr.load(str(tmp_path)), fr.load(str(tmp_path))
    assert is_recalled(second)
    assert set(second._weights.matrices.format) == set(FORMATS[name])
    assert second._weights.matrices.has_k_quants is (True if "K" in name else None)
    assert torch.equal(logits_of(second), logits_of(first))
    assert model_digest(second) == model_digest(first)


@pytest.mark.skipif(may_have_gpu(), reason="torch is asked for the GPU of this machine")
def test_a_second_start_needs_no_torch(saved: Path) -> None:
    """Nor does the answer."""
    fr.load(str(saved))
    code = f"""
import sys
import forerun as fr
target = fr.load({str(saved)!r})
out = fr.generate(target, "w3 w4 w5", drafter=fr.drafters.Suffix(), max_new_tokens=8)
assert len(out.tokens) > 0
assert not {{"torch", "transformers"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_second_start_has_the_same_fingerprint(saved: Path) -> None:
    """And the same defaults, and the transformers model is not loaded to tell them."""
    first, second = fr.load(str(saved)), fr.load(str(saved))
    assert is_recalled(second)
    assert not is_recalled(first)
    assert model_digest(second) == model_digest(first)
    assert defaults_of(second) == defaults_of(first)
    assert is_recalled(second)


@pytest.mark.parametrize("quantize", [None, "int8"])
def test_options_do_not_get_mixed_up(saved: Path, quantize: Any) -> None:
    fr.load(str(saved), dtype="bfloat16")
    model = fr.load(str(saved), quantize=quantize)
    assert not is_recalled(model)
    again = fr.load(str(saved), quantize=quantize)
    assert is_recalled(again)
    assert again.name == model.name == str(saved) + (f"-{quantize}" if quantize else "")
    assert torch.equal(logits_of(again), logits_of(model))
    assert type(fr.load(str(saved), lean=False)).__name__ == "HuggingFaceModel"
    assert not is_recalled(fr.load(str(saved), trust_remote_code=False))


def test_other_weights_of_the_same_size_are_other_contents(saved: Path) -> None:
    before = logits_of(fr.load(str(saved)))
    old = (saved / "model.safetensors").stat()
    save(saved, seed=1)
    os.utime(saved / "model.safetensors", ns=(old.st_atime_ns, old.st_mtime_ns))
    assert (saved / "model.safetensors").stat().st_size == old.st_size
    model = fr.load(str(saved))
    assert not is_recalled(model)
    assert not torch.equal(logits_of(model), before)


def test_another_configuration_is_other_contents(saved: Path) -> None:
    fr.load(str(saved))
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.5}))
    model = fr.load(str(saved))
    assert not is_recalled(model)
    assert float(model.packed.weights.eps) == 0.5


def test_other_code_packs_again(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fr.load(str(saved))
    monkeypatch.setattr(packed_files, "sources", lambda: 1)
    assert not is_recalled(fr.load(str(saved)))


@pytest.mark.parametrize("size", [0, 5, 300, -1])
def test_a_torn_file_is_made_again(saved: Path, cache: Path, size: int) -> None:
    first = fr.load(str(saved))
    (file,) = (cache / "packed").iterdir()
    os.truncate(file, size if size >= 0 else file.stat().st_size - 1)
    second = fr.load(str(saved))
    assert not is_recalled(second)
    assert is_recalled(fr.load(str(saved)))
    assert torch.equal(logits_of(second), logits_of(first))


def test_one_wrong_bit_anywhere_is_noticed(saved: Path, cache: Path) -> None:
    """In a weight, in a table of addresses, in what the file says of itself."""
    fr.load(str(saved))
    (file,) = (cache / "packed").iterdir()
    whole, random_places = file.read_bytes(), random.Random(2)
    head = whole.index(b"\n", len(kept_file.MAGIC)) + 1
    about = json.loads(whole[len(kept_file.MAGIC) + 9 : head])
    begin = -(-head // kept_file.PAGE) * kept_file.PAGE
    places = random_places.sample(range(head), 40)
    for dtype, shape, offset, _ in about["arrays"].values():
        size = np.dtype(dtype).itemsize * int(np.prod(shape))
        places += [begin + offset + random_places.randrange(size)] if size else []
    assert len(places) > 60
    for place in places:
        wrong = bytes([whole[place] ^ 1 << random_places.randrange(8)])
        file.write_bytes(whole[:place] + wrong + whole[place + 1 :])
        assert packed_files.recall(saved, "auto", False) is None, place
    file.write_bytes(whole)
    assert packed_files.recall(saved, "auto", False) is not None


def test_sums_notice_what_has_moved() -> None:
    array = np.random.default_rng(3).normal(size=100_000).astype(np.float32)
    moved = np.roll(array, kept_file.STRETCH // 4)
    assert kept_file.checksum(moved) != kept_file.checksum(array)
    assert kept_file.checksum(array.copy()) == kept_file.checksum(array)


@pytest.mark.parametrize(
    "name",
    ["chat_template.jinja", "additional_chat_templates/tools.jinja", "merges.txt", "spiece.model"],
)
def test_what_decides_on_tokens_or_prompts_is_part_of_the_contents(saved: Path, name: str) -> None:
    digests = {folder_digest.contents(saved)}
    (saved / name).parent.mkdir(exist_ok=True)
    for text in ("one", "two"):
        (saved / name).write_text(text)
        assert folder_digest.known_contents(saved) is None
        digests.add(folder_digest.contents(saved))
    (saved / "README.md").write_text("three")
    assert folder_digest.known_contents(saved) in digests
    assert len(digests) == 3


def test_a_folder_that_cannot_be_written_is_done_without(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "file" / "below"))
    for _ in range(2):
        assert not is_recalled(fr.load(str(saved)))


def test_a_full_disk_is_done_without(
    saved: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_files, "SPARE", 1 << 60)
    assert not is_recalled(fr.load(str(saved)))
    assert list((cache / "packed").iterdir()) == []


@pytest.mark.parametrize(
    ("limit", "value", "told"),
    [
        ("MOST_BYTES", 0, r"they take 0.0 GB, and at most 0.0 GB are kept"),
        ("SPARE", 1 << 60, r"1152921504.6 GB are needed and [0-9.]+ GB are free in '.*packed'"),
    ],
)
def test_it_is_said_why_nothing_is_kept(
    limit: str, value: int, told: str, saved: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(folders, "LARGE", 0)
    monkeypatch.setattr(packed_files, limit, value)
    fr.load(str(saved))
    assert re.search(rf"packed at every start, because {told}", capfd.readouterr().err)


def test_several_may_write_at_once(saved: Path, cache: Path) -> None:
    packed = fr.load(str(saved)).packed
    with ThreadPoolExecutor(8) as threads:
        for _ in range(16):
            threads.submit(packed_files.keep, saved, "auto", False, KeptModel(packed, NONE))
        found = [threads.submit(packed_files.recall, saved, "auto", False) for _ in range(16)]
    weights = [result.result().packed.weights for result in found]
    assert all(np.array_equal(w.embedding, packed.weights.embedding) for w in weights)
    assert len(list((cache / "packed").iterdir())) == 1


def test_what_was_left_behind_is_removed(saved: Path, cache: Path) -> None:
    packed = fr.load(str(saved)).packed
    place = cache / "packed"
    (file,) = place.iterdir()
    for name, age in (("a.unfinished", 7200), ("b.unfinished", 60), ("old", 40 * 86400)):
        (place / name).write_text("")
        os.utime(place / name, (0, file.stat().st_mtime - age))
    packed_files.keep(saved, "auto", False, KeptModel(packed, NONE))
    assert {file.name for file in place.iterdir()} == {file.name, "b.unfinished"}


def test_what_other_code_packed_is_replaced(
    saved: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not other options, and not what another version of the code used a minute ago."""
    place = cache / "packed"
    fr.load(str(saved), quantize="int8")
    fr.load(str(saved))
    first = {file.name for file in place.iterdir()}
    ours = packed_files._file(*asked(saved))
    for file in place.iterdir():
        os.utime(file, (0, ours.stat().st_mtime - 7200))
    monkeypatch.setattr(packed_files, "sources", lambda: 1)
    fr.load(str(saved))
    newer = packed_files._file(*asked(saved))
    assert {file.name for file in place.iterdir()} == first - {ours.name} | {newer.name}
    monkeypatch.setattr(packed_files, "sources", lambda: 2)
    fr.load(str(saved))
    assert newer.exists(), "it was used within the hour"


def asked(folder: Path) -> tuple[str, str]:
    """What the name of the file of a model without options is made of."""
    return folder_digest.contents(folder), "auto False"


def test_a_file_that_was_just_written_is_read_again(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be written again within the same tick of the clock."""
    monkeypatch.setattr(folder_digest, "JUST_NOW", 1e9)
    assert len(folder_digest.contents(saved)) == 64
    assert folder_digest.known_contents(saved) is None


def test_every_field_comes_back(tmp_path: Path) -> None:
    facts = Facts("llama", 3, 5, 7, 9, 1, [2, 3], {"top_p": 0.5}, True)
    rotary = Rotary(np.arange(4, dtype=np.float32)[None], np.array([1.5], np.float32))
    tree = Inner(np.float32(2.5), rotary, facts)
    kept_file.write(tmp_path / "file", tree)
    back = kept_file.read(tmp_path / "file", Inner, frozenset({"rotary.frequencies"}))
    assert back.facts == facts
    assert back.number == np.float32(2.5)
    assert type(back.number) is np.float32
    assert np.array_equal(back.rotary.factors, rotary.factors)
    assert np.array_equal(back.rotary.frequencies, rotary.frequencies)
    assert back.rotary.frequencies.flags.writeable  # read-only arrays would be compiled for again
    assert type(back.rotary.frequencies) is np.ndarray


def test_the_first_load_of_a_large_model_is_announced(
    saved: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fr.load(str(saved), quantize="int8")
    assert "packing" not in capfd.readouterr().err, "it is small"
    monkeypatch.setattr(folders, "LARGE", 0)
    fr.load(str(saved))
    assert f"forerun: packing the weights of {saved}" in capfd.readouterr().err
    fr.load(str(saved))
    assert "packing" not in capfd.readouterr().err, "it was kept"
    nowhere = saved / "config.json" / "cache"  # inside a file
    monkeypatch.setenv("FORERUN_CACHE", str(nowhere))
    fr.load(str(saved))
    told = capfd.readouterr().err
    assert f"at every start, because the cache {nowhere} cannot be made (Not a directory)" in told
    assert "Set FORERUN_CACHE" in told


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners here")
def test_files_that_others_may_write_change_no_model(saved: Path, cache: Path) -> None:
    """Neither packed weights, nor the note that says which of them belong to a folder."""
    first = fr.load(str(saved))
    for place in ("packed", "contents"):
        (file,) = (cache / place).iterdir()
        file.chmod(0o666)
        again = fr.load(str(saved))
        assert not is_recalled(again)
        assert torch.equal(logits_of(again), logits_of(first))
        (file,) = (cache / place).iterdir()
        file.chmod(0o644)
        assert is_recalled(fr.load(str(saved)))
