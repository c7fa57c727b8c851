"""Every drafter, as a chain and as a tree, greedy and at temperature 0.8, in one table.

Tokens per round say how good the guesses are, tokens per second whether they pay here; prompts are
read once for all of ours.  transformers' prompt lookup is in the same run.

    python benchmarks/drafters.py [SPEC_BENCH.jsonl] [--per-group 4] [--max-new-tokens 64]
        [--only NAME ...] [--output drafters] [--target gemma3-270m --heads FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

import forerun as fr
from forerun.drafters import Heads, Mixed, NGram, Quantized, Suffix
from forerun.loading.bundled import NAME
from forerun.loading.default import default_model
from forerun.measure.job_runner import ReadOnce
from machine import result_file, save
from spec_bench import read
from turns import Contender, Record, encode, ours, take_turns, theirs

NUM_NODES, DEPTH = 16, 5
EARLY = 12  # layers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompts", nargs="?", help="Spec-Bench's file (default: our own prompts)")
    parser.add_argument("--per-group", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, nargs="*", default=[0.0, 0.8])
    parser.add_argument("--keep", action="store_true", help="keep what other temperatures gave")
    parser.add_argument("--only", nargs="*", help="measure these and plain decoding alone")
    parser.add_argument("--output", default="drafters", help="name of the JSON file")
    parser.add_argument("--target", default=NAME, help="another model, with --heads")
    parser.add_argument("--heads", help="the folder of its trained drafter (default: the shipped)")
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    is_default, size = args.target == NAME, args.max_new_tokens
    target = ReadOnce(default_model() if is_default else fr.load(args.target)).target
    plain = default_model(lean=False) if is_default else fr.load(args.target, lean=False)
    heads = Heads(args.heads)
    prompts = [(group, encode(target, text)) for group, text in read(args.prompts, args.per_group)]
    file = result_file(args.output)
    tables: dict[str, Any] = json.loads(file.read_text())["results"] if args.keep else {}
    for temperature in args.temperature:
        runs = contenders(target, plain, heads, size, temperature)
        if args.only is not None:
            runs = {name: runs[name] for name in ["no drafter", *args.only]}
        records = take_turns(runs, prompts)
        rows = table(records)
        report(temperature, rows, len(prompts))
        load = [load_before, os.getloadavg()[0]]
        tables[str(temperature)] = {"prompts": len(prompts), "load_average": load, "rows": rows}
        about: dict[str, Any] = {"target": args.target} if not is_default else {}
        about |= {"max_new_tokens": size, "nodes": NUM_NODES, "depth": DEPTH}
        save(args.output, {**about, "results": tables})


def contenders(
    target: Any, plain: Any, heads: Heads, size: int, temperature: float
) -> dict[str, Contender]:
    sampling = fr.Sampling(temperature=temperature, seed=1)
    lookup: dict[str, Any] = {"prompt_lookup_num_tokens": DEPTH, "max_matching_ngram_size": 3}
    if temperature:
        lookup |= {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    found = {
        "transformers prompt lookup": theirs(plain, size, **lookup),
        "no drafter": ours(target, size, sampling=sampling),
    }
    drafters = {
        "ngram": NGram(),
        "suffix": Suffix(),
        "quantized int8": Quantized("int8"),
        "heads": heads,
        "heads + suffix": Mixed(heads, Suffix()),
    }
    for name, drafter in drafters.items():
        both: dict[str, Any] = {"drafter": drafter, "draft_length": DEPTH, "sampling": sampling}
        found[f"{name}, chain"] = ours(target, size, **both)
        found[f"{name}, tree"] = ours(target, size, tree=NUM_NODES, **both)
    early = {"drafter": fr.drafters.EarlyExit(EARLY), "draft_length": DEPTH, "sampling": sampling}
    found[f"first {EARLY} layers, chain"] = ours(target, size, **early)
    found[f"first {EARLY} layers, tree"] = ours(target, size, tree=NUM_NODES, **early)
    return found


def table(records: dict[str, Record]) -> dict[str, Any]:
    plain = records["no drafter"]
    return {
        name: {
            "tokens_per_round": record.tokens_per_round(),
            "tokens_per_second": record.tokens_per_second(),
            "speed_against_no_drafter": record.speed_against(plain),
            "same_text_as_no_drafter": record.same_text_as(plain),
        }
        for name, record in records.items()
    }


def report(temperature: float, rows: dict[str, Any], num_prompts: int) -> None:
    print(f"\ntemperature {temperature:13}      tokens/round  tokens/s  x no drafter  same text")
    for name, row in rows.items():
        print(
            f"{name:32}{row['tokens_per_round']['mean']:12.2f}{row['tokens_per_second']:10.1f}"
            f"{row['speed_against_no_drafter']['median']:14.2f}"
            f"{row['same_text_as_no_drafter']:8} / {num_prompts}"
        )


if __name__ == "__main__":
    main()
