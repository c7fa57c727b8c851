"""README and pages: their links lead somewhere, their code runs, their figures are the JSON's."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from forerun import rules
from forerun.certification.mutants import MUTANTS

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/*.md", "benchmarks/**/*.md", "deploy/**/*.md")
    for page in ROOT.glob(pattern)
)
CODE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
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
        return json.loads((ROOT / "benchmarks" / name).read_text(encoding="utf-8"))

    laptop = read("laptop.json")["results"]
    gpu, peers = read("gpu_batch1.json")["results"], read("gpu_assisted.json")["results"]
    arm, same = read("cpu_pass-aarch64.json"), read("same_text.json")
    halves = {
        name: row["tokens_per_second"]["median"]
        for name, row in read("half_weights-aarch64.json")["results"].items()
    }
    default = laptop["heads + suffix, auto"]
    runs = [read(f"laptop-x86-many-{run}.json")["results"] for run in range(9)]
    names = "forerun plain", "heads + suffix, auto"
    on_arm = [read(f"laptop-aarch64-{run}.json")["results"] for run in ("default", "again")]
    arm_rates = [
        " to ".join(f"{run[name]['tokens_per_second']:.0f}" for name in names) for run in on_arm
    ]
    plain_speeds, speeds_of = ([run[name]["tokens_per_second"] for run in runs] for name in names)
    rates = [f"{ours / plain:.2f}" for plain, ours in zip(plain_speeds, speeds_of, strict=True)]
    groups = [[run[name]["tokens_per_second_by_group"] for name in names] for run in runs]
    gains = [{g: ours[g] / plain[g] for g in plain} for plain, ours in groups]
    means = {g: sum(gain[g] for gain in gains) / len(gains) for g in gains[0]}
    single = [value for gain in gains for value in gain.values()]
    worst = min(means, key=means.__getitem__)
    speeds = {name: round(row["tokens_per_second"]) for name, row in laptop.items()}
    beside = read("laptop-x86-two-cores.json")["results"]
    x86 = {name: round(row["tokens_per_second"]) for name, row in beside.items()}
    alone = read("laptop-x86-two-cores-default.json")["results"]
    quiet = [round(alone[name]["tokens_per_second"]) for name in names]
    gpu_speeds = {
        name: round(row["tokens_per_second"])
        for name, row in gpu.items()
        if "tokens_per_second" in row
    }
    peer = {
        name.removeprefix("transformers, "): round(row["tokens_per_second"])
        for name, row in peers.items()
        if name.startswith("transformers")
    }
    arm_speeds = {name: round(speed) for name, speed in arm["greedy_tokens_per_second"].items()}
    on_arm_all = {
        name: round(row["tokens_per_second"])
        for name, row in read("laptop-aarch64.json")["results"].items()
    }
    starts = [read(f"start-{name}.json")["results"] for name in ("x86-two-cores", "aarch64")]
    first, later = (
        [round(run[which]["seconds"]["median"]) for run in starts]
        for which in ("first start", "later starts")
    )
    (identical,) = {row["identical"] for row in same["rows"]}
    return {
        "laptop": f"transformers {speeds['transformers greedy']}, ours plain "
        f"{speeds['forerun plain']}, the default drafter {speeds['heads + suffix, auto']}; "
        f"all {default['same_text_as_forerun_plain']} texts identical",
        "llama.cpp": f"llama.cpp {x86['llama.cpp']}, ours plain {x86['forerun plain']}, "
        f"the default drafter {x86['heads + suffix, auto']} |",
        "default": f"{', '.join(rates[:-1])} and {rates[-1]} times as fast; of {len(single)} "
        f"figures of task groups {sum(value < 1 for value in single)} are below one, "
        f"{min(single):.2f} in the least; {worst} {means[worst]:.2f} on average",
        "default, quiet": f"ours plain {quiet[0]}, the default drafter {quiet[1]}, "
        f"{quiet[1] / quiet[0]:.2f} times as fast",
        "ARM": f"transformers {arm_speeds['transformers']}, llama.cpp {arm_speeds['llama.cpp']}, "
        f"ours plain {arm_speeds['lean']}; four tokens cost "
        f"{arm['cost_relative_to_1_token']['lean']['4']:.1f} passes",
        "bfloat16": f"ours {halves['lean, bfloat16 weights']:.1f}; transformers in float32 "
        f"{halves['transformers, float32']:.1f}, in bfloat16",
        "bfloat16 in transformers": f"arithmetic for, {halves['transformers, bfloat16']:.2f} |",
        "GPU": "the default rule `match` K = 6 "
        f"{gpu_speeds['match, K 6, agreement 0.81, batch 1, prompt 64']}; "
        f"plain {gpu_speeds['ratio, K 0, agreement 0.81, batch 1, prompt 64']}, "
        f"`ratio` K = 6 {gpu_speeds['ratio, K 6, agreement 0.81, batch 1, prompt 64']}, "
        f"`block` K = 6 {gpu_speeds['block, K 6, agreement 0.81, batch 1, prompt 64']} |",
        "GPU peers": f"transformers plain {peer['plain']}, assisted {peer['assisted, K 5']} "
        f"at best, static and compiled {peer['static cache, compiled']} |",
        "ARM, beside others": f"transformers {on_arm_all['transformers greedy']}, llama.cpp "
        f"{on_arm_all['llama.cpp']}, ours plain {on_arm_all['forerun plain']}, the default drafter "
        f"{on_arm_all['heads + suffix, auto']}",
        "ARM, default": f"{' and '.join(arm_rates)} tokens per second",
        "first start": f"your processor, [{first[0]}](benchmarks/start-x86-two-cores.json) and "
        f"[{first[1]} s]",
        "later starts": f"later ones take {max(later)} s.",
        "same text": f"{identical} of {same['prompts']} in every configuration",
        "bugs": f"{len(MUTANTS)} of {len(MUTANTS)}",
    }


@pytest.mark.parametrize("name", list(figures()))
def test_the_figures_of_the_readme_are_those_of_the_json(name: str) -> None:
    assert figures()[name] in README.read_text(encoding="utf-8")


def test_the_readme_names_every_rule() -> None:
    text = README.read_text(encoding="utf-8")
    assert [name for name in rules.names() if f"`{name}`" not in text] == []
