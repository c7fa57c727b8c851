"""A bfloat16 checkpoint on this CPU: our lean pass against transformers, in one run.

The checkpoint is SmolLM2-135M with its weights rounded to bfloat16, loaded by name as any other.
Transformers runs it as it is, in bfloat16, and as `dtype="float32"` would load it.  Contenders take
turns; each writes the same number of greedy tokens after the same prompt.

    python benchmarks/half_weights.py [--tokens 8] [--repeats 5] [--output half_weights]

A processor without bfloat16 arithmetic takes minutes for a lap of transformers in bfloat16.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # read when torch is imported

import torch

import forerun as fr
from forerun.generation.prompts import encode
from forerun.loading.default import default_model
from machine import save
from spec_bench import summary

GREEDY = fr.Sampling(temperature=0.0)
PROMPT = "Explain to a curious child, step by step and with an example, why the sky is blue."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", default="half_weights", help="name of the JSON file")
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(folder)
        lean: Any = fr.load(folder)
        plain: Any = fr.load(folder, lean=False)
        wide: Any = fr.load(folder, lean=False, dtype="float32")
    chat = [{"role": "user", "content": PROMPT}]
    prompt = encode(lean, chat)
    runs = {
        "lean, bfloat16 weights": ours(lean, prompt, args.tokens),
        "transformers, bfloat16": theirs(plain.model, prompt, args.tokens),
        "transformers, float32": theirs(wide.model, prompt, args.tokens),
    }
    seconds = take_turns(runs, args.repeats)
    base = seconds["lean, bfloat16 weights"]
    results = {
        name: {
            "tokens_per_second": summary([args.tokens / second for second in spent]),
            "lean_is_so_many_times_as_fast": summary(
                [theirs / ours for theirs, ours in zip(spent, base, strict=True)]
            ),
        }
        for name, spent in seconds.items()
    }
    for name, row in results.items():
        speed, times = row["tokens_per_second"], row["lean_is_so_many_times_as_fast"]
        print(f"{name:26}{speed['median']:8.2f} tokens/s{times['median']:8.1f} times")
    same = sum(a == b for a, b in zip(runs["lean, bfloat16 weights"](),
                                      runs["transformers, float32"](), strict=True))  # fmt: skip
    about = {
        "model": lean.pass_name,
        "prompt_tokens": len(prompt),
        "new_tokens": args.tokens,
        "tokens_equal_to_transformers_float32": same,
        "load_average": [load_before, os.getloadavg()[0]],
    }
    save(args.output, {**about, "results": results})
    least = results["transformers, bfloat16"]["lean_is_so_many_times_as_fast"]["median"]
    print(f"{'✓' if least >= 3 else '✗'} at least 3 times as fast as transformers on the same file")
    raise SystemExit(least < 3)


def save_checkpoint(folder: str) -> None:
    model: Any = default_model(device="cpu", lean=False)
    model.model.to(torch.bfloat16).save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)


def ours(target: Any, prompt: list[int], count: int) -> Callable[[], list[int]]:
    def run() -> list[int]:
        out = fr.generate(target, prompt, drafter=None, sampling=GREEDY, max_new_tokens=count)
        return list(out.tokens)

    return run


def theirs(model: Any, prompt: list[int], count: int) -> Callable[[], list[int]]:
    ids = torch.tensor([prompt])
    options = {"do_sample": False, "max_new_tokens": count}

    def run() -> list[int]:
        out = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        return [int(token) for token in out[0, len(prompt) :]]

    return run


def take_turns(runs: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each; the first lap warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for lap in range(repeats + 1):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            spent = time.perf_counter() - began
            print(f"lap {lap} of {repeats}: {name}, {spent:.1f} s", file=sys.stderr, flush=True)
            if lap:
                seconds[name].append(spent)
    return seconds


if __name__ == "__main__":
    main()
