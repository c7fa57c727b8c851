"""Verification kernels on a CUDA device: milliseconds a decision, captured in a CUDA graph.

    python benchmarks/gpu_kernels.py [--json FILE] [--sweep] [--dtype bfloat16] [--batches 1 8]

K = 5, V = 128256.  Every decision of a graph has inputs of its own, together larger than the
second-level cache, so rows come from memory.  `limit` is the time to read every row once (for
`match` every target row) at the bandwidth measured by a copy in the same run.  --sweep times other
tiles: those of `match` change no outcome, those of the others change the order of sums.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from forerun.addresses import Purpose
from forerun.gpu import ARITHMETIC, decide
from forerun.gpu.decide import Round
from forerun.gpu.scratch import Outcome, Scratch

VOCAB_SIZE, LENGTH = 128256, 5
ENOUGH_BYTES = 300 * 2**20
MOST_SETS = 40
REPEATS = 30
RULES = {
    "match": decide.decide_match,
    "ratio": decide.decide_ratio,
    "block": decide.decide_block,
}


def rounds(batch: int, dtype: torch.dtype) -> list[Round]:
    """Inputs that together do not fit the cache; guesses are kept four times out of five."""
    size = batch * (2 * LENGTH + 1) * VOCAB_SIZE * dtype.itemsize
    count = min(MOST_SETS, max(1, -(-ENOUGH_BYTES // size)))
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


def milliseconds(launch: Callable[[Round], None], made: list[Round]) -> float:
    """The median time of a decision in replays of one graph."""
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


def measure(batch: int, dtype: torch.dtype, speed: float, names: list[str]) -> list[dict[str, Any]]:
    made = rounds(batch, dtype)
    scratch = Scratch.allocate(batch, LENGTH + 1, VOCAB_SIZE, "cuda")
    single = Scratch.allocate(batch, 1, VOCAB_SIZE, "cuda")
    out = Outcome.allocate(batch, "cuda")
    row_bytes = batch * VOCAB_SIZE * dtype.itemsize

    def sampling(purpose: Purpose) -> Callable[[Round], None]:
        def launch(one: Round) -> None:
            decide.sample(
                firsts[id(one)],
                one.temperature,
                one.seeds,
                one.positions,
                purpose,
                0,
                single,
                out,
            )

        return launch

    firsts = {id(one): one.logits[:, 0].contiguous() for one in made}
    launches: dict[str, tuple[Callable[[Round], None], int]] = {
        name: (
            lambda one, rule=rule: rule(one, scratch, out),
            LENGTH + 1 + LENGTH * (name != "match"),
        )
        for name, rule in RULES.items()
    }
    launches["sample target"] = sampling(Purpose.TARGET), 1
    launches["sample draft"] = sampling(Purpose.DRAFT), 1
    results = []
    for name in names:
        launch, rows = launches[name]
        time = milliseconds(launch, made)
        assert not out.fault.any()
        results.append(
            {
                "what": name,
                "batch": batch,
                "dtype": str(dtype).removeprefix("torch."),
                "ms": round(time, 5),
                "limit_ms": round(rows * row_bytes / speed * 1000, 5),
                "accepted": round(float(out.accepted.float().mean()), 2),
            }
        )
    return results


def sweep(batch: int, dtype: torch.dtype, speed: float) -> list[dict[str, Any]]:
    """Other tiles and warps."""
    results = []
    for tile, warps in ((4, 4), (8, 4), (8, 8), (16, 4), (16, 8), (32, 8), (32, 16), (64, 16)):
        decide.race_tile = lambda num_rows, vocab_size, it=(tile, warps): it  # type: ignore[misc]
        decide.LAW_TILE, decide.LAW_WARPS = tile, warps
        settings = {"tile": tile, "warps": warps}
        results += [found | settings for found in measure(batch, dtype, speed, list(RULES))]
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64, 256])
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_kernels: no CUDA device, nothing measured")
        return
    dtype, speed = getattr(torch, asked.dtype), bandwidth()
    results: list[dict[str, Any]] = []
    for batch in asked.batches:
        if asked.sweep:
            results += sweep(batch, dtype, speed)
        else:
            results += measure(batch, dtype, speed, [*RULES, "sample target", "sample draft"])
        torch.cuda.empty_cache()
    header = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "arithmetic": ARITHMETIC,
        "bytes_a_second": speed,
    }
    print(header)
    for found in results:
        tile = f" tile {found['tile']:>2} warps {found['warps']:>2}" if asked.sweep else ""
        print(
            f"{found['what']:>14} batch {found['batch']:>3}{tile}: {found['ms']:.4f} ms"
            f" (limit {found['limit_ms']:.4f}), {found['accepted']} kept"
        )
    if asked.json:
        asked.json.write_text(json.dumps(header | {"results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
