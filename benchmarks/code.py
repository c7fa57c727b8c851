"""Does speculation pay on a model of more than a billion parameters?  Code prompts, on a CPU.

Contenders take turns on every prompt: plain decoding, the default (suffix lookup for a model
without a drafter of its own), and a smaller model of the same family as the drafter, alone and with
suffix lookup, at "auto" and at a fixed length.  The text of all must be the same.

    python benchmarks/code.py TARGET.gguf DRAFT.gguf [--prompts FILE] [--per-group 4]
        [--max-new-tokens 96] [--heads FOLDER] [--only NAME ...] [--output code]
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import forerun as fr
from forerun.drafters import Heads, Mixed, Model, Suffix
from machine import save
from spec_bench import read
from turns import Contender, encode, ours, take_turns

PROMPTS = Path(__file__).parent / "code_prompts.jsonl"
PLAIN, LENGTH = "plain", 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", help="a GGUF file, a folder or a name")
    parser.add_argument("draft", help="a model with the same tokenizer")
    parser.add_argument("--prompts", default=str(PROMPTS))
    parser.add_argument("--per-group", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--heads", metavar="FOLDER", help="a drafter trained for the target")
    parser.add_argument("--only", nargs="*", help="measure these and plain decoding alone")
    parser.add_argument("--output", default="code", help="name of the JSON file")
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    target, draft = fr.load(args.target, "cpu"), fr.load(args.draft, "cpu")
    runs = contenders(target, Model(draft), args.heads, args.max_new_tokens)
    if args.only is not None:
        runs = {name: runs[name] for name in [PLAIN, *args.only]}
    prompts = [(group, encode(target, text)) for group, text in read(args.prompts, args.per_group)]
    records = take_turns(runs, prompts)
    results = {
        name: {
            "tokens_per_second": record.tokens_per_second(),
            "tokens_per_round": record.tokens_per_round(),
            "speed_against_plain": record.speed_against(records[PLAIN]),
            "same_text_as_plain": record.same_text_as(records[PLAIN]),
        }
        for name, record in records.items()
    }
    report(results, len(prompts))
    about = {"target": Path(args.target).name, "draft": Path(args.draft).name}
    about |= {"prompts": len(prompts), "max_new_tokens": args.max_new_tokens}
    save(args.output, {**about, "load_average": [load_before, os.getloadavg()[0]], **results})


def contenders(target: Any, model: Model, heads: str | None, size: int) -> dict[str, Contender]:
    drafters: dict[str, Any] = {
        "default": "auto",
        "model": model,
        "model + suffix": Mixed(model, Suffix()),
    }
    if heads is not None:
        drafters |= {"heads": Heads(heads), "heads + suffix": Mixed(Heads(heads), Suffix())}
    runs = {name: ours(target, size, drafter=drafter) for name, drafter in drafters.items()}
    fixed = ours(target, size, drafter=model, draft_length=LENGTH)
    return {PLAIN: ours(target, size), **runs, f"model, K = {LENGTH}": fixed}


def report(results: dict[str, Any], num_texts: int) -> None:
    print(
        f"{'':16}{'tokens/s':>10}{'tokens/round':>14}{'x plain':>10}{'with prompt':>13}  same text"
    )
    for name, row in results.items():
        beside = row["speed_against_plain"]
        print(
            f"{name:16}{row['tokens_per_second']:13.1f}{row['tokens_per_round']['mean']:13.2f}"
            f"{beside['overall']:13.2f}{beside['overall_with_prompt']:13.2f}"
            f"{row['same_text_as_plain']:6} / {num_texts}  "
            + ", ".join(f"{group} {speed:.2f}" for group, speed in beside["by_group"].items())
        )


if __name__ == "__main__":
    main()
