"""Does speculation pay on a model of more than a billion parameters?  Code prompts.

Contenders take turns on every prompt: plain decoding, the default (suffix lookup for a model
without a drafter of its own), a smaller model of the same family as the drafter, alone and with
suffix lookup, at "auto" and at a fixed length, and networks that were trained for the target, as
chains and as raced trees.  The text of all must be the same.

    python benchmarks/code.py TARGET DRAFT [--prompts FILE] [--per-group 4] [--device cuda]
        [--dtype bfloat16] [--max-new-tokens 96] [--temperature 0.8] [--heads FOLDER]
        [--block FOLDER] [--only NAME ...] [--output code]

TARGET and DRAFT are GGUF files, folders or names.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import forerun as fr
from forerun.drafters import Block, Heads, Mixed, Model, Suffix
from machine import save
from spec_bench import read
from turns import encode, ours, take_turns

PROMPTS = Path(__file__).parent / "code_prompts.jsonl"
PLAIN, LENGTH, NODES = "plain", 4, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", help="a GGUF file, a folder or a name")
    parser.add_argument("draft", help="a model with the same tokenizer")
    parser.add_argument("--prompts", default=str(PROMPTS))
    parser.add_argument("--per-group", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", help="of a folder's weights")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--heads", metavar="FOLDER", help="a drafter trained for the target")
    parser.add_argument("--block", metavar="FOLDER", help="a block drafter trained for it")
    parser.add_argument("--only", nargs="*", help="measure these and plain decoding alone")
    parser.add_argument("--output", default="code", help="name of the JSON file")
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    target = fr.load(args.target, args.device, args.dtype)
    draft = fr.load(args.draft, args.device, args.dtype)
    print(f"{target}, {target.pass_name}", flush=True)
    sampling = fr.Sampling(temperature=args.temperature, seed=1)
    runs = {
        name: ours(target, args.max_new_tokens, sampling=sampling, **how)
        for name, how in contenders(Model(draft), args.heads, args.block).items()
        if args.only is None or name in (PLAIN, *args.only)
    }
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
    about: dict[str, Any] = {"target": Path(args.target).name, "draft": Path(args.draft).name}
    about |= {"prompts": len(prompts), "max_new_tokens": args.max_new_tokens}
    about |= {"temperature": args.temperature, "pass": target.pass_name}
    load = [load_before, os.getloadavg()[0]]
    save(args.output, {**about, "load_average": load, **results}, args.device)


def contenders(model: Model, heads: str | None, block: str | None) -> dict[str, dict[str, Any]]:
    """The options of each contender."""
    found: dict[str, dict[str, Any]] = {
        PLAIN: {},
        "default": {"drafter": "auto"},
        "model": {"drafter": model},
        "model + suffix": {"drafter": Mixed(model, Suffix())},
        f"model, K = {LENGTH}": {"drafter": model, "draft_length": LENGTH},
    }
    networks = [("heads", Heads, heads), ("block", Block, block)]
    for name, kind, folder in networks:
        if folder is None:
            continue
        drafter = kind(folder)
        found[name] = {"drafter": drafter}
        found[f"{name} + suffix"] = {"drafter": Mixed(kind(folder), Suffix())}
        found[f"{name}, K = {LENGTH}"] = {"drafter": drafter, "draft_length": LENGTH}
        found[f"{name}, raced tree"] = {"drafter": drafter, "draft_length": 6, "tree": NODES}
    return found


def report(results: dict[str, Any], num_texts: int) -> None:
    print(
        f"{'':16}{'tokens/s':>10}{'tokens/round':>14}{'x plain':>10}{'with prompt':>13}  same text"
    )
    for name, row in results.items():
        beside = row["speed_against_plain"]
        print(
            f"{name:20}{row['tokens_per_second']:13.1f}{row['tokens_per_round']['mean']:13.2f}"
            f"{beside['overall']:13.2f}{beside['overall_with_prompt']:13.2f}"
            f"{row['same_text_as_plain']:6} / {num_texts}  "
            + ", ".join(f"{group} {speed:.2f}" for group, speed in beside["by_group"].items())
        )


if __name__ == "__main__":
    main()
