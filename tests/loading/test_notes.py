"""Folders of safetensors files: packed as they are at every start, with a note of what was found.

The note is found again, never mistaken for that of other files, and done without where need be.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tiny_models import Architecture, random_tokens
from words import save_tokenizer

pytest.importorskip("numba")

import forerun as fr
from forerun.base.errors import ForerunError, InputError
from forerun.generation.intake import ending_tokens
from forerun.lean import blocks, kept_file
from forerun.lean.model import LeanModel
from forerun.lean.packed import Facts, Rotary
from forerun.loading import from_files, notes
from forerun.loading.device_choice import may_have_gpu
from forerun.loading.sources import source_of
from forerun.serve.openai.fingerprint import model_digest
from forerun.serve.openai.offer import defaults_of


class Inner(NamedTuple):
    number: Any
    rotary: Rotary
    facts: Facts


TEXT = random_tokens(random.Random(1), 9)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that were looked at with transformers."""
    places: list[Path] = []
    describe = from_files._described

    def watched(source: Any, name: str) -> Any:
        places.append(source.place)
        return describe(source, name)

    monkeypatch.setattr(from_files, "_described", watched)
    return places


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder with a model and its tokenizer."""
    folder = tmp_path / "model"
    save(folder, seed=0)
    save_tokenizer(folder)
    return folder


def save(
    folder: Path, seed: int = 0, dtype: Any = torch.float32, kind: str = "llama", **sizes: Any
) -> Any:
    options = {"intermediate_size": 64, "eos_token_id": 5, **sizes}
    model = Architecture(kind, "", options, dtype=dtype).build()
    torch.manual_seed(seed)
    torch.nn.init.normal_(model.lm_head.weight)
    model.save_pretrained(folder, max_shard_size="40KB" if sizes else "5GB")
    return model


def logits_of(model: Any) -> Any:
    return np.asarray(model.score(model.start(1, 16), [0], [TEXT], [len(TEXT)]))


SORTS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"dtype": torch.bfloat16},
    "float16": {"dtype": torch.float16},
    "several files": {"dtype": torch.bfloat16, "num_hidden_layers": 3},
    "a head that is the embedding": {"dtype": torch.bfloat16, "tie_word_embeddings": True},
    "Gemma 3": {"dtype": torch.bfloat16, "kind": "gemma3_text"},
    "Qwen 2": {"dtype": torch.bfloat16, "kind": "qwen2"},
    "Qwen 3": {"dtype": torch.float16, "kind": "qwen3"},
    "SmolLM3": {"dtype": torch.bfloat16, "kind": "smollm3"},
}


@pytest.mark.parametrize("sort", SORTS)
def test_it_has_the_bits_of_the_model_in_memory(
    sort: str, tmp_path: Path, described: list[Path]
) -> None:
    save(tmp_path, **SORTS[sort])
    assert len(list(tmp_path.glob("*.safetensors"))) > (sort == "several files")
    for _ in range(2):
        read = fr.load(tmp_path)
        assert read._model is None, "transformers did not load it"
        packed = LeanModel(fr.load(tmp_path, lean=False).model)
        ours, theirs = read._weights.matrices, packed._weights.matrices
        assert all(np.array_equal(*fields) for fields in zip(ours, theirs, strict=True))
        assert np.array_equal(logits_of(read), logits_of(packed))
        assert np.array_equal(read.embedding, packed.embedding)
        assert read.packed.facts == packed.packed.facts
        assert read.pass_name == packed.pass_name
    assert described == [tmp_path]


def test_no_weights_are_kept(tmp_path: Path, cache: Path) -> None:
    save(tmp_path / "wide", intermediate_size=4096)
    fr.load(tmp_path / "wide")
    (note,) = (cache / "packed").iterdir()
    assert [child.name for child in cache.iterdir()] == ["packed"]
    files = (tmp_path / "wide").glob("*.safetensors")
    assert 10 * note.stat().st_size < sum(file.stat().st_size for file in files)


@pytest.mark.parametrize(
    ("kind", "options", "parts"),
    [
        ("llama", {}, [2]),
        ("smollm3", {"no_rope_layers": [1, 1, 1, 0, 1], "pad_token_id": 0}, [3]),
    ],
)
def test_a_large_one_is_tried_out_on_a_part(
    kind: str, options: dict[str, Any], parts: list[int], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """On layers of all kinds."""
    saved = tmp_path / "deep"
    save(saved, kind=kind, num_hidden_layers=5, **options)
    tried: list[int] = []
    reproduces = from_files._is_reproduced

    def watched(cut: Any, paths: Any) -> bool:
        tried.append(cut.config.num_hidden_layers)
        return reproduces(cut, paths)

    monkeypatch.setattr(from_files, "_is_reproduced", watched)
    monkeypatch.setattr(from_files, "LARGE", 0)
    expected = logits_of(LeanModel(fr.load(saved, lean=False).model))
    for told in (True, False):
        assert np.array_equal(logits_of(fr.load(saved)), expected)
        assert (f"forerun: reading {saved}" in capsys.readouterr().err) is told
    assert tried == parts
    monkeypatch.setenv("FORERUN_CACHE", str(saved / "config.json" / "cache"))  # inside a file
    fr.load(saved)
    told_now = capsys.readouterr().err
    assert "is tried out at every start, because the cache" in told_now
    assert "cannot be made (Not a directory). Set FORERUN_CACHE" in told_now


def test_what_the_pass_does_not_reproduce_is_left_to_transformers(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if rows lay in another order in the file."""
    read = blocks.Raw.read
    monkeypatch.setattr(blocks.Raw, "read", lambda raw, begin, end: read(raw, begin, end)[::-1])
    theirs = logits_of(fr.load(saved, lean=False))
    with pytest.warns(RuntimeWarning, match="other logits than in transformers"):
        loaded = fr.load(saved)
    assert np.abs(logits_of(loaded) - theirs).max() < 1e-4 * np.abs(theirs).max()


def change_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


OTHERWISE: dict[str, Any] = {
    "rounded on the way": ({"dtype": torch.float32}, {}, {"dtype": "bfloat16"}),
    "saved wider than its configuration": ({}, {"dtype": "bfloat16"}, {}),
    "widened": ({"dtype": torch.bfloat16}, {}, {"dtype": "float32"}),
    "another rounding": ({"dtype": torch.bfloat16}, {}, {"dtype": "float16"}),
    "without a precision": ({"dtype": torch.bfloat16}, {"dtype": None}, {}),
}


@pytest.mark.parametrize("sort", OTHERWISE)
def test_the_precision_that_is_asked_for_counts(sort: str, tmp_path: Path) -> None:
    made, changes, options = OTHERWISE[sort]
    save(tmp_path, **made)
    change_config(tmp_path, **changes)
    expected = logits_of(LeanModel(fr.load(tmp_path, lean=False, **options).model))
    is_rounded = sort in ("rounded on the way", "another rounding")
    with pytest.warns(RuntimeWarning) if is_rounded else nullcontext():
        read = fr.load(tmp_path, **options)
    assert np.array_equal(logits_of(read), expected)
    assert (read._model is None) is (sort in ("widened", "without a precision"))


def test_a_second_start_has_the_same_bits(saved: Path, described: list[Path]) -> None:
    """And the same defaults and fingerprint, and transformers does not load the model for them."""
    first, second = fr.load(saved), fr.load(saved)
    assert described == [saved]
    assert np.array_equal(logits_of(second), logits_of(first))
    assert repr(second) == repr(first)
    assert second.max_context == first.max_context == 128
    assert model_digest(second) == model_digest(first)
    assert defaults_of(second) == defaults_of(first)
    assert ending_tokens(second) == (5,)
    assert second._model is None
    assert torch.equal(second.fresh(TEXT), first.fresh(TEXT))
    assert second._model is not None
    assert ending_tokens(second) == (5,)


@pytest.mark.skipif(may_have_gpu(), reason="torch is asked for the GPU of this machine")
def test_a_second_start_needs_no_torch(saved: Path) -> None:
    """Nor does the answer."""
    fr.load(saved)
    code = f"""
import sys
import forerun as fr
target = fr.load({str(saved)!r})
out = fr.generate(target, "w3 w4 w5", drafter=fr.drafters.Suffix(), max_new_tokens=8)
assert len(out.tokens) > 0
assert not {{"torch", "transformers"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_weights_rounded_to_8_bits(saved: Path, described: list[Path]) -> None:
    """They are those of the model in memory, rounded, and share its note."""
    read = fr.load(saved, quantize="int8")
    packed = LeanModel(fr.load(saved, lean=False).model, int8=True)
    assert read.name == f"{saved}-int8"
    assert read.packed.facts == packed.packed.facts
    assert np.array_equal(logits_of(read), logits_of(packed))
    assert not np.array_equal(logits_of(fr.load(saved)), logits_of(read))
    assert described == [saved]


def test_other_weights_of_the_same_size_are_read(saved: Path, described: list[Path]) -> None:
    before = logits_of(fr.load(saved))
    old = (saved / "model.safetensors").stat()
    save(saved, seed=1)
    os.utime(saved / "model.safetensors", ns=(old.st_atime_ns, old.st_mtime_ns))
    assert (saved / "model.safetensors").stat().st_size == old.st_size
    assert not np.array_equal(logits_of(fr.load(saved)), before)
    assert described == [saved] * 2


def test_another_configuration_is_another_model(saved: Path) -> None:
    fr.load(saved)
    change_config(saved, rms_norm_eps=0.5)
    assert float(fr.load(saved).packed.weights.eps) == 0.5


@pytest.mark.parametrize(
    "name",
    ["chat_template.jinja", "additional_chat_templates/tools.jinja", "merges.txt", "spiece.model"],
)
def test_what_decides_on_tokens_or_prompts_is_among_its_files(saved: Path, name: str) -> None:
    (saved / name).parent.mkdir(exist_ok=True)
    (saved / name).write_text("")
    source = source_of(str(saved), None)
    assert source is not None
    assert saved / name in source.files
    (saved / "README.md").write_text("")
    assert source_of(str(saved), None).variant == source.variant  # type: ignore[union-attr]


def test_files_that_change_while_they_are_read_are_told(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, read = fr.load(saved), blocks.Raw.read

    def changing(raw: Any, begin: int, end: int) -> Any:
        os.utime(saved / "model.safetensors", ns=(1, 1))
        return read(raw, begin, end)

    monkeypatch.setattr(blocks.Raw, "read", changing)
    with pytest.raises(InputError, match=r"changed while it was read.*model"):
        fr.load(saved)
    with pytest.raises(InputError, match="changed since it was loaded"):
        loaded.model  # noqa: B018


@pytest.mark.parametrize("damage", [b"\xc0\x7f", b"\x80\x7f"], ids=["NaN", "infinity"])
def test_weights_that_are_no_numbers_are_refused(damage: bytes, tmp_path: Path) -> None:
    """In an embedding that no other matrix shares, too."""
    save(tmp_path, dtype=torch.bfloat16)
    source = source_of(str(tmp_path), None)
    assert source is not None
    whole = (tmp_path / "model.safetensors").read_bytes()
    for name in ("model.embed_tokens.weight", "model.layers.0.mlp.down_proj.weight"):
        at = source.read().tensors[name].begin + 20
        (tmp_path / "model.safetensors").write_bytes(whole[:at] + damage + whole[at + 2 :])
        for _ in range(2):
            with pytest.raises(ForerunError, match=rf"{name}|NaN|not finite"):
                fr.load(tmp_path)


def test_other_code_describes_it_again(
    saved: Path, described: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    fr.load(saved)
    monkeypatch.setattr(notes, "sources", lambda: 1)
    fr.load(saved)
    assert described == [saved] * 2


@pytest.mark.parametrize("size", [0, 5, 300, -1])
def test_a_torn_note_is_made_again(
    saved: Path, cache: Path, described: list[Path], size: int
) -> None:
    first = logits_of(fr.load(saved))
    (file,) = (cache / "packed").iterdir()
    os.truncate(file, size if size >= 0 else file.stat().st_size - 1)
    for _ in range(2):
        assert np.array_equal(logits_of(fr.load(saved)), first)
    assert described == [saved] * 2


def test_one_wrong_bit_anywhere_is_noticed(tmp_path: Path) -> None:
    """In an array, and in what the file says of itself."""
    facts = Facts("llama", 3, 5, 7, 9, 1, [2, 3], {"top_p": 0.5}, True)
    rotary = Rotary(np.arange(4000, dtype=np.float32)[None], np.array([1.5], np.float32))
    file, random_places = tmp_path / "file", random.Random(2)
    kept_file.write(file, Inner(np.float32(2.5), rotary, facts))
    whole = file.read_bytes()
    head = whole.index(b"\n", len(kept_file.MAGIC)) + 1
    about = json.loads(whole[len(kept_file.MAGIC) + 9 : head])
    begin = -(-head // kept_file.PAGE) * kept_file.PAGE
    places = random_places.sample(range(head), 40)
    for dtype, shape, offset, _ in about["arrays"].values():
        size = np.dtype(dtype).itemsize * int(np.prod(shape))
        places += [begin + offset + random_places.randrange(size) for _ in range(10)]
    for place in places:
        wrong = bytes([whole[place] ^ 1 << random_places.randrange(8)])
        file.write_bytes(whole[:place] + wrong + whole[place + 1 :])
        with pytest.raises((ValueError, LookupError)):
            kept_file.read(file, Inner)


def test_sums_notice_what_has_moved() -> None:
    array = np.random.default_rng(3).normal(size=100_000).astype(np.float32)
    moved = np.roll(array, kept_file.STRETCH // 4)
    assert kept_file.checksum(moved) != kept_file.checksum(array)
    assert kept_file.checksum(array.copy()) == kept_file.checksum(array)


def test_a_folder_that_cannot_be_written_is_done_without(
    saved: Path, tmp_path: Path, described: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "file" / "below"))
    first, second = (logits_of(fr.load(saved)) for _ in range(2))
    assert np.array_equal(first, second)
    assert described == [saved] * 2


def test_several_may_read_it_at_once(saved: Path, cache: Path) -> None:
    expected = logits_of(fr.load(saved))
    for note in (cache / "packed").iterdir():
        note.unlink()
    with ThreadPoolExecutor(4) as threads:
        found = [threads.submit(fr.load, saved) for _ in range(8)]
    assert all(np.array_equal(logits_of(each.result()), expected) for each in found)
    assert len(list((cache / "packed").iterdir())) == 1


def test_what_was_left_behind_is_removed(saved: Path, cache: Path) -> None:
    """Not what is being written, nor what another version of the code used a minute ago."""
    fr.load(saved)
    place = cache / "packed"
    (file,) = place.iterdir()
    stem = file.name.rpartition("-")[0]
    for name, age in (
        ("a.unfinished", 7200), ("b.unfinished", 60), ("old", 40 * 86400),
        (f"{stem}-ours", 7200), (f"{stem}-used", 60), ("another-model-code", 7200),
    ):  # fmt: skip
        (place / name).write_text("")
        os.utime(place / name, (0, file.stat().st_mtime - age))
    file.unlink()
    fr.load(saved)
    left = {file.name, "b.unfinished", f"{stem}-used", "another-model-code"}
    assert {each.name for each in place.iterdir()} == left


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners here")
def test_a_note_that_others_may_write_is_not_believed(
    saved: Path, cache: Path, described: list[Path]
) -> None:
    fr.load(saved)
    (file,) = (cache / "packed").iterdir()
    file.chmod(0o666)
    fr.load(saved)
    assert described == [saved] * 2


def test_every_field_comes_back(tmp_path: Path) -> None:
    facts = Facts("llama", 3, 5, 7, 9, 1, [2, 3], {"top_p": 0.5}, True)
    rotary = Rotary(np.arange(4, dtype=np.float32)[None], np.array([1.5], np.float32))
    kept_file.write(tmp_path / "file", Inner(np.float32(2.5), rotary, facts))
    back = kept_file.read(tmp_path / "file", Inner)
    assert back.facts == facts
    assert back.number == np.float32(2.5)
    assert type(back.number) is np.float32
    assert np.array_equal(back.rotary.factors, rotary.factors)
    assert np.array_equal(back.rotary.frequencies, rotary.frequencies)
    assert back.rotary.frequencies.flags.writeable  # read-only arrays would be compiled for again
    assert type(back.rotary.frequencies) is np.ndarray
