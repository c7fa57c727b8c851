"""Same seed, same text in bfloat16 on a GPU: SmolLM2, plain against every way of speculating.

    python benchmarks/gpu_same_text.py [SPEC_BENCH.jsonl] [--output gpu_same_text]

24 prompts at temperature 0 and 0.8, with draft lengths of 2, 5 and "auto" and a tree of 16, three
drafters, in batches of 1 and 8.  A draft model of two layers is made of the target's own.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from typing import Any

import torch

import forerun as fr
from forerun.gpu.model import GpuModel
from forerun.loading.default import default_model
from machine import result_file, write
from spec_bench import read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompts", nargs="?", help="Spec-Bench's file (default: our own prompts)")
    parser.add_argument("--output", default="gpu_same_text", help="name of the JSON file")
    parser.add_argument("--num-prompts", type=int, default=24)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--only", nargs="+", default=[""], help="parts of the names of cases")
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 0.8])
    args = parser.parse_args()
    target = default_model("cuda")
    print(target, flush=True)
    texts = [text for _, text in read(args.prompts, 4)][: args.num_prompts]
    chats = [[{"role": "user", "content": text}] for text in texts]
    drafters = {
        "first layers as a model": fr.drafters.Model(first_layers(target, 6)),
        "suffix": fr.drafters.Suffix(),
        "heads": fr.drafters.Heads(),
    }
    rows: list[dict[str, Any]] = []
    for temperature in args.temperatures:
        how = {
            "sampling": fr.Sampling(temperature=temperature, seed=7),
            "max_new_tokens": args.max_new_tokens,
        }
        begin = time.perf_counter()
        plain = [fr.generate(target, chat, drafter=None, **how).tokens for chat in chats]
        seconds = time.perf_counter() - begin
        rate = sum(map(len, plain)) / seconds
        print(f"plain, temperature {temperature}: {rate:.0f} tokens/s", flush=True)
        for batch in (1, 8):
            cases: list[tuple[str, dict[str, Any]]] = (
                [("plain", {"drafter": None})] if batch > 1 else []
            )
            for name, drafter in drafters.items():
                cases += [
                    (f"{name}, K {length}", {"drafter": drafter, "draft_length": length})
                    for length in (2, 5, "auto")
                ]
                cases.append((f"{name}, tree of 16", {"drafter": drafter, "tree": 16}))
            for name, case in cases:
                if not any(part in name for part in args.only):
                    continue
                begin = time.perf_counter()
                outs = [
                    out
                    for at in range(0, len(chats), batch)
                    for out in fr.generate(
                        target, chats[at : at + batch], batch_size=batch, **case, **how
                    )
                ]
                seconds = time.perf_counter() - begin
                same = sum(a == b.tokens for a, b in zip(plain, outs, strict=True))
                emitted = sum(len(out.tokens) for out in outs)
                rows.append(
                    {
                        "case": name,
                        "temperature": temperature,
                        "batch": batch,
                        "same": same,
                        "of": len(chats),
                        "tokens_per_second": emitted / seconds,
                        "tokens_per_round": emitted / sum(out.stats.rounds for out in outs),
                        "notes": sorted({note for out in outs for note in out.stats.notes}),
                    }
                )
                print(rows[-1], flush=True)
    made = {
        "command": " ".join(["python", *sys.argv]),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "model": repr(target),
        "rows": rows,
    }
    write(result_file(args.output, "cuda"), made)
    print("all the same:", all(row["same"] == row["of"] for row in rows))


def first_layers(target: Any, count: int) -> GpuModel:
    """The first layers of a model under its own head, as a model of their own."""
    short = copy.copy(target.model)
    short._modules = dict(target.model._modules)
    short.model = copy.copy(target.model.model)
    short.model._modules = dict(target.model.model._modules)
    short.model.layers = target.model.model.layers[:count]
    short.config = copy.deepcopy(target.model.config)
    short.config.num_hidden_layers = count
    return GpuModel(short, target.tokenizer)


if __name__ == "__main__":
    main()
