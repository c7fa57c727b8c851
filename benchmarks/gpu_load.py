"""A GPU under load: users who each send a request when their last one is answered, through
`AsyncEngine`.

    python benchmarks/gpu_load.py [--output gpu_load] [--users 1 8 64 128 256] [--kinds bare mixed]
        [--drafts no yes] [--per-user 3] [--agreement 0.8] [--size 8b] [--seconds 500]
        [--peer] [--peer-users 64]

The models are those of benchmarks/gpu.py.  "bare": prompts of 500 tokens, 128 new ones at
temperature 1.  "mixed": prompts of 64 to 8,000 tokens, most of them short, 32 to 256 new ones, and
in turn bare, top-k 20 with top-p 0.95, penalties, a grammar, log-probabilities, and a pair of
samples of one prompt.  All users begin at once, which is the hardest moment, and requests come as
answers end.  A cell has tokens in and out per second, milliseconds to the first token and between
pieces at p50, p95 and p99, and the share of the limit: prompts at the rate of a large product, and
for every round of all users the weights and the keys once at the bandwidth of a large reduction.
"device" says how rounds spent the time: which share of them read prompts, or had drafts, the
milliseconds from one result to the next, and how many tokens of prompts a reading round read.
One request of each user comes before the first cell of a size: rounds are captured then.
Bare cells come first, then the mixed ones, as far as there is time.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import math
import random
import time
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import torch

import forerun as fr
from device_time import noting_rounds
from forerun.gpu.model import GpuModel
from gpu import bandwidth, milliseconds
from llama_pair import Pair
from machine import save

BARE_PROMPT, BARE_NEW = 500, 128
SHORTEST, LONGEST = 64, 8000
NUM_ALLOWED = 1000  # tokens of the grammar


class Few:
    """A grammar, and its matcher: every token is one of a fixed set."""

    def matcher(self, tokenizer: Any, vocab_size: int, endings: Any) -> Few:
        self.allowed = np.arange(0, vocab_size, vocab_size // NUM_ALLOWED)
        self._set = set(self.allowed.tolist())
        return self

    def accept(self, token: int) -> bool:
        return token in self._set

    def rollback(self, count: int) -> None: ...

    def mask(self) -> Any:
        return self.allowed

    def forced(self) -> list[int]:
        return []


@dataclass
class Request:
    """What a user sends."""

    prompt: list[int]
    num_new: int
    options: dict[str, Any] = field(default_factory=dict)  # of `fr.Sampling`
    logprobs: int | None = None


KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"top_k": 20, "top_p": 0.95},
    {"repetition_penalty": 1.1, "presence_penalty": 0.2},
    {"grammar": Few()},
    {"logprobs": 1},
    {"pair": True},
)


def requests(kind: str, count: int, vocab_size: int) -> list[Request]:
    """The same for every cell."""
    drawn, made = random.Random(7), []
    for number in range(count):
        length, num_new, options = BARE_PROMPT, BARE_NEW, {}
        if kind == "mixed":
            share = drawn.random() ** 2  # half of all prompts have less than 215 tokens
            length = round(SHORTEST * math.exp(share * math.log(LONGEST / SHORTEST)))
            num_new, options = drawn.randint(32, 256), dict(KINDS[number % len(KINDS)])
        prompt = [drawn.randrange(vocab_size) for _ in range(length)]
        if options.pop("pair", False):
            prompt = made[-1].prompt  # another sample of the last one
        made.append(Request(prompt, num_new, options, options.pop("logprobs", None)))
    return made


@dataclass
class Times:
    """Of the answers of a cell."""

    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    num_out: int = 0
    seconds: float = 0.0


async def answer_all(engine: fr.AsyncEngine, asked: list[Request], num_users: int) -> Times:
    """All requests, of so many users at a time."""
    times, waiting, begin = Times(), iter(enumerate(asked)), time.perf_counter()

    async def user() -> None:
        for number, request in waiting:
            sampling = fr.Sampling(temperature=1.0, seed=number, **request.options)
            last, is_first = time.perf_counter(), True
            answer = engine.submit(
                request.prompt, sampling=sampling, max_new_tokens=request.num_new, ignore_eos=True,
                logprobs=request.logprobs,
            )  # fmt: skip
            async for piece in answer:
                now = time.perf_counter()
                (times.first if is_first else times.gaps).append(now - last)
                last, is_first = now, False
                times.num_out += len(piece.tokens)

    await asyncio.gather(*[user() for _ in range(num_users)])
    times.seconds = time.perf_counter() - begin
    return times


def percentiles(values: list[float]) -> dict[str, float]:
    """In milliseconds."""
    return {f"p{at}": round(1e3 * float(np.percentile(values, at)), 1) for at in (50, 95, 99)}


class Bench:
    """A pair, what it can do at best, and what was measured."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.pair = Pair(args.size)
        self.target = GpuModel(self.pair.target)
        self.agreement = self.pair.agree(args.agreement)
        self.drafter = fr.drafters.Model(GpuModel(self.pair.draft))
        self.bandwidth, self.products = bandwidth(), product_rate()
        self.weights = self.target._weights
        self.cells: list[dict[str, Any]] = []
        print(f"agreement {self.agreement:.2f}, {self.bandwidth / 1e12:.2f} TB/s, "
              f"{self.products / 1e12:.0f} Tflop/s", flush=True)  # fmt: skip

    def limit(self, asked: list[Request], num_users: int) -> float:
        """Seconds for these requests at least, without drafts."""
        form = self.weights.form
        keys = 4 * len(form.layers) * form.num_key_heads * form.head_size  # of a token
        num_in = sum(len(request.prompt) for request in asked)
        num_out = sum(request.num_new for request in asked)
        contexts = sum(r.num_new * (len(r.prompt) + r.num_new / 2) for r in asked)
        num_bytes = self.weights.num_bytes * num_out / num_users + keys * contexts
        return num_in * self.weights.num_bytes / self.products + num_bytes / self.bandwidth

    def cell(self, kind: str, num_users: int, with_drafts: bool, *, is_kept: bool = True) -> None:
        gc.collect()  # engines of other cells, and their keys and values
        torch.cuda.empty_cache()
        per_user = self.args.per_user if is_kept else 1
        asked = requests(kind, per_user * num_users, self.target.vocab_size)

        async def run() -> Times:
            drafter = self.drafter if with_drafts else None
            async with fr.AsyncEngine(self.target, drafter=drafter, max_batch=num_users) as engine:
                return await answer_all(engine, asked, num_users)

        try:
            with noting_rounds(self.target) as noted:
                times = asyncio.run(run())
        except fr.ForerunError as error:
            print(f"{kind}, {num_users} users: {error}", flush=True)
            self.cells.append({"kind": kind, "users": num_users, "drafts": with_drafts,
                               "failed": str(error).splitlines()[0]})  # fmt: skip
            return
        num_in = sum(len(request.prompt) for request in asked)
        cell = {
            "kind": kind,
            "users": num_users,
            "drafts": with_drafts,
            "requests": len(asked),
            "out_per_second": round(times.num_out / times.seconds),
            "in_per_second": round(num_in / times.seconds),
            "first_token_ms": percentiles(times.first),
            "gap_ms": percentiles(times.gaps),
            "of_limit": round(self.limit(asked, num_users) / times.seconds, 3),
            "gigabytes": round(torch.cuda.memory_reserved() / 1e9, 1),
            "device": noted.summary(),
        }
        print("" if is_kept else "not counted:", cell, flush=True)
        if is_kept:
            self.cells.append(cell)
            self.save()

    def peer(self, num_users: int) -> None:
        """transformers' continuous batching on the bare requests, all handed over at once."""
        from transformers import GenerationConfig

        asked = requests("bare", self.args.per_user * num_users, self.target.vocab_size)
        model = self.pair.target
        config = GenerationConfig(max_new_tokens=BARE_NEW, do_sample=True, eos_token_id=-1,
                                  pad_token_id=0, top_k=0)  # fmt: skip
        begin = time.perf_counter()
        made = model.generate_batch([request.prompt for request in asked], generation_config=config)
        taken = time.perf_counter() - begin
        num_out = sum(len(one.generated_tokens) for one in made.values())
        cell = {"kind": "transformers' continuous batching, bare", "users": num_users,
                "out_per_second": round(num_out / taken)}  # fmt: skip
        print(cell, flush=True)
        self.cells.append(cell)
        self.save()

    def save(self) -> None:
        results = {"model": self.pair.about, "agreement": self.agreement,
                   "bytes_per_second": self.bandwidth,
                   "operations_per_second": self.products, "cells": self.cells}  # fmt: skip
        save(self.args.output, results, "cuda")


def product_rate(size: int = 8192) -> float:
    """Operations per second of a large product of random numbers."""
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / (milliseconds(lambda: a @ b, 10) / 1e3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", default="gpu_load", help="name of the JSON file")
    parser.add_argument("--size", default="8b")
    parser.add_argument("--users", nargs="+", type=int, default=[1, 8, 64, 128, 256])
    parser.add_argument("--kinds", nargs="+", default=["bare", "mixed"])
    parser.add_argument("--drafts", nargs="+", default=["no", "yes"], choices=["no", "yes"])
    parser.add_argument("--per-user", type=int, default=3, help="requests")
    parser.add_argument("--agreement", type=float, default=0.8)
    parser.add_argument("--peer", action="store_true", help="transformers' continuous batching too")
    parser.add_argument("--peer-users", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=500, help="after which no cell begins")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_load: no CUDA device, nothing measured")
        return
    begin, bench, known = time.perf_counter(), Bench(args), set()
    for kind, num_users, drafts in product(args.kinds, args.users, args.drafts):
        if time.perf_counter() - begin > args.seconds:
            break
        if (num_users, drafts) not in known:
            known.add((num_users, drafts))
            bench.cell(kind, num_users, drafts == "yes", is_kept=False)
        bench.cell(kind, num_users, drafts == "yes")
    if args.peer:
        bench.peer(args.peer_users)


if __name__ == "__main__":
    main()
