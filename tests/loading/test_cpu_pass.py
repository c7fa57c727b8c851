"""Which pass a model gets: by what fits and agrees, by asking, and without Numba."""

from __future__ import annotations

import importlib
import importlib.util
import random
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import Architecture, fresh_logits, largest, random_tokens
from words import save_tokenizer

pytest.importorskip("numba")

import forerun as fr
from forerun.base.errors import InputError, MissingExtraError, UnsupportedError
from forerun.cli import main
from forerun.lean.model import LeanModel
from forerun.lean.weights import unfit
from forerun.loading import cpu_pass
from forerun.loading.cpu_pass import choose
from forerun.models import HuggingFaceModel


def tiny(**options: Any) -> Any:
    return Architecture("llama", "", {"intermediate_size": 64, **options}, dtype=torch.float32)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a float32 model and its tokenizer."""
    folder = tmp_path_factory.mktemp("saved")
    tiny().build().save_pretrained(folder)
    save_tokenizer(folder)
    return str(folder)


def test_loading_takes_the_pass_that_fits(saved: str) -> None:
    model = fr.load(saved)
    assert type(model) is LeanModel
    assert model.name == saved
    assert model.tokenizer.convert_ids_to_tokens([3]) == ["w3"]
    assert type(fr.load(saved, lean=True)) is LeanModel
    assert type(fr.load(saved, lean=False)) is HuggingFaceModel
    with pytest.warns(RuntimeWarning, match=r"rounded to bfloat16.*computes in float32"):
        assert "lean CPU pass in float32, bfloat16 weights)" in repr(
            fr.load(saved, dtype="bfloat16")
        )
    assert type(fr.load(saved, dtype="float64")) is HuggingFaceModel
    assert type(fr.wrap(model.model)) is HuggingFaceModel  # never by itself: weights are copied


def test_no_stopwatch_chooses_the_pass(saved: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy minute must not change the last bits of a script's second run."""

    def refuse() -> float:
        raise AssertionError("the time was read")

    for clock in ("perf_counter", "monotonic", "process_time"):
        monkeypatch.setattr(time, clock, refuse)
    assert type(choose(HuggingFaceModel(tiny().build()))) is LeanModel
    assert type(choose(HuggingFaceModel(tiny(hidden_act="gelu").build()))) is HuggingFaceModel


def test_a_model_says_which_pass_runs(saved: str) -> None:
    lean, plain = fr.load(saved), fr.load(saved, lean=False)
    size = "llama of 22.5k parameters"
    assert repr(lean) == f"LeanModel({saved!r}, {size}, lean CPU pass in float32, float32 weights)"
    assert repr(plain) == f"HuggingFaceModel({saved!r}, {size}, transformers, float32, cpu)"
    plain.start(1, 8)
    assert plain.pass_name == "transformers, float32, cpu"  # as before it was tried out
    rounded = fr.load(saved, quantize="int8")
    told = f"{size}, lean CPU pass in float32, 8-bit weights"
    assert repr(rounded) == f"LeanModel('{saved}-int8', {told})"


def test_a_pass_that_was_not_taken_has_a_reason(
    saved: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fr.load(saved, lean=False).why_not_lean == "lean=False asked for transformers"
    with pytest.warns(RuntimeWarning, match="runs on transformers, not on the faster lean"):
        assert "not all 32 or 16 bits" in fr.load(saved, dtype="float64").why_not_lean
    assert fr.wrap(tiny().build()).why_not_lean == "only `load` takes it: the weights are copied"
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.warns(RuntimeWarning, match="Numba is not installed"):
        assert 'pip install "forerun[cpu]"' in fr.load(saved).why_not_lean


def test_int8_is_another_target_by_name(saved: str) -> None:
    model = fr.load(saved, quantize="int8")
    assert type(model) is LeanModel
    assert model.name == f"{saved}-int8"
    text = random_tokens(random.Random(0), 9)
    logits = model.score(model.start(1, 16), [0], [text], [9])[0]
    assert 1e-3 < largest(logits - fresh_logits(model.model, text)) < 1


def test_a_model_that_is_not_reproduced_is_not_taken() -> None:
    broken = tiny().build()
    mlp = broken.model.layers[1].mlp
    mlp.forward = lambda x, forward=mlp.forward: 1.5 * forward(x)  # nothing else would tell
    plain = HuggingFaceModel(broken)
    assert unfit(broken) == ""
    assert choose(plain) is plain
    assert plain.why_not_lean == "it does not reproduce this model"
    with pytest.raises(UnsupportedError, match="does not reproduce"):
        choose(plain, lean=True)
    with pytest.raises(UnsupportedError, match="does not reproduce"):
        cpu_pass.rounded(plain)


def test_a_compiler_that_fails_costs_a_warning_only(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = HuggingFaceModel(tiny().build())

    def fail(*_: Any) -> None:
        raise RuntimeError("unknown processor")

    monkeypatch.setattr(cpu_pass, "LeanModel", fail)
    with pytest.warns(UserWarning, match="unknown processor"):
        assert choose(plain) is plain
    assert plain.why_not_lean == "unknown processor"
    with pytest.raises(UnsupportedError, match=r"RuntimeError: unknown processor\. Use lean=False"):
        choose(plain, lean=True)


def forget(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """Have packages imported anew; after the test the old ones are back, in their parents too."""
    for package in packages:
        if "." in package:
            monkeypatch.setattr(package, importlib.import_module(package))
    for name in [name for name in sys.modules if name.startswith(packages)]:
        monkeypatch.delitem(sys.modules, name)


def test_without_numba_the_plain_pass_is_used(saved: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch, "forerun.lean", "forerun.loading.cpu_pass")
    monkeypatch.setitem(sys.modules, "numba", None)
    assert type(fr.load(saved)).__name__ == "HuggingFaceModel"
    for options in ({"lean": True}, {"quantize": "int8"}):
        with pytest.raises(MissingExtraError, match=r'pip install "forerun\[cpu\]"'):
            fr.load(saved, **options)


def test_a_numba_that_cannot_be_imported_is_named(
    saved: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As when NumPy is newer than the Numba beside it."""
    ours = "forerun.lean", "forerun.loading.cpu_pass", "forerun.loading.from_files"
    forget(monkeypatch, *ours, "numba")
    (tmp_path / "numba.py").write_text("raise ImportError('Numba needs NumPy 2.3 or less')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.warns(UserWarning, match=r"needs NumPy 2\.3 or less"):
        assert type(fr.load(saved)).__name__ == "HuggingFaceModel"
    with pytest.raises(MissingExtraError, match=r"needs NumPy 2\.3 or less"):
        fr.load(saved, lean=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lean": "yes"}, "Unknown choice"),
        ({"quantize": "int4"}, "Unknown rounding"),
        ({"gpu_memory": "1.5"}, "a share of the device, or an amount"),
        ({"gpu_memory": "0"}, "a share of the device, or an amount"),
        ({"gpu_memory": "much"}, "such as 40GiB"),
        ({"quantize": "int8", "lean": False}, "need the lean CPU pass"),
        ({"kv_dtype": "int8"}, "Unknown rounding of keys"),
        ({"kv_dtype": "float8", "device": "cpu"}, "Only the lean GPU pass"),
        ({"kv_dtype": "float8", "device": "cuda", "lean": False}, "Only the lean GPU pass"),
    ],
)
def test_bad_choices_are_refused_before_anything_is_loaded(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        fr.load("nowhere", **options)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], ("auto", None, None, None)),
        (["--no-lean"], (False, None, None, None)),
        (["--quantize=int8"], ("auto", "int8", None, None)),
        (["--gpu-memory=40GiB"], ("auto", None, "40GiB", None)),
        (["--kv-dtype=float8"], ("auto", None, None, "float8")),
    ],
)
def test_the_command_line_has_the_same_switches(
    flags: list[str], expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def load(*_: Any, lean: Any, quantize: Any, gpu_memory: Any, kv_dtype: Any) -> None:
        asked.append((lean, quantize, gpu_memory, kv_dtype))
        raise InputError("enough")

    monkeypatch.setattr("forerun.cli.loading.load", load)
    assert main(["generate", "hello", "--target", "some", "--drafter", "none", *flags]) == 2
    assert asked == [expected]
