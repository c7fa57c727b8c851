"""Verification kernels on a CUDA device: milliseconds a decision, captured in a CUDA graph.

    python benchmarks/gpu_kernels.py [--output gpu_kernels] [--sweep] [--dtype bfloat16]
                                     [--batches 1 8] [--rules match ratio]

K = 5, V = 128256.  Every decision of a graph has inputs of its own, together larger than the
second-level cache, so rows come from memory.  `limit` is the time to read every row once (for
`match` every target row) at the bandwidth measured by a copy in the same run.  --sweep times other
pieces, on which no outcome depends.  Its kernels are compiled beforehand, by several processes.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
import triton
import triton.language as tl

from forerun.gpu import ARITHMETIC
from forerun.kernels import decide
from forerun.kernels.decide import LawPiece, RacePiece, Round
from forerun.kernels.scratch import Outcome, Scratch
from forerun.noise.addresses import Purpose
from machine import result_file, write

VOCAB_SIZE, LENGTH = 128256, 5
ENOUGH_BYTES = 300 * 2**20
MOST_SETS = 40
REPEATS = 30
RULES = {
    "match": decide.decide_match,
    "ratio": decide.decide_ratio,
    "block": decide.decide_block,
}
SAMPLES = {"sample target": Purpose.TARGET, "sample draft": Purpose.DRAFT}
RACE_PIECES: dict[int, list[RacePiece]] = {
    1: [RacePiece(4, 4, 128), RacePiece(8, 4, 128), RacePiece(4, 2, 64), RacePiece(4, 4, 0)],
    8: [RacePiece(8, 2, 0), RacePiece(8, 2, 0, 16), RacePiece(16, 1, 0), RacePiece(8, 4, 128)],
    64: [RacePiece(16, 2, 0, 4), RacePiece(8, 4, 0, 4), RacePiece(16, 4, 0, 4)],
    256: [RacePiece(16, 2, 0, 4), RacePiece(8, 4, 0, 4), RacePiece(16, 4, 0, 4)],
}
"""By batch, as the device is filled by different ones."""
LAW_PIECES: dict[int, list[LawPiece]] = {
    1: [LawPiece(4), LawPiece(8)],
    8: [LawPiece(4), LawPiece(8), LawPiece(16), LawPiece(4, 4, 3)],
    64: [LawPiece(4), LawPiece(8), LawPiece(16), LawPiece(8, 2), LawPiece(4, 4, 3)],
    256: [LawPiece(8), LawPiece(16), LawPiece(8, 2), LawPiece(4, 4, 3), LawPiece(4, 8, 3)],
}
WORKERS = 14
"""Processes that compile for a sweep."""


def num_sets(batch: int, dtype: torch.dtype) -> int:
    """Inputs that together do not fit the cache."""
    size = batch * (2 * LENGTH + 1) * VOCAB_SIZE * dtype.itemsize
    return min(MOST_SETS, max(1, -(-ENOUGH_BYTES // size)))


def rounds(batch: int, dtype: torch.dtype, count: int) -> list[Round]:
    """Drafts drawn from laws near the target's, which `ratio` and `block` mostly keep."""
    made = []
    for index in range(count):
        torch.manual_seed(index)
        target = torch.randn(batch, LENGTH + 1, VOCAB_SIZE, device="cuda") * 2.5
        draft = target[:, :-1] + 0.35 * torch.randn(batch, LENGTH, VOCAB_SIZE, device="cuda")
        noise = torch.empty_like(draft).exponential_().log_().neg_()
        tokens = (draft + noise).argmax(dim=-1)
        del noise
        made.append(
            Round(
                target.to(dtype),
                tokens,
                torch.full((batch,), LENGTH, dtype=torch.int32, device="cuda"),
                torch.ones(batch, device="cuda"),
                torch.arange(batch, device="cuda") + 1000 * index,
                torch.full((batch,), 77, device="cuda"),
                draft.to(dtype),
            )
        )
    return made


def raced(made: list[Round]) -> list[Round]:
    """The same laws with the drafts that shared noise gives, which `match` mostly keeps."""
    num_sequences = len(made[0].lengths)
    scratch = Scratch.allocate(num_sequences, 1, VOCAB_SIZE, "cuda")
    out = Outcome.allocate(num_sequences, "cuda")
    results = []
    for one in made:
        tokens = torch.empty_like(one.tokens)
        for slot in range(LENGTH):
            assert one.draft_logits is not None
            decide.sample(
                one.draft_logits[:, slot].contiguous(),
                one.temperature,
                one.seeds,
                one.positions + slot,
                Purpose.TARGET,
                slot,
                scratch,
                out,
            )
            tokens[:, slot] = out.extra
        results.append(replace(one, tokens=tokens))
    return results


def milliseconds(launch: Callable[[Round], None], made: list[Round]) -> float:
    """The median time of a decision in replays of one graph, each queued behind another, so that
    the launch of a graph is not counted."""
    for one in made[:2]:
        launch(one)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for one in made:
            launch(one)
    for _ in range(3):
        graph.replay()
    times = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / len(made))
    return statistics.median(times)


def bandwidth() -> float:
    """Bytes a second of a large copy, read and written."""
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    times = []
    for _ in range(10):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1000)
    return 2 * source.numel() / statistics.median(times)


class Bench:
    """The rounds of one batch size, and what times their decisions."""

    def __init__(self, batch: int, dtype: torch.dtype, count: int) -> None:
        self.batch, self.dtype = batch, dtype
        self.rounds = rounds(batch, dtype, count)
        self._firsts = {id(one): one.logits[:, 0].contiguous() for one in self.rounds}
        self._scratch = Scratch.allocate(batch, LENGTH + 1, VOCAB_SIZE, "cuda")
        self._single = Scratch.allocate(batch, 1, VOCAB_SIZE, "cuda")
        self.out = Outcome.allocate(batch, "cuda")

    @cached_property
    def _raced(self) -> list[Round]:
        return raced(self.rounds)

    def launch(self, name: str, one: Round) -> None:
        if name in RULES:
            RULES[name](one, self._scratch, self.out)
        else:
            decide.sample(
                self._firsts[id(one)],
                one.temperature,
                one.seeds,
                one.positions,
                SAMPLES[name],
                0,
                self._single,
                self.out,
            )

    def time(self, name: str, speed: float) -> dict[str, Any]:
        made = self._raced if name == "match" else self.rounds
        time = milliseconds(lambda one: self.launch(name, one), made)
        assert not self.out.fault.any()
        rows = {"match": LENGTH + 1}.get(name, 2 * LENGTH + 1 if name in RULES else 1)
        row_bytes = self.batch * VOCAB_SIZE * self.dtype.itemsize
        return {
            "what": name,
            "batch": self.batch,
            "dtype": str(self.dtype).removeprefix("torch."),
            "ms": round(time, 5),
            "limit_ms": round(rows * row_bytes / speed * 1000, 5),
            "accepted": round(float(self.out.accepted.float().mean()), 2),
        }


def settings(name: str, batch: int) -> list[Any]:
    pieces = RACE_PIECES if name in ("match", "sample target") else LAW_PIECES
    return pieces[batch]


def choose(name: str, piece: Any) -> None:
    """Take this piece from now on."""
    if name in ("match", "sample target"):
        decide.race_piece = lambda *_: piece
    else:
        decide.law_piece = lambda *_: piece


def compile_some(start: int, dtype: torch.dtype, names: list[str]) -> None:
    """Launch kernels of some pieces, as small and as large batches do; Triton caches them."""
    bench = Bench(1, dtype, 1)
    every = [
        (batch, name, piece)
        for name in names
        for batch in RACE_PIECES
        for piece in settings(name, batch)
    ]
    for batch, name, piece in every[start::WORKERS]:
        choose(name, piece)
        for decide.AT_ONCE in (0, 10**9):
            if decide.AT_ONCE == 0 or batch <= 8:
                bench.launch(name, bench.rounds[0])
    torch.cuda.synchronize()


def compile_settings(dtype: str, names: list[str]) -> None:
    """All settings, several processes at once."""
    options = ["--dtype", dtype, "--rules", *names]
    workers = [
        subprocess.Popen([sys.executable, __file__, "--compile", str(start), *options])
        for start in range(WORKERS)
    ]
    for worker in workers:
        assert worker.wait() == 0


def sweep(bench: Bench, speed: float, names: list[str]) -> list[dict[str, Any]]:
    """Every piece, the fastest first.  Outcomes must be those of the first."""
    results = []
    for name in names:
        expected = None
        for piece in settings(name, bench.batch):
            choose(name, piece)
            result = bench.time(name, speed) | {"setting": str(piece)}
            outcome = bench.out.accepted.tolist(), bench.out.extra.tolist()
            expected = expected or outcome
            results.append(result | {"same": outcome == expected})
    return sorted(results, key=lambda result: (result["what"], result["batch"], result["ms"]))


@triton.jit
def nothing_kernel(where):
    tl.store(where + tl.program_id(0), 0)


def launch_floor() -> float:
    """Milliseconds of a kernel that does nothing, in a graph of many."""
    where = torch.zeros(512, dtype=torch.int32, device="cuda")
    return milliseconds(lambda _: nothing_kernel[(378,)](where), [None] * 100)  # type: ignore[list-item]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", default="gpu_kernels", help="name of the JSON file")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--rules", nargs="+", choices=[*RULES, *SAMPLES], default=None)
    parser.add_argument("--compile", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_kernels: no CUDA device, nothing measured")
        return
    dtype = getattr(torch, asked.dtype)
    names = asked.rules or ([*RULES] if asked.sweep else [*RULES, *SAMPLES])
    if asked.compile is not None:
        compile_some(asked.compile, dtype, names)
        return
    speed = bandwidth()
    if asked.sweep:
        compile_settings(asked.dtype, names)
    results: list[dict[str, Any]] = []
    for batch in asked.batches:
        bench = Bench(batch, dtype, num_sets(batch, dtype))
        if asked.sweep:
            results += sweep(bench, speed, names)
        else:
            results += [bench.time(name, speed) for name in names]
        del bench
        torch.cuda.empty_cache()
    header = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "arithmetic": ARITHMETIC,
        "bytes_a_second": speed,
        "empty_launch_ms": round(launch_floor(), 5),
    }
    print(header)
    for result in results:
        setting = ""
        if asked.sweep:
            setting = f" {result['setting']}" + ("" if result["same"] else " DIFFERS")
        print(
            f"{result['what']:>14} batch {result['batch']:>3}{setting}: {result['ms']:.4f} ms"
            f" (limit {result['limit_ms']:.4f}), {result['accepted']} kept"
        )
    if not asked.sweep:
        write(result_file(asked.output, "cuda"), header | {"results": results})


if __name__ == "__main__":
    main()
