"""README and pages: their links lead somewhere, their code runs, their figures are the JSON's."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from forerun import rules
from forerun.proof.mutants import MUTANTS

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = sorted(
    page
    for pattern in ("*.md", ".github/**/*.md", "docs/*.md", "benchmarks/**/*.md", "deploy/**/*.md")
    for page in ROOT.glob(pattern)
)
CODE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
PLAIN, DEFAULT = "forerun plain", "heads + suffix, auto"
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
MENTION = re.compile(r"`((?:docs|src|tests|benchmarks|deploy|scripts)/[\w./-]+\.\w+)`")


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to a page's headings."""
    headings = re.findall(
        r"^#+ (.*)$", CODE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE
    )
    texts = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w -]", "", text.lower()).strip().replace(" ", "-") for text in texts}


def dead_links(page: Path) -> list[str]:
    """Links and `paths` of a page that lead to no file, or to no heading of one."""
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    dead = [path for path in MENTION.findall(text) if not (ROOT / path).exists()]
    for link in LINK.findall(text):
        if "://" in link or link.startswith("mailto:"):
            continue
        name, _, anchor = link.partition("#")
        file = page.parent / unquote(name) if name else page
        if not file.is_file() or (anchor and anchor not in anchors(file)):
            dead.append(link)
    return dead


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_is_dead(page: Path) -> None:
    assert dead_links(page) == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    text = "# One heading\n[a](#one-heading) [b](#two) [c](no.md) [d](http://x.y) `docs/no.md`\n"
    page.write_text(f"{text}```\n[e](in-code.md)\n```\n", encoding="utf-8")
    assert dead_links(page) == ["docs/no.md", "#two", "no.md"]


@pytest.mark.compiles
def test_the_blocks_of_the_readme_run(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, Any] = {}
    for number, block in enumerate(blocks, start=1):
        exec(compile(block, f"README.md, block {number}", "exec"), names)
    assert names["out"].finish_reason == "length"
    assert len(names["verdict"].tokens()) == 2
    assert capsys.readouterr().out.endswith("False\n")


def figures() -> dict[str, str]:
    """What the README must say, worked out from the JSON files."""

    def read(name: str) -> Any:
        file = ROOT / "benchmarks" / "results" / f"{name}.json"
        return json.loads(file.read_text(encoding="utf-8"))

    def speeds(name: str) -> dict[str, int]:
        """Tokens per second of each row of a run."""
        rows = read(name)["results"]
        found = {key: row.get("tokens_per_second") for key, row in rows.items()}
        return {key: round(speed) for key, speed in found.items() if speed is not None}

    def gain(name: str) -> str:
        rows = read(name)["results"]
        plain, default = (rows[key]["tokens_per_second"] for key in (PLAIN, DEFAULT))
        link = f"[{default:.0f} instead of {plain:.0f}](benchmarks/results/{name}.json)"
        return f"{link}, {default / plain:.2f} times"

    same = read("h200/gpu_same_text")["rows"]
    (cases,) = {f"{row['same']} of {row['of']}" for row in same}
    speculative = [row for row in same if "plain" not in row.values()]
    sampled = speeds("aarch64-2-cores/laptop-sampled")
    arm = speeds("aarch64-2-cores/laptop")
    coder, peer = read("x86-2-cores/code"), read("x86-2-cores/cpu_pass-1.5b")
    coding = [coder[name]["tokens_per_second"] for name in ("default", "plain")]
    on_gpu = read("h200/code-1.5b")
    drafted, alone = speeds("h200/gpu_batch1"), speeds("h200/gpu_ratio")
    cell = "{}, K {}, agreement {}, batch 1, prompt 64"
    starts = [read(f"{machine}/start")["results"] for machine in ("x86-2-cores", "aarch64-2-cores")]
    first, later = (
        [round(run[which]["seconds"]["median"]) for run in starts]
        for which in ("first start", "later starts")
    )
    return {
        "same text": f"{cases} texts of SmolLM2-135M in each of {len(speculative)} ways",
        "x86": gain("x86-2-cores/laptop"),
        "ARM": gain("aarch64-2-cores/laptop-default"),
        "1.5B": "[{:.0f} instead of {:.0f}](benchmarks/results/x86-2-cores/code.json), ".format(
            *coding
        )
        + f"{coder['default']['speed_against_plain']['overall']:.2f} times as fast; llama.cpp "
        + f"[{peer['greedy_tokens_per_second']['llama.cpp']:.0f}]",
        "1.5B, trained": "[{:.0f} instead of {:.0f}](benchmarks/results/x86-2-cores/".format(
            *(coder[name]["tokens_per_second"] for name in ("heads + suffix", "plain"))
        ),
        "1.5B, H200": "[{:.0f} instead of {:.0f}](benchmarks/results/h200/".format(
            *(on_gpu[name]["tokens_per_second"] for name in ("heads", "plain"))
        ),
        "sampled": f"[{sampled[f'{DEFAULT}, T 0.8']} instead of {sampled[f'{PLAIN}, T 0.8']}]",
        "CPU pass": f"[{arm[PLAIN]}](benchmarks/results/aarch64-2-cores/laptop.json); "
        f"llama.cpp {arm['llama.cpp']} on the same file, "
        f"transformers {arm['transformers greedy']} |",
        "four tokens": "four tokens costs "
        f"{read('aarch64-2-cores/cpu_pass')['cost_relative_to_1_token']['lean']['4']:.1f} of one",
        "GPU": f"[{drafted[cell.format('match', 6, '0.81')]} instead of "
        f"{drafted[cell.format('match', 0, '0.81')]}]",
        "GPU pass": f"[{alone[cell.format('ratio', 0, '0.80')]}]"
        "(benchmarks/results/h200/gpu_ratio.json); transformers compiled "
        f"{alone['transformers, static cache, compiled']}, "
        f"as it is {alone['transformers, plain']} |",
        "first start": f"[{first[0]}](benchmarks/results/x86-2-cores/start.json) "
        f"and [{first[1]} s]",
        "later starts": f"later ones take {max(later)} s.",
        "bugs": f"{len(MUTANTS)} of {len(MUTANTS)}; bias",
    }


@pytest.mark.parametrize("name", list(figures()))
def test_the_figures_of_the_readme_are_those_of_the_json(name: str) -> None:
    assert figures()[name] in README.read_text(encoding="utf-8")


def test_the_readme_names_every_rule() -> None:
    text = README.read_text(encoding="utf-8")
    assert [name for name in rules.names() if f"`{name}`" not in text] == []
