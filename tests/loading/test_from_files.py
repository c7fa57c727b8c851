"""GGUF files as they are: every start packs them, and a second one needs no torch for it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter
from tiny_models import Architecture, random_tokens

pytest.importorskip("numba")

from tiny_gguf import BYTE_PAIRS, write

import forerun as fr
from forerun.base.errors import InputError
from forerun.doctor.diagnosis import diagnose
from forerun.gguf.file import read_gguf
from forerun.lean import blocks, packed
from forerun.lean.model import LeanModel
from forerun.loading import from_files
from forerun.loading.cache import cache_folder
from forerun.loading.device_choice import may_have_gpu
from forerun.serve.openai.fingerprint import model_digest

TEXT = random_tokens(random.Random(1), 9)
SIZES = {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 64}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return made(tmp_path / "tiny.gguf")


def made(path: Path, seed: int = 0, kind: Kind = Kind.Q8_0) -> Path:
    model = Architecture("llama", "", SIZES, dtype=torch.float32).build()
    torch.manual_seed(seed)
    torch.nn.init.normal_(model.lm_head.weight)
    write(path, model, kind)
    return path


def logits_of(model: Any) -> Any:
    return np.asarray(model.score(model.start(1, 16), [0], [TEXT], [len(TEXT)]))


def notes() -> list[Path]:
    return list((cache_folder() / "packed").iterdir())


def parsed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files whose headers are read from now on."""
    files: list[Path] = []
    describe = from_files._described

    def watched(source: Any, name: str) -> Any:
        files.append(source.place)
        return describe(source, name)

    monkeypatch.setattr(from_files, "_described", watched)
    return files


def test_a_second_start_has_the_same_bits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = parsed(monkeypatch)
    first, second = fr.load(path), fr.load(path)
    assert headers == [path]
    assert isinstance(second, LeanModel)
    assert np.array_equal(logits_of(second), logits_of(first))
    assert np.array_equal(second.embedding, first.embedding)
    assert repr(second) == repr(first)
    assert model_digest(second) == model_digest(first)
    assert second.tokenizer.encode("hello a12") == first.tokenizer.encode("hello a12")
    assert second._model is None
    assert not [file for file in cache_folder().iterdir() if file.name != "packed"], "no copy"


def test_it_computes_what_transformers_does(path: Path) -> None:
    lean, plain = fr.load(path), fr.load(path, lean=False)
    assert lean.pass_name.startswith("lean CPU pass")
    assert plain.pass_name.startswith("transformers")
    theirs = logits_of(plain)
    assert np.abs(logits_of(lean) - theirs).max() < 1e-4 * np.abs(theirs).max()
    assert np.abs(np.asarray(lean.fresh(TEXT)) - theirs[0, -1]).max() < 1e-5 * np.abs(theirs).max()


@pytest.mark.skipif(may_have_gpu(), reason="torch is asked for the GPU of this machine")
def test_a_second_start_needs_no_torch(path: Path) -> None:
    fr.load(path)
    code = f"""
import sys
import forerun as fr
target = fr.load({str(path)!r})
out = fr.generate(target, "hello", drafter=fr.drafters.Suffix(), max_new_tokens=8)
assert len(out.tokens) > 0
assert not {{"torch", "transformers", "gguf"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_other_weights_of_the_same_size_are_read(path: Path) -> None:
    before, old = logits_of(fr.load(path)), path.stat()
    made(path, seed=1)
    assert path.stat().st_size == old.st_size
    assert not np.array_equal(logits_of(fr.load(path)), before)
    os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))  # as some programs that copy files do
    assert not np.array_equal(logits_of(fr.load(path)), before)


def test_a_file_may_be_moved(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, headers = logits_of(fr.load(path)), parsed(monkeypatch)
    moved = path.rename(path.with_name("moved.gguf"))
    assert np.array_equal(logits_of(fr.load(moved)), before)
    assert headers == []


def test_a_file_that_changes_while_it_is_read_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fr.load(path)
    whole, read = path.read_bytes(), blocks.Raw.read

    def changing(raw: Any, begin: int, end: int) -> Any:
        os.utime(path, ns=(1, 1))
        return read(raw, begin, end)

    with monkeypatch.context() as patched:
        patched.setattr(blocks.Raw, "read", changing)
        with pytest.raises(InputError, match=r"changed while it was read.*tiny\.gguf"):
            fr.load(path)

    def shortening(raw: Any, begin: int, end: int) -> Any:
        path.write_bytes(whole[:-1000])
        return read(raw, begin, end)

    path.write_bytes(whole)
    fr.load(path)
    with monkeypatch.context() as patched:
        patched.setattr(blocks.Raw, "read", shortening)
        with pytest.raises(InputError, match=r"became shorter while it was read.*tiny\.gguf"):
            fr.load(path)


def test_a_file_that_changed_since_gives_no_other_model_for_transformers(path: Path) -> None:
    loaded = fr.load(path)
    before = logits_of(loaded)
    made(path, seed=1)
    assert np.array_equal(logits_of(loaded), before)
    with pytest.raises(InputError, match="changed since it was loaded"):
        loaded.model  # noqa: B018


def test_a_note_that_others_may_have_written_is_not_believed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fr.load(path)
    (note,) = notes()
    note.chmod(0o666)
    headers = parsed(monkeypatch)
    fr.load(path)
    assert headers == [path]


@pytest.mark.parametrize("size", [0, 300, -1])
def test_a_torn_note_is_made_again(size: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fr.load(path)
    (note,) = notes()
    os.truncate(note, size if size >= 0 else note.stat().st_size - 1)
    headers = parsed(monkeypatch)
    fr.load(path)
    fr.load(path)
    assert headers == [path]


def test_without_a_cache_it_is_read_all_the_same(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = logits_of(fr.load(path))
    monkeypatch.setenv("FORERUN_CACHE", str(path / "inside a file"))
    assert np.array_equal(logits_of(fr.load(path)), expected)


def test_several_may_read_it_at_once(path: Path) -> None:
    expected = logits_of(fr.load(path))
    for note in notes():
        note.unlink()
    with ThreadPoolExecutor(4) as threads:
        found = [threads.submit(fr.load, path) for _ in range(8)]
    assert all(np.array_equal(logits_of(each.result()), expected) for each in found)
    assert len(notes()) == 1


def test_only_rows_of_the_embedding_that_are_needed_are_written(path: Path) -> None:
    model = fr.load(path)
    model.score(model.start(1), [0], [[3, 5]], [1])
    known = np.flatnonzero(model._embedding._is_there)
    assert set(known.tolist()) <= {0, 3, 5}
    whole = model.embedding
    assert np.array_equal(model.embeddings_of([3, 7]), whole[[3, 7]])
    plain = fr.load(path, lean=False).model
    assert np.array_equal(whole, plain.get_input_embeddings().weight.detach().numpy())


def test_rows_of_the_embedding_come_from_the_file_that_was_loaded(path: Path) -> None:
    model = fr.load(path)
    expected = model.embeddings_of([3])
    digest = model_digest(model)
    path.unlink()
    made(path, seed=1)  # another file of that name
    assert np.array_equal(model.embeddings_of([5]), model.embedding[[5]])
    assert np.array_equal(model.embeddings_of([3]), expected)
    assert model_digest(model) == digest != model_digest(fr.load(path))


def test_a_file_that_changes_while_its_model_is_in_use_is_noticed(path: Path) -> None:
    model = fr.load(path)
    expected = model.embeddings_of([3])
    with path.open("r+b") as stream:  # the same file with another byte
        stream.seek(-1, os.SEEK_END)
        stream.write(b"x")
    os.utime(path, (1, 1))
    assert np.array_equal(model.embeddings_of([3]), expected)
    for ask in (lambda: model.embeddings_of([7]), lambda: model.embedding):
        with pytest.raises(InputError, match="was changed while the model is in use"):
            ask()


@pytest.mark.skipif(not hasattr(os, "preadv"), reason="the system cannot read at a place")
def test_a_forked_process_does_not_move_where_another_reads(tmp_path: Path) -> None:
    """Both have the same opened file, and the system keeps one position for it."""
    file = tmp_path / "rows"
    file.write_bytes(bytes(range(64)))
    raw = blocks.Raw("rows", "F32", (4, 2), str(file), 16)
    with FileIO(file) as stream:
        assert raw.read_from(stream, 1, 3).tolist() == [list(range(24, 32)), list(range(32, 40))]
        assert stream.tell() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="told by /proc")
def test_a_row_of_the_embedding_takes_no_large_page() -> None:
    def taken() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    table = packed._untouched((50_000, 1024))  # 200 MB
    before = taken()
    table[::1000] = 1
    assert taken() - before < 20e6


def split(path: Path, folder: Path) -> list[Path]:
    """The same model in two files, as llama.cpp splits it."""
    whole = read_gguf(path)
    names = list(whole.tensors)
    parts = []
    for number, some in enumerate((names[:2], names[2:])):
        part = folder / f"{path.stem}-{number + 1:05}-of-00002.gguf"
        writer = GGUFWriter(part, "llama")
        for name, value in (whole.fields if number == 0 else {}).items():
            if name != "general.architecture":
                add(writer, name, value)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 2)
        writer.add_int32("split.tensors.count", len(names))
        for name in some:
            tensor = whole.tensors[name]
            data = np.fromfile(path, np.uint8, tensor.num_bytes, offset=tensor.begin)
            raw = data.reshape(tensor.shape[0], -1) if len(tensor.shape) > 1 else data
            if tensor.kind is Kind.F32:
                writer.add_tensor(name, data.view(np.float32).reshape(tensor.shape))
            else:
                writer.add_tensor(name, raw, raw_dtype=tensor.kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        parts.append(part)
    return parts


def add(writer: Any, name: str, value: Any) -> None:
    from tiny_gguf import add

    add(writer, name, value.tolist() if isinstance(value, np.ndarray) else value)


def test_a_model_in_several_files(path: Path, tmp_path: Path) -> None:
    expected = logits_of(fr.load(path))
    first, second = split(path, tmp_path)
    for part in (first, second, first):  # whichever is named
        assert np.array_equal(logits_of(fr.load(part)), expected)
    plain = fr.load(first, lean=False)
    assert np.abs(logits_of(plain) - expected).max() < 1e-4 * np.abs(expected).max()
    swapped = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(swapped)
    with pytest.raises(InputError, match=r"part 1 of 2.* in the place of 0 of 2"):
        fr.load(first)
    second.unlink()
    with pytest.raises(InputError, match=r"in 2 files, of which 1 are missing.*00002-of-00002"):
        fr.load(first)


def test_a_part_alone_is_told(path: Path, tmp_path: Path) -> None:
    first, _ = split(path, tmp_path)
    alone = first.rename(tmp_path / "part.gguf")
    with pytest.raises(InputError, match="part 0 of 2"):
        fr.load(alone)


def test_what_the_pass_does_not_fit_is_converted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("forerun.lean.weights", "forerun.models.families"):
        monkeypatch.setattr(f"{place}.why_unserved", lambda *_: "it is another")
    with pytest.warns(RuntimeWarning, match="it is another"):
        loaded = fr.load(path)
    assert loaded.pass_name.startswith("transformers")
    assert BYTE_PAIRS["tokenizer.ggml.model"] == "gpt2"


def wrong_rotary(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the pass took another base than the file says."""
    from forerun.lean import weights

    rotary_of = weights.rotary_of

    def other(*which: Any) -> Any:
        right = rotary_of(*which)
        return right._replace(frequencies=right.frequencies**1.5)

    monkeypatch.setattr(weights, "rotary_of", other)


def wrong_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if rows of queries and keys lay in transformers' order."""
    read = blocks.Raw.read
    monkeypatch.setattr(
        blocks.Raw, "read", lambda raw, begin, end: read(raw._replace(heads=0), begin, end)
    )


@pytest.mark.parametrize("large", [from_files.LARGE, 0])
@pytest.mark.parametrize("damage", [wrong_rotary, wrong_order])
def test_what_the_pass_does_not_reproduce_is_converted(
    damage: Any, large: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(from_files, "LARGE", large)
    damage(monkeypatch)
    with pytest.warns(RuntimeWarning, match="other logits than in transformers"):
        loaded = fr.load(path)
    if damage is wrong_rotary:  # that is wrong however weights are read
        assert loaded.pass_name.startswith("transformers")
        assert loaded.why_not_lean == "it does not reproduce this model"
    headers = parsed(monkeypatch)
    with pytest.warns(RuntimeWarning, match="other logits than in transformers"):
        again = fr.load(path)
    assert headers == [], "the outcome is kept"
    monkeypatch.undo()
    plain = fr.load(path, lean=False)
    theirs = logits_of(plain)
    for one in (loaded, again):
        assert np.abs(logits_of(one) - theirs).max() < 1e-4 * np.abs(theirs).max()


def test_of_a_large_file_layers_of_all_kinds_are_tried_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {**SIZES, "num_hidden_layers": 6, "sliding_window": 4, "head_dim": 32}
    kinds = [*["sliding_attention"] * 5, "full_attention"]
    model = Architecture("gemma3_text", "", {**sizes, "layer_types": kinds}).build().float()
    write(tmp_path / "gemma.gguf", model, Kind.Q8_0)
    tried: list[Any] = []
    reproduces = from_files._is_reproduced

    def watched(cut: Any, paths: Any) -> bool:
        tried.append((cut.config.layer_types, cut.config.vocab_size))
        return reproduces(cut, paths)

    monkeypatch.setattr(from_files, "_is_reproduced", watched)
    monkeypatch.setattr(from_files, "LARGE", 0)
    monkeypatch.setattr(from_files, "WORDS", 32)
    assert isinstance(fr.load(tmp_path / "gemma.gguf"), LeanModel)
    assert tried == [([*kinds[:2], kinds[5]], 32)]


def test_a_trial_that_cannot_be_kept_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(from_files, "LARGE", 0)
    monkeypatch.setenv("FORERUN_CACHE", str(path / "inside a file"))
    assert isinstance(fr.load(path), LeanModel)
    assert "is tried out at every start, because the cache" in capsys.readouterr().err


REAL = os.environ.get("FORERUN_GGUF")
TASKS = (
    "Write a Python function that {}.", "Explain in one sentence how one {}.",
    "def solution():\n    # this {}\n",
)  # fmt: skip
WORK = (
    "reverses a list", "sorts words by their length", "counts the vowels of a text",
    "finds the largest prime below 100", "reads a CSV file", "checks for a palindrome",
    "merges two dictionaries", "computes a factorial",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(REAL is None, reason="FORERUN_GGUF names no file")
def test_greedy_texts_of_a_real_file_are_those_of_transformers() -> None:
    """Those of its weights in float32; where one differs, two tokens are nearly as likely."""
    assert REAL is not None
    lean, plain = fr.load(REAL), fr.load(REAL, lean=False)
    prompts: list[Any] = [task.format(work) for task in TASKS for work in WORK]
    options: dict[str, Any] = {"drafter": None, "max_new_tokens": 24}
    texts = zip(
        prompts,
        fr.generate(lean, prompts, **options),
        fr.generate(plain, prompts, **options),
        strict=True,
    )
    num_equal = 0
    for prompt, ours, theirs in texts:
        found = diagnose(plain, prompt, ours.tokens, theirs.tokens)
        num_equal += found is None
        assert found is None or found.is_near_tie, f"{prompt!r}: {found}"
    print(f"{num_equal} of {len(prompts)} equal")


@pytest.mark.parametrize("kept", [0, 2000])
def test_a_damaged_file_is_told_before_anything_is_compiled(
    path: Path, kept: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(from_files, "LARGE", -1)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(InputError, match="it is empty" if kept == 0 else "is cut off"):
        fr.load(path, device="cpu")
    assert capfd.readouterr().err == ""
