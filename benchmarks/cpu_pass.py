"""What a pass of a few tokens costs on this CPU: the lean pass against transformers, in one run.

Contenders take turns at every size, so that a slow minute of the machine hits them alike.  OpenMP
is told not to spin: for some milliseconds after a pass of transformers its threads would take the
core of whoever comes next.  The read rate of the lean 1-token pass stands beside what the machine
reads when it does nothing else.  Where the lean pass multiplies few-bit weights in whole numbers,
"lean floats" is the same pass without: a process of its own, because one kind serves a process.

    python benchmarks/cpu_pass.py [--target gemma3-270m] [--repeats 15] [--output cpu_pass]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # read when torch is imported

import numba
import numpy as np
import torch
from transformers import DynamicCache

import forerun as fr
from forerun.lean.crew import Crew, share
from forerun.lean.jit import compiled
from forerun.lean.model import LeanModel
from forerun.lean.scalar import total
from forerun.lean.shape import DOT_PRODUCTS, best_shape
from forerun.models.bundled import NAME
from forerun.models.default import default_model
from spec_bench import save, summary

SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 17)
CONTEXT = 64  # tokens before the pass
CONTEXTS = (64, 500, 1000, 2000)  # before passes of one token
PROMPT_SIZES = (64, 256)
NEW_TOKENS = 64
TEXT = "Explain to a curious child, step by step and with an example, why the sky is blue. " * 120

Runs = dict[tuple[str, int], Callable[[], Any]]  # by title and size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default=NAME, help="a model that the lean pass takes")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--output", default="cpu_pass", help="name of the JSON file")
    options = parser.parse_args()
    repeats = options.repeats
    load_before = os.getloadavg()[0]
    plain = load(options.target)
    began = time.perf_counter()
    lean, int8 = LeanModel(plain.model, plain.tokenizer), LeanModel(plain.model, int8=True)
    for model in (lean, int8):
        pass_of(model, [1], 1)()
    seconds_to_start = time.perf_counter() - began
    tokens = plain.tokenizer.encode(TEXT)
    contenders = {"lean": runs_of(lean, tokens)}
    if DOT_PRODUCTS:
        contenders["lean floats"] = runs_with_floats(options.target)
    contenders["lean int8"] = runs_of(int8, tokens)
    contenders["transformers"] = runs_of_transformers(plain.model, tokens)

    def table(title: str, sizes: tuple[int, ...]) -> dict[int, dict[str, Callable[[], Any]]]:
        return {
            size: {name: runs[title, size] for name, runs in contenders.items()} for size in sizes
        }

    milliseconds = take_turns(table("pass", SIZES), repeats)
    ratios = {name: by_one(milliseconds, name) for name in contenders}
    weight_bytes = lean._weights.matrices.panels.nbytes
    read_seconds = repeat(read_everything(lean), repeats)
    by_context = take_turns(table("context", CONTEXTS), repeats)
    few = max(5, repeats // 3)
    greedy_seconds = take_turns(table("greedy", (NEW_TOKENS,)), few)[NEW_TOKENS]
    results = {
        "model": plain.name,
        "numba": numba.__version__,
        "tile": best_shape()._asdict(),
        "dot_products": DOT_PRODUCTS,
        "load_average": [load_before, os.getloadavg()[0]],
        "seconds_to_start": seconds_to_start,
        "context": CONTEXT,
        "pass_ms": milliseconds,
        "cost_relative_to_1_token": ratios,
        "speedup_of_a_1_token_pass": milliseconds[1]["transformers"]["median"]
        / milliseconds[1]["lean"]["median"],
        "context_ms": by_context,
        "cost_of_context": {
            name: by_context[CONTEXTS[-1]][name]["median"] / by_context[CONTEXTS[0]][name]["median"]
            for name in contenders
        },
        "prompt_ms": take_turns(table("prompt", PROMPT_SIZES), few),
        "greedy_tokens_per_second": {
            name: NEW_TOKENS / own["median"] * 1e3 for name, own in greedy_seconds.items()
        },
        "greedy_speedup": greedy_seconds["transformers"]["median"]
        / greedy_seconds["lean"]["median"],
        "weights_gb": weight_bytes / 1e9,
        "gb_per_second": {
            "lean 1-token pass": weight_bytes / milliseconds[1]["lean"]["median"] / 1e6,
            "reading alone": weight_bytes / statistics.median(read_seconds) / 1e9,
        },
    }
    report(results)
    save(str(Path(__file__).with_name(options.output)), results)


def runs_of(model: LeanModel, tokens: list[int]) -> Runs:
    """What a contender is asked to do, by title and size."""
    return {
        **{("pass", size): pass_of(model, tokens, size) for size in SIZES},
        **{("prompt", size): pass_of(model, tokens, size, context=0) for size in PROMPT_SIZES},
        **{("context", size): pass_of(model, tokens, 1, context=size) for size in CONTEXTS},
        ("greedy", NEW_TOKENS): decoding(model, tokens[:CONTEXT]),
    }


def runs_of_transformers(model: Any, tokens: list[int]) -> Runs:
    prompts = {
        ("prompt", size): pass_of_transformers(model, tokens, size, context=0)
        for size in PROMPT_SIZES
    }
    contexts = {
        ("context", size): pass_of_transformers(model, tokens, 1, context=size) for size in CONTEXTS
    }
    return {
        **{("pass", size): pass_of_transformers(model, tokens, size) for size in SIZES},
        **prompts,
        **contexts,
        ("greedy", NEW_TOKENS): decoding_of_transformers(model, tokens[:CONTEXT]),
    }


def load(target: str) -> Any:
    """The transformers model."""
    return default_model(lean=False) if target == NAME else fr.load(target, lean=False)


def runs_with_floats(target: str) -> Runs:
    """The lean pass of another process, which is told to multiply floats."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    os.environ["FORERUN_DOT_PRODUCTS"] = "0"
    context.Process(target=serve, args=(there, target), daemon=True).start()
    del os.environ["FORERUN_DOT_PRODUCTS"]

    def ask(title: str, size: int) -> None:
        here.send((title, size))
        here.recv()

    sizes = {"pass": SIZES, "prompt": PROMPT_SIZES, "context": CONTEXTS, "greedy": (NEW_TOKENS,)}
    keys = [(title, size) for title, row in sizes.items() for size in row]
    return {key: partial(ask, *key) for key in keys}


def serve(pipe: Any, target: str) -> None:
    """Run what is asked for until the other process ends; reading waits without spinning."""
    assert not DOT_PRODUCTS
    plain = load(target)
    runs = runs_of(LeanModel(plain.model, plain.tokenizer), plain.tokenizer.encode(TEXT))
    with suppress(EOFError):
        while True:
            runs[pipe.recv()]()
            pipe.send(None)


def pass_of(
    model: LeanModel, tokens: list[int], size: int, context: int = CONTEXT
) -> Callable[[], Any]:
    """Score `size` tokens after `context` others, again and again."""
    state = model.start(1, context + size)
    if context and len(tokens) > context:
        model.score(state, [0], [tokens[:context]], [1])
        model.commit(state, [0], [context])
    new = tokens[context : context + size] if len(tokens) > context else tokens
    wanted = len(new) if context else 1

    def run() -> Any:
        logits = model.score(state, [0], [new], [wanted])
        model.commit(state, [0], [0])
        return logits

    return run


def pass_of_transformers(
    model: Any, tokens: list[int], size: int, context: int = CONTEXT
) -> Callable[[], Any]:
    cache = DynamicCache(config=model.config)
    ids = torch.tensor([tokens[context : context + size]])
    wanted = size if context else 1
    if context:
        with torch.inference_mode():
            model(torch.tensor([tokens[:context]]), past_key_values=cache, logits_to_keep=1)

    def run() -> Any:
        with torch.inference_mode():
            logits = model(ids, past_key_values=cache, logits_to_keep=wanted).logits
            cache.crop(-size)
        return logits

    return run


def decoding(model: LeanModel, prompt: list[int]) -> Callable[[], Any]:
    return lambda: fr.generate(
        model, prompt, drafter=None, max_new_tokens=NEW_TOKENS, ignore_eos=True
    )


def decoding_of_transformers(model: Any, prompt: list[int]) -> Callable[[], Any]:
    ids = torch.tensor([prompt])
    options = {"do_sample": False, "min_new_tokens": NEW_TOKENS, "max_new_tokens": NEW_TOKENS}
    return lambda: model.generate(ids, attention_mask=torch.ones_like(ids), **options)


def read_everything(model: LeanModel) -> Callable[[], None]:
    """Add up all weights: a pass cannot be faster than this."""
    panels = model._weights.matrices.panels
    panels = panels[: panels.size // 4096 * 4096].reshape(-1, 4096)
    sums = np.zeros(len(panels), np.float32)
    crew = Crew()
    return lambda: crew.run(1, add_up, panels, sums)


@compiled
def add_up(board: Any, panels: Any, sums: Any) -> None:
    for item in share(board, 0, len(panels)):
        sums[item] = total(panels[item], panels.shape[1])


def repeat(run: Callable[[], Any], repeats: int) -> list[float]:
    run()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return seconds


def take_turns(
    rows: dict[int, dict[str, Callable[[], Any]]], repeats: int
) -> dict[int, dict[str, dict[str, float]]]:
    """Milliseconds by size and contender: median, quartiles and the best."""
    spent: dict[tuple[int, str], list[float]] = {}
    for turn in range(repeats + 1):
        for size, row in rows.items():
            for name, run in row.items():
                began = time.perf_counter()
                run()
                if turn:  # the first warms up
                    own = spent.setdefault((size, name), [])
                    own.append((time.perf_counter() - began) * 1e3)
    return {
        size: {name: {**summary(spent[size, name]), "best": min(spent[size, name])} for name in row}
        for size, row in rows.items()
    }


def by_one(milliseconds: dict[int, dict[str, dict[str, float]]], name: str) -> dict[int, float]:
    one = milliseconds[1][name]["median"]
    return {size: row[name]["median"] / one for size, row in milliseconds.items()}


def report(results: dict[str, Any]) -> None:
    for title in ("pass_ms", "prompt_ms", "context_ms"):
        sizes = results[title]
        print(f"{title:22}" + "".join(f"{size:>8}" for size in sizes))
        for name in next(iter(sizes.values())):
            print(f"  {name:20}" + "".join(f"{row[name]['median']:8.1f}" for row in sizes.values()))
    keys = ("greedy_tokens_per_second", "gb_per_second", "cost_relative_to_1_token")
    for key in (*keys, "cost_of_context"):
        print(key, results[key])
    for key in ("speedup_of_a_1_token_pass", "greedy_speedup", "load_average", "seconds_to_start"):
        print(key, results[key])


if __name__ == "__main__":
    main()
