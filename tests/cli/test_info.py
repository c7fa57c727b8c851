"""`forerun info` and `forerun completion`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from forerun.base.version import __version__
from forerun.cli import completion, info, main
from forerun.cli.commands import commands_of, make_parser
from forerun.cli.completion import bash, fish, zsh

Capture = pytest.CaptureFixture[str]


def test_version(capsys: Capture) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"forerun {__version__}\n"


def test_info_tells_versions_passes_and_caches(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("FORERUN_CACHE", str(cache))
    assert main(["info", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["versions"]["forerun"] == __version__
    assert told["passes"]["transformers"] == "yes"
    assert told["caches"]["converted models"] == f"nothing in {cache}"
    assert told["caches"]["packed models"] == f"nothing in {cache / 'packed'}"
    (cache / "packed").mkdir(parents=True)
    (cache / "weights").write_bytes(bytes(3_000_000))
    (cache / "packed" / "a").write_bytes(bytes(4_000_000))
    (cache / "packed" / "b").write_bytes(bytes(4_000_000))
    assert main(["info"]) == 0
    shown = capsys.readouterr().out
    assert f"converted models      3 MB, 1 file in {cache}" in shown
    assert f"packed models         8 MB, 2 files in {cache / 'packed'}" in shown
    assert "lean CPU pass" in shown
    assert "no model is kept" not in shown
    monkeypatch.setenv("FORERUN_CACHE", str(cache / "weights" / "inside"))
    assert main(["info"]) == 0
    assert "inside cannot be made (Not a directory); set FORERUN_CACHE" in capsys.readouterr().out


def test_the_package_is_a_program_too() -> None:
    shown = subprocess.run([sys.executable, "-m", "forerun", "--version"], capture_output=True)
    assert shown.stdout.decode() == f"forerun {__version__}\n"


def test_info_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(info, "_has", lambda module: module not in ("numba", "triton"))
    passes = info._passes(has_gpu=True)
    assert passes["transformers"] == "yes"
    assert passes["lean CPU pass"] == 'no, numba missing: pip install "forerun[hf,cpu]"'
    assert passes["lean GPU pass"] == 'no, triton missing: pip install "forerun[hf,gpu]"'
    assert info._extra("cpu") == 'missing numba: pip install "forerun[cpu]"'
    assert info._extra("hf") == "installed"
    monkeypatch.setattr(info, "_has", lambda module: True)
    assert info._passes(has_gpu=False)["lean GPU pass"] == "no, there is no CUDA device"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with things of ours, with somebody else's, and with a link out of it."""
    folder, digest = tmp_path / "cache", "0123456789abcdef"
    monkeypatch.setenv("FORERUN_CACHE", str(folder))
    for name in (
        "SmolLM2-135M-Instruct-1/model.safetensors",
        f"mine-{digest}-1/model.safetensors",
        f"mine-{digest}-1.x7/model/part",
        f"packed/{digest * 2}-{digest}",
        f"contents/{digest * 2}.json",
        "thesis/chapter-1/text",
        "packed/thesis",
        "thesis-1/text",
        "letter",
        "../elsewhere/precious",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(bytes(2_000_000))
    (folder / f"linked-{digest}-1").symlink_to(tmp_path / "elsewhere")
    (folder / f"mine-{digest}-1" / "link").symlink_to(tmp_path / "elsewhere")
    return folder


def left_in(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if not file.is_dir()}


KEPT = {"thesis/chapter-1/text", "packed/thesis", "thesis-1/text", "letter"}


def test_the_cache_is_cleared_of_what_is_ours_and_of_nothing_else(
    cache: Path, capsys: Capture
) -> None:
    assert main(["info", "--clear-cache", "--yes"]) == 0
    shown = capsys.readouterr().out
    assert f"Forerun made this in {cache}" in shown
    assert "         2 MB  SmolLM2-135M-Instruct-1\n" in shown
    assert "Removed 10 MB." in shown
    assert left_in(cache) == KEPT
    assert (cache / "linked-0123456789abcdef-1").is_symlink()
    assert (cache.parent / "elsewhere" / "precious").exists()
    assert main(["info", "--clear-cache", "--yes"]) == 0
    assert "has made nothing in" in capsys.readouterr().out


def test_the_cache_is_cleared_only_if_somebody_agrees(
    cache: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = left_in(cache)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    assert main(["info", "--clear-cache"]) == 2
    assert "Add --yes" in capsys.readouterr().err
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    for answer, is_removed in (("", False), ("no", False), ("y", True)):
        monkeypatch.setattr("builtins.input", lambda _, answer=answer: answer)
        assert main(["info", "--clear-cache"]) == int(not is_removed)
        assert (left_in(cache) == KEPT) is is_removed
        assert is_removed or left_in(cache) == before


def completions(*words: str) -> list[str]:
    """What bash offers for the last of these words."""
    line = " ".join(f"'{word}'" for word in words)
    script = f"{bash(make_parser())}\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _forerun\n"
    script += 'printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "--norc", "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_commands_options_and_values() -> None:
    assert set(commands_of(make_parser())) <= set(completions("forerun", ""))
    assert completions("forerun", "gen") == ["generate"]
    assert completions("forerun", "--v") == ["--version"]
    assert completions("forerun", "generate", "--temp") == ["--temperature"]
    assert completions("forerun", "generate", "--drafter", "ng") == ["ngram"]
    assert completions("forerun", "generate", "hello", "--dtype", "b") == ["bfloat16"]
    assert completions("forerun", "generate", "hel") == []
    assert completions("forerun", "doctor", "--rule", "bl") == ["block"]
    assert completions("forerun", "serve", "--device", "cu") == ["cuda"]
    assert completions("forerun", "generate", "--target", "nowh") == []
    assert completions("forerun", "completion", "") == ["bash", "zsh", "fish"]
    assert completions("forerun", "nosuch", "--x") == []


def test_what_is_installed_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell that starts waits for it."""
    looks: list[None] = []
    monkeypatch.setattr(completion, "names", lambda: looks.append(None) or ["ngram"])
    completion.known_values.cache_clear()
    assert "ngram" in bash(make_parser())
    completion.known_values.cache_clear()
    assert len(looks) == 1


@pytest.mark.parametrize(("shell", "script"), [("bash", bash), ("zsh", zsh), ("fish", fish)])
def test_each_shell_gets_a_script_it_can_read(
    shell: str, script: object, capsys: Capture, tmp_path: Path
) -> None:
    assert main(["completion", shell]) == 0
    shown = capsys.readouterr().out
    for command in ("generate", "serve", "doctor", "info"):
        assert command in shown
    assert "max-new-tokens" in shown
    if shutil.which(shell) is not None:
        file = tmp_path / "script"
        file.write_text(shown)
        subprocess.run([shell, "-n", str(file)], check=True)


def test_fish_has_a_line_for_each_option() -> None:
    lines = fish(make_parser()).splitlines()
    (dtype,) = [line for line in lines if "subcommand_from doctor'" in line and "-l dtype" in line]
    assert "-x -a 'float32 bfloat16 float16 float64'" in dtype
    (stats,) = [
        line for line in lines if "subcommand_from generate'" in line and "-l stats" in line
    ]
    assert " -r" not in stats
    assert all(line.count("'") % 2 == line.count("\\'") % 2 for line in lines)
