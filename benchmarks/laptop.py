"""Does the default pay off on a laptop?  The default model and its drafters, on a CPU.

In one run: transformers' greedy decoding, ours without a drafter, ours as the default does it
(heads and suffix, draft length "auto"), and ours with the shipped drafter alone: "auto", and as a
chain and a tree of given size, greedy and sampled.  The text of all of ours must be the same.
Beside them, where they are named: llama.cpp on the same GGUF file, and another version of ours.

    python benchmarks/laptop.py [SPEC_BENCH.jsonl] [--per-group 8] [--max-new-tokens 128]
        [--output laptop] [--llama-server PROGRAM] [--old SRC]
"""

from __future__ import annotations

import argparse
import json
import os
from contextlib import ExitStack
from typing import Any

import forerun as fr
from forerun.lean.crew import usual_threads
from forerun.loading.bundled import packaged_weights
from forerun.loading.default import default_model
from llama_server import ABOUT, LEFT_OUT, start_llama
from machine import result_file, save
from other_tree import other_tree
from spec_bench import read
from turns import Contender, Record, encode, ours, take_turns, theirs

LENGTH, NODES, HEAT = 5, 16, 0.8
PEER, PLAIN = "transformers greedy", "forerun plain"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompts", nargs="?", help="Spec-Bench's file (default: our own prompts)")
    parser.add_argument("--per-group", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--only", nargs="*", help="measure these again, keep the rest")
    parser.add_argument("--output", default="laptop", help="name of the JSON file")
    parser.add_argument("--llama-server", metavar="PROGRAM", help="llama.cpp's server")
    parser.add_argument("--old", metavar="SRC", help="the source folder of another version")
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    target, size = default_model(), args.max_new_tokens
    contenders = our_contenders(target, size)
    if args.only is not None:
        contenders = {name: run for name, run in contenders.items() if name in args.only}
    if args.only is None or PEER in args.only:
        contenders = {PEER: theirs(default_model(lean=False), size), **contenders}
    prompts = [(group, encode(target, text)) for group, text in read(args.prompts, args.per_group)]
    about: dict[str, Any] = {"prompts": len(prompts), "max_new_tokens": size}
    with ExitStack() as stack:
        about["llama.cpp"] = LEFT_OUT
        if args.llama_server:
            gguf = packaged_weights()
            if gguf is None:
                parser.error("--llama-server needs the default model's pip package")
            running = start_llama(args.llama_server, gguf, usual_threads())
            server = stack.enter_context(running)
            contenders["llama.cpp"] = server.contender(size)
            about["llama.cpp"] = f"build {server.build}: {ABOUT}"
        if args.old:
            contenders |= stack.enter_context(other_tree(args.old, size, HEAT))
        records = take_turns(contenders, prompts, args.repeats)
    results = {name: figures(name, record, records) for name, record in records.items()}
    report(results, len(prompts) * args.repeats)
    print(about["llama.cpp"])
    about["load_average"] = [load_before, os.getloadavg()[0]]
    written = result_file(args.output)
    if args.only is not None and written.exists():
        known = json.loads(written.read_text())
        results = {**known["results"], **results}
        before = {"command": known["machine"]["command"], "load": known["load_average"]}
        about["the_rest"] = known.get("the_rest", before)  # of the run that measured them all
    save(args.output, {**about, "results": results})


def our_contenders(target: Any, size: int) -> dict[str, Contender]:
    heads = fr.drafters.Heads()
    both = fr.drafters.Mixed(heads, fr.drafters.Suffix())
    drafted: dict[str, dict[str, Any]] = {
        "heads, auto": {"draft_length": "auto"},
        f"heads, chain of {LENGTH}": {"draft_length": LENGTH},
        f"heads, tree of {NODES}": {"draft_length": LENGTH, "tree": NODES},
    }
    contenders: dict[str, Contender] = {
        PLAIN: ours(target, size),
        "heads + suffix, auto": ours(target, size, drafter=both),
    }
    for name, how in drafted.items():
        contenders[name] = ours(target, size, drafter=heads, **how)
    warm = fr.Sampling(temperature=HEAT, seed=1)
    for name, how in [(PLAIN, {}), *list(drafted.items())[1:]]:
        how = {**how, "drafter": heads} if how else {}
        contenders[f"{name}, T {HEAT}"] = ours(target, size, sampling=warm, **how)
    contenders[f"heads + suffix, auto, T {HEAT}"] = ours(target, size, sampling=warm, drafter=both)
    return contenders


def figures(name: str, record: Record, records: dict[str, Record]) -> dict[str, Any]:
    """Of one contender, beside every other that stands for something."""
    is_sampled = name.endswith(f"T {HEAT}")
    warmth = f", T {HEAT}" if is_sampled else ""
    plain = records.get(PLAIN + warmth) or records[PLAIN]
    others = {"transformers": PEER, "llama_cpp": "llama.cpp"}
    others |= {"old_plain": f"old plain{warmth}", "old_default": f"old default{warmth}"}
    return {
        "tokens_per_second": record.tokens_per_second(),
        "tokens_per_second_by_group": record.tokens_per_second_by_group(),
        "tokens_per_second_with_prompt": record.tokens_per_second_with_prompt(),
        "tokens_per_round": record.tokens_per_round(),
        "speed_against_forerun_plain": record.speed_against(plain),
        **{
            f"speed_against_{key}": record.speed_against(records[other])
            for key, other in others.items()
            if other in records
        },
        "same_text_as_forerun_plain": record.same_text_as(plain),
    }


def report(results: dict[str, Any], num_texts: int) -> None:
    shown = {"transformers": "x transformers", "llama_cpp": "x llama.cpp"}
    shown |= {"old_plain": "x old plain", "old_default": "x old default"}
    shown = {f"speed_against_{key}": title for key, title in shown.items()}
    shown = {key: title for key, title in shown.items() if key in next(iter(results.values()))}
    shown["speed_against_forerun_plain"] = "x our plain"
    titles = ["tokens/s", "tokens/round", *shown.values(), "same text"]
    print(" " * 28 + "  ".join(f"{title:>14}" for title in titles))
    for name, row in results.items():
        speeds = [row["tokens_per_second"], row["tokens_per_round"]["mean"]]
        speeds += [row[key]["median"] for key in shown]
        texts = f"{row['same_text_as_forerun_plain']} / {num_texts}"
        print(f"{name:28}" + "  ".join(f"{speed:14.2f}" for speed in speeds) + f"  {texts:>14}")
    groups = next(iter(results.values()))["tokens_per_second_by_group"]
    print(f"{'tokens/s by group':28}" + "  ".join(f"{group:>14}" for group in groups))
    for name, row in results.items():
        speeds = row["tokens_per_second_by_group"].values()
        print(f"{name:28}" + "  ".join(f"{speed:14.1f}" for speed in speeds))


if __name__ == "__main__":
    main()
