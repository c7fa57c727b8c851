"""What a pass of a few tokens costs on this CPU: the lean pass against transformers, in one run.

Contenders take turns at every size, so that a slow minute of the machine hits them alike.  OpenMP
is told not to spin: for some milliseconds after a pass of transformers its threads would take the
core of whoever comes next.  The read rate of the lean 1-token pass stands beside what the machine
reads when it does nothing else.  Where the lean pass multiplies few-bit weights in whole numbers,
"lean floats" is the same pass without: a process of its own, because one kind serves a process.
With `--llama-server` or `--llama-python` llama.cpp reads the same GGUF file: passes of one token,
prompts, decoding.  `--brief` leaves out all other contenders but llama.cpp, and most passes, for
models of more than a billion parameters.

    python benchmarks/cpu_pass.py [--target FILE.gguf] [--repeats 15] [--output cpu_pass]
        [--brief] [--llama-server PROGRAM | --llama-python INTERPRETER]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # read when torch is imported

import numba
import numpy as np
import torch
from transformers import DynamicCache

import forerun as fr
import llama_python
from forerun.lean.crew import Crew, share, usual_threads
from forerun.lean.jit import compiled
from forerun.lean.model import LeanModel
from forerun.lean.scalar import total
from forerun.lean.shape import DOT_PRODUCTS, best_shape
from forerun.loading.bundled import NAME, gguf_file
from llama_python import LlamaPython
from llama_server import ABOUT, LEFT_OUT, LlamaServer, start_llama
from machine import save
from spec_bench import summary

SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 17)
CONTEXT = 64  # tokens before the pass
CONTEXTS = (64, 500, 1000, 2000)  # before passes of one token
PROMPT_SIZES = (64, 256)
NEW_TOKENS = 64
SETTLE = 0.02  # seconds in which the threads of another process stop to spin
TEXT = "Explain to a curious child, step by step and with an example, why the sky is blue. " * 120

Runs = dict[tuple[str, int], Callable[[], Any]]  # by title and size
Rows = dict[int, dict[str, Callable[[], Any]]]  # of a table: by size and contender


class Timed(NamedTuple):
    """What a contender that has a clock of its own took."""

    milliseconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default=NAME, help="a model that the lean pass takes")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--output", default="cpu_pass", help="name of the JSON file")
    parser.add_argument("--llama-server", metavar="PROGRAM", help="llama.cpp's server")
    parser.add_argument("--llama-python", metavar="INTERPRETER", help="with llama_cpp")
    parser.add_argument("--brief", action="store_true")
    options = parser.parse_args()
    gguf = gguf_file(options.target)
    if (options.llama_server or options.llama_python) and gguf is None:
        parser.error("llama.cpp needs a target of one GGUF file: the default or a path")
    load_before = os.getloadavg()[0]
    began = time.perf_counter()
    lean: Any = fr.load(options.target, "cpu", lean=True)
    pass_of(lean, [1], 1)()
    about: dict[str, Any] = {"model": lean.name, "seconds_to_start": time.perf_counter() - began}
    about["model"] = Path(about["model"]).name if gguf and options.target != NAME else lean.name
    tokens = lean.tokenizer.encode(TEXT)
    sizes, contexts = ((1, 2, 4, 8), ()) if options.brief else (SIZES, CONTEXTS)
    contenders = {"lean": runs_of(lean, tokens, sizes, contexts)}
    if not options.brief:
        if DOT_PRODUCTS:
            contenders["lean floats"] = runs_with_floats(options.target)
        contenders["lean int8"] = runs_of(LeanModel(lean.model, int8=True), tokens)
        contenders["transformers"] = runs_of_transformers(lean.model, tokens)
    with ExitStack() as stack:
        about["llama.cpp"] = LEFT_OUT
        if options.llama_server or options.llama_python:
            assert gguf is not None
            running: Any = start_llama(options.llama_server, gguf, usual_threads())
            if options.llama_python:
                running = llama_python.start_llama(options.llama_python, gguf, usual_threads())
            server = stack.enter_context(running)
            runs = runs_of_llama(server, tokens)
            contenders["llama.cpp"] = {
                key: run for key, run in runs.items() if key[0] != "context" or contexts
            }
            about["llama.cpp"] = f"build {server.build}: {ABOUT}"
        measured = measure(contenders, lean, options.repeats, sizes, contexts)
        results = {**about, **measured}
    results["load_average"] = [load_before, os.getloadavg()[0]]
    report(results)
    save(options.output, results)


def measure(
    contenders: dict[str, Runs],
    lean: LeanModel,
    repeats: int,
    sizes: tuple[int, ...],
    contexts: tuple[int, ...],
) -> dict[str, Any]:
    """Figures of all contenders, in turns."""

    def table(title: str, sizes: tuple[int, ...]) -> Rows:
        return {
            size: {n: runs[title, size] for n, runs in contenders.items() if (title, size) in runs}
            for size in sizes
        }

    milliseconds = take_turns(table("pass", sizes), repeats)
    weight_bytes = lean._weights.matrices.panels.nbytes
    read_seconds = repeat(read_everything(lean), repeats)
    by_context = take_turns(table("context", contexts), repeats)
    few = max(min(5, repeats), repeats // 3)
    greedy = take_turns(table("greedy", (NEW_TOKENS,)), few)
    greedy_ms = greedy[NEW_TOKENS]
    prompts = take_turns(table("prompt", PROMPT_SIZES), few)
    one = milliseconds[1]
    tables = {"pass": {1: one}, "prompt": prompts, "greedy": greedy}
    return {
        "numba": numba.__version__,
        "tile": best_shape()._asdict(),
        "dot_products": DOT_PRODUCTS,
        "context": CONTEXT,
        "pass_ms": milliseconds,
        "cost_relative_to_1_token": {name: by_one(milliseconds, name) for name in contenders},
        "speed_beside": {
            name: {
                title: {
                    size: row[name]["median"] / row["lean"]["median"]
                    for size, row in rows.items()
                    if name in row
                }
                for title, rows in tables.items()
            }
            for name in contenders
            if name != "lean"
        },
        "context_ms": by_context,
        "cost_of_context": {
            name: by_context[contexts[-1]][name]["median"] / by_context[contexts[0]][name]["median"]
            for name in contenders
            if contexts
        },
        "prompt_ms": prompts,
        "greedy_tokens_per_second": {
            name: NEW_TOKENS / spent["median"] * 1e3 for name, spent in greedy_ms.items()
        },
        "weights_gb": weight_bytes / 1e9,
        "gb_per_second": {
            "lean 1-token pass": weight_bytes / one["lean"]["median"] / 1e6,
            "reading alone": weight_bytes / statistics.median(read_seconds) / 1e9,
        },
    }


def runs_of(
    model: LeanModel,
    tokens: list[int],
    sizes: tuple[int, ...] = SIZES,
    contexts: tuple[int, ...] = CONTEXTS,
) -> Runs:
    """What a contender is asked to do, by title and size."""
    return {
        **{("pass", size): pass_of(model, tokens, size) for size in sizes},
        **{("prompt", size): pass_of(model, tokens, size, context=0) for size in PROMPT_SIZES},
        **{("context", size): pass_of(model, tokens, 1, context=size) for size in contexts},
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


def runs_of_llama(server: LlamaServer | LlamaPython, tokens: list[int]) -> Runs:
    """A pass of several tokens is not among them: the server gives logits after the last alone."""

    def one_token(context: int, slot: int) -> Timed:
        return Timed(server.token_ms(tokens[:context], slot))

    def prompt(size: int) -> Timed:
        return Timed(server.complete(tokens[:size], 1).prompt_ms)

    def greedy() -> Timed:
        answer = server.complete(tokens[:CONTEXT], NEW_TOKENS, ignore_eos=True)
        return Timed(answer.prompt_ms + answer.next_ms)

    slots = {context: slot for slot, context in enumerate(CONTEXTS, 1)}  # prompts are read in 0
    return {
        ("pass", 1): partial(one_token, CONTEXT, slots[CONTEXT]),
        **{("prompt", size): partial(prompt, size) for size in PROMPT_SIZES},
        **{("context", size): partial(one_token, size, slot) for size, slot in slots.items()},
        ("greedy", NEW_TOKENS): greedy,
    }


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
    lean: Any = fr.load(target, "cpu", lean=True)
    runs = runs_of(lean, lean.tokenizer.encode(TEXT))
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
    cache = DynamicCache()  # all keys of every layer: those of a sliding window cannot be cropped
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


def take_turns(rows: Rows, repeats: int) -> dict[int, dict[str, dict[str, float]]]:
    """Milliseconds by size and contender: median, quartiles and the best."""
    spent: dict[tuple[int, str], list[float]] = {}
    for turn in range(repeats + 1):
        for size, row in rows.items():
            for name, run in row.items():
                began = time.perf_counter()
                answer = run()
                milliseconds = (time.perf_counter() - began) * 1e3
                if isinstance(answer, Timed):
                    milliseconds = answer.milliseconds
                    time.sleep(SETTLE)
                if turn:  # the first warms up
                    spent.setdefault((size, name), []).append(milliseconds)
    return {
        size: {name: {**summary(spent[size, name]), "best": min(spent[size, name])} for name in row}
        for size, row in rows.items()
    }


def by_one(milliseconds: dict[int, dict[str, dict[str, float]]], name: str) -> dict[int, float]:
    one = milliseconds[1][name]["median"]
    return {size: row[name]["median"] / one for size, row in milliseconds.items() if name in row}


def report(results: dict[str, Any]) -> None:
    for title in ("pass_ms", "prompt_ms", "context_ms"):
        sizes = results[title]
        print(f"{title:22}" + "".join(f"{size:>8}" for size in sizes))
        for name in next(iter(sizes.values()), ()):
            shown = (f"{row[name]['median']:.1f}" if name in row else "-" for row in sizes.values())
            print(f"  {name:20}" + "".join(f"{text:>8}" for text in shown))
    keys = ("greedy_tokens_per_second", "gb_per_second", "cost_relative_to_1_token")
    for key in (*keys, "cost_of_context"):
        print(key, results[key])
    for key in ("speed_beside", "load_average", "seconds_to_start"):
        print(key, results[key])
    print(results["llama.cpp"])


if __name__ == "__main__":
    main()
