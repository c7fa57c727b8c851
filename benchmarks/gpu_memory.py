"""A GPU whose memory for keys and values is short: users who come and go, and a pool that is full.

    python benchmarks/gpu_memory.py [--output gpu_memory] [--parts churn full] [--size 8b]
        [--users 64] [--seconds 60] [--longest 30000] [--gpu-memory 0.9]
        [--requests 48] [--pages 120]

The models are those of benchmarks/gpu.py.  "churn": each user sends a text of 100 to `longest`
tokens (the logarithm is uniform) and has 16 to 256 new ones; one answer in ten is aborted.  Every
tenth of the time is a line: bytes that the process has, rounds and passes that are captured,
answers, preemptions.  Memory must not grow after the first, nor captures once texts of every
length have come.  "full": requests of 64 to 1,500 tokens on a pool of `pages` pages, at temperature
1, alone and then all together: how many texts differ, and how often requests went back to the
queue.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import time
from typing import Any

import torch

import forerun as fr
from forerun.gpu.model import GpuModel
from forerun.loading.lean_pass import memory_of
from llama_pair import Pair
from machine import save

SHORTEST = 100
NUM_LINES = 10
FULL_USERS = 32


def prompt_of(drawn: random.Random, shortest: int, longest: int, vocab_size: int) -> list[int]:
    length = round(shortest * math.exp(drawn.random() * math.log(longest / shortest)))
    return [drawn.randrange(vocab_size) for _ in range(length)]


class Churn:
    """Users who send one request after another until the time is up."""

    def __init__(self, target: GpuModel, args: argparse.Namespace) -> None:
        self.target, self.args = target, args
        self.num_answers = self.num_tokens = self.num_preemptions = 0
        self.lines: list[dict[str, Any]] = []

    async def user(self, engine: fr.AsyncEngine, number: int, end: float) -> None:
        drawn, count = random.Random(number), 0
        while time.perf_counter() < end:
            prompt = prompt_of(drawn, SHORTEST, self.args.longest, self.target.vocab_size)
            sampling = fr.Sampling(temperature=1.0, seed=1000 * number + count)
            count += 1
            answer = engine.submit(prompt, sampling=sampling, ignore_eos=True,
                                   max_new_tokens=drawn.randint(16, 256))  # fmt: skip
            leaves_after = drawn.randrange(1, 100) if drawn.random() < 0.1 else None
            async for piece in answer:
                self.num_tokens += len(piece.tokens)
                if leaves_after is not None and self.num_tokens % 100 == leaves_after:
                    answer.abort()
            self.num_preemptions += (await answer).stats.preemptions
            self.num_answers += 1

    async def watch(self, engine: fr.AsyncEngine, begin: float) -> None:
        for number in range(1, NUM_LINES + 1):
            await asyncio.sleep(
                max(0.0, begin + number * self.args.seconds / NUM_LINES - time.perf_counter())
            )
            storage = engine._worker._engine._state.storage
            line = {
                "seconds": round(time.perf_counter() - begin, 1),
                "gigabytes": round(torch.cuda.memory_reserved() / 1e9, 2),
                "rounds": len(storage.rounds),
                "passes": len(storage._passes),
                "answers": self.num_answers,
                "tokens": self.num_tokens,
                "preemptions": self.num_preemptions,
                "running": engine.num_running,
            }
            self.lines.append(line)
            print(line, flush=True)

    async def run(self) -> list[dict[str, Any]]:
        begin = time.perf_counter()
        async with fr.AsyncEngine(self.target, drafter=None, max_batch=self.args.users) as engine:
            users = [
                self.user(engine, number, begin + self.args.seconds)
                for number in range(self.args.users)
            ]
            await asyncio.gather(self.watch(engine, begin), *users)
        return self.lines


def full(target: GpuModel, args: argparse.Namespace) -> dict[str, Any]:
    """Texts of requests alone, and of all together on few pages."""
    drawn = random.Random(3)
    prompts = [prompt_of(drawn, 64, 1500, target.vocab_size) for _ in range(args.requests)]
    sampling = [fr.Sampling(temperature=1.0, seed=number) for number in range(args.requests)]
    how: dict[str, Any] = {"sampling": sampling, "max_new_tokens": 200, "ignore_eos": True}
    alone = fr.generate(target, prompts, batch_size=1, drafter=None, **how)
    small = target.on_trial(args.pages)
    both = {}
    for name in ("plain", "suffix"):
        drafter = None if name == "plain" else fr.drafters.Suffix()
        begin = time.perf_counter()
        made = fr.generate(small, prompts, batch_size=FULL_USERS, drafter=drafter, **how)
        both[name] = {
            "texts": len(made),
            "differing": sum(a.tokens != b.tokens for a, b in zip(alone, made, strict=True)),
            "preemptions": sum(answer.stats.preemptions for answer in made),
            "seconds": round(time.perf_counter() - begin, 2),
        }
        print(name, both[name], flush=True)
    return {"pages": args.pages, **both}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", default="gpu_memory", help="name of the JSON file")
    parser.add_argument("--parts", nargs="+", default=["churn", "full"], choices=["churn", "full"])
    parser.add_argument("--size", default="8b")
    parser.add_argument("--users", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--longest", type=int, default=30_000, help="tokens of a text")
    parser.add_argument("--gpu-memory", default="0.9")
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--pages", type=int, default=120)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_memory: no CUDA device, nothing measured")
        return
    pair = Pair(args.size)
    target = GpuModel(pair.target)
    target.expect_rows(memory_of(args.gpu_memory))
    results: dict[str, Any] = {"model": pair.about}
    if "full" in args.parts:
        results["full"] = full(target, args)
    if "churn" in args.parts:
        results["churn"] = {"users": args.users, "longest": args.longest,
                            "lines": asyncio.run(Churn(target, args).run())}  # fmt: skip
    save(args.output, results, "cuda")


if __name__ == "__main__":
    main()
