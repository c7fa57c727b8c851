"""Does the default pay off on a laptop?  The default model and its drafters, on a CPU.

In one run: transformers' greedy decoding, ours without a drafter, ours as the default does it
(heads and suffix, draft length "auto"), and ours with the shipped drafter alone: "auto", and as a
chain and a tree of given size, greedy and sampled.  The text of all of ours must be the same.

    python benchmarks/laptop.py [SPEC_BENCH.jsonl] [--per-group 8] [--max-new-tokens 128]
        [--output laptop]
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import forerun as fr
from forerun.models.default import default_model
from spec_bench import read, save
from turns import Contender, encode, ours, take_turns, theirs

LENGTH, NODES, HEAT = 5, 16, 0.8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompts", nargs="?", help="Spec-Bench's file (default: our own prompts)")
    parser.add_argument("--per-group", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--only", nargs="*", help="measure these again, keep the rest")
    parser.add_argument("--output", default="laptop", help="name of the JSON file")
    args = parser.parse_args()
    place = Path(__file__).with_name(args.output)
    load_before = os.getloadavg()[0]
    target, plain, size = default_model(), default_model(lean=False), args.max_new_tokens
    heads = fr.drafters.Heads()
    contenders: dict[str, Contender] = {
        "transformers greedy": theirs(plain, size),
        "forerun plain": ours(target, size),
    }
    drafted: dict[str, dict[str, Any]] = {
        "heads, auto": {"draft_length": "auto"},
        f"heads, chain of {LENGTH}": {"draft_length": LENGTH},
        f"heads, tree of {NODES}": {"draft_length": LENGTH, "tree": NODES},
    }
    both = fr.drafters.Mixed(heads, fr.drafters.Suffix())
    contenders["heads + suffix, auto"] = ours(target, size, drafter=both)
    for name, how in drafted.items():
        contenders[name] = ours(target, size, drafter=heads, **how)
    warm = fr.Sampling(temperature=HEAT, seed=1)
    for name, how in [("forerun plain", {}), *list(drafted.items())[1:]]:
        how = {**how, "drafter": heads} if how else {}
        contenders[f"{name}, T {HEAT}"] = ours(target, size, sampling=warm, **how)
    contenders[f"heads + suffix, auto, T {HEAT}"] = ours(target, size, sampling=warm, drafter=both)
    prompts = [(group, encode(target, text)) for group, text in read(args.prompts, args.per_group)]
    if args.only is not None:
        contenders = {name: run for name, run in contenders.items() if name in args.only}
    records = take_turns(contenders, prompts, args.repeats)
    peer = records["transformers greedy"]
    greedy, sampled = records["forerun plain"], records.get(f"forerun plain, T {HEAT}")
    results: dict[str, Any] = {
        name: {
            "tokens_per_second": record.tokens_per_second(),
            "tokens_per_second_with_prompt": record.tokens_per_second_with_prompt(),
            "tokens_per_round": record.tokens_per_round(),
            "speed_against_transformers": record.speed_against(peer),
            "speed_against_forerun_plain": record.speed_against(own),
            "same_text_as_forerun_plain": record.same_text_as(own),
        }
        for name, record in records.items()
        for own in [sampled if sampled and name.endswith(f"T {HEAT}") else greedy]
    }
    print(f"{'':28}tokens/s  tokens/round  x transformers  x our plain  same text")
    for name, found in results.items():
        print(
            f"{name:28}{found['tokens_per_second']:8.1f}{found['tokens_per_round']['mean']:14.2f}"
            f"{found['speed_against_transformers']['median']:16.2f}"
            f"{found['speed_against_forerun_plain']['median']:13.2f}"
            f"{found['same_text_as_forerun_plain']:8} / {len(prompts) * args.repeats}"
        )
    load = [load_before, os.getloadavg()[0]]
    about = {"prompts": len(prompts), "max_new_tokens": size, "load_average": load}
    written = place.with_suffix(".json")
    if args.only is not None and written.exists():
        known = json.loads(written.read_text())
        results = {**known["results"], **results}
        before = {"command": known["machine"]["command"], "load": known["load_average"]}
        about["the_rest"] = known.get("the_rest", before)  # of the run that measured them all
    save(str(place), {**about, "results": results})


if __name__ == "__main__":
    main()
