"""Rounds on a GPU: the pass, whole rounds, and text through `fr.generate`, beside transformers.

    python benchmarks/gpu.py [--output FILE] [--parts pass text ...] [--size 8b]

A target of 8 billion parameters in bfloat16 with random weights, and a draft of its first two
layers, whose agreement is set.  Every figure stands beside its limit: the time to read all weights
(and keys) once at the bandwidth that a copy reaches in the same run.  Prompts are random tokens of
64 unless said otherwise, 256 tokens are generated at temperature 1, and rates are medians over
prompts with the lowest and the highest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import forerun as fr
from forerun.gpu.forward import PassShape, num_chunks
from forerun.gpu.model import GpuModel
from forerun.gpu.rows import Line, fill
from forerun.models.huggingface import HuggingFaceModel
from llama_pair import Pair

NEW, PROMPT = 256, 64
LENGTHS = (0, 1, 2, 3, 4, 5, 6, 8, "auto")


class Bench:
    """A pair, and what was measured on it."""

    def __init__(self, size: str) -> None:
        self.pair = Pair(size)
        self.agreement = self.pair.agree(0.8)
        self.target, self.draft = GpuModel(self.pair.target), GpuModel(self.pair.draft)
        self.results: dict[str, Any] = {}
        self.bandwidth = bandwidth()
        self.weights = self.target._weights
        weights = self.weights, self.draft._weights
        self.bytes = [one.num_bytes for one in weights]
        print(f"{self.target}, {self.bandwidth / 1e12:.2f} TB/s", flush=True)

    def limit(self, length: int = 0, context: int = 0, batch: int = 1) -> float:
        """Milliseconds to read what a round reads at least."""
        weights = self.weights
        keys = 2 * len(weights.layers) * weights.num_key_heads * weights.head_size * 2
        total = self.bytes[0] + length * self.bytes[1] + batch * context * keys
        return 1e3 * total / self.bandwidth

    def note(self, name: str, **figures: Any) -> None:
        self.results[name] = figures
        shown = "  ".join(
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in figures.items()
        )
        print(f"{name:44}{shown}", flush=True)

    def passes(self) -> None:
        """Captured passes of one row, at several sizes and contexts."""
        for context in (64, 1000, 4000):
            for count in (1, 6, 16, 32, 64, 128) if context == 64 else (1, 6):
                state = self.target.start(1, context + count)
                lines = [Line(7 * i, 0, context + i, context + i, 0, (), i) for i in range(count)]
                logits = min(count, 64)
                shape = PassShape(count, logits, -(-count // 16), min(count, 16),
                                  num_chunks(context + count))  # fmt: skip
                with torch.inference_mode():
                    captured = state.storage.captured(shape)
                    fill(captured.inputs, lines, list(range(logits)))
                    taken = milliseconds(captured.run)
                limit = self.limit(context=context)
                self.note(f"pass of {count} at {context}", ms=taken, limit=limit,
                          reached=limit / taken)  # fmt: skip

    def text(self, agreements: tuple[float, ...] = (0.8, 0.6, 0.9)) -> None:
        """Batch 1: plain, and every draft length under `ratio`; other rules at the best ones."""
        for wanted in agreements:
            self.agreement = self.pair.agree(wanted)
            lengths = LENGTHS if wanted == agreements[0] else (0, 3, 5, 8, "auto")
            for length in lengths:
                self.generate(length, "ratio")
            for rule in ("match", "block"):
                for length in (5, "auto"):
                    self.generate(length, rule)

    def batches(self) -> None:
        for wanted, sizes in ((0.8, (8, 32, 64)), (0.3, (8, 32))):
            self.agreement = self.pair.agree(wanted)
            for batch in sizes:
                for length in (0, 2, 3, "auto") if wanted == 0.8 else (0, "auto"):
                    self.generate(length, "ratio", batch=batch, repeats=3)

    def contexts(self) -> None:
        self.agreement = self.pair.agree(0.8)
        for length in (0, 5, "auto"):
            self.generate(length, "ratio", prompt=4000, repeats=3)

    def forward(self) -> None:
        """The same target run by transformers in captured passes, for models of other shapes."""
        lean, self.target = self.target, HuggingFaceModel(self.pair.target)
        self.generate(0, "match", repeats=3)
        self.results["transformers' forward, captured"] = self.results.popitem()[1]
        self.target = lean

    def generate(
        self,
        length: Any,
        rule: str,
        *,
        batch: int = 1,
        prompt: int = PROMPT,
        repeats: int = 5,
    ) -> None:
        """Rates of `fr.generate` after one call that captures; reading the prompt is included."""
        how: dict[str, Any] = {}
        if length != 0:
            how = {"drafter": fr.drafters.Model(self.draft), "draft_length": length}
        rates, per_round = [], []
        for repeat in range(-2 if length == "auto" else -1, repeats):
            prompts = [self.prompt(prompt, 100 * repeat + index) for index in range(batch)]
            seeds = [
                fr.Sampling(temperature=1.0, seed=1000 + 100 * repeat + i) for i in range(batch)
            ]
            begin = time.perf_counter()
            outs = fr.generate(
                self.target, prompts, sampling=seeds, max_new_tokens=NEW, rule=rule,
                batch_size=batch, **how,
            )  # fmt: skip
            taken = time.perf_counter() - begin
            if repeat >= 0:
                rates.append(batch * NEW / taken)
                per_round.append(NEW / statistics.mean(out.stats.rounds for out in outs))
        rate, tokens = statistics.median(rates), statistics.mean(per_round)
        name = f"{rule}, K {length}, agreement {self.agreement:.2f}, batch {batch}"
        name += f", prompt {prompt}" if prompt != PROMPT else ""
        figures = {
            "tokens_per_second": rate,
            "lowest": min(rates),
            "highest": max(rates),
            "tokens_per_round": tokens,
            "ms_per_round": 1e3 * batch * tokens / rate,
        }
        if length != "auto":
            limit = self.limit(length, prompt + NEW // 2, batch)
            figures["limit"], figures["reached"] = limit, limit / figures["ms_per_round"]
        self.note(name, **figures)

    def prompt(self, count: int, seed: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed + 10_000)
        size = self.target.vocab_size
        return torch.randint(0, size, (count,), generator=generator).tolist()

    def peers(self) -> None:
        """transformers on the same models: plain, assisted, and compiled over a static cache."""
        self.agreement = self.pair.agree(0.8)
        model, draft = self.pair.target, self.pair.draft
        common = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": True, "top_k": 0,
                  "top_p": 1.0, "temperature": 1.0, "pad_token_id": 0}  # fmt: skip
        self._peer("transformers, plain", model, 2, **common)
        for length in (3, 5):
            draft.generation_config.num_assistant_tokens = length
            draft.generation_config.num_assistant_tokens_schedule = "constant"
            draft.generation_config.assistant_confidence_threshold = 0.0
            self._peer(f"transformers, assisted, K {length}", model, 3,
                       assistant_model=draft, **common)  # fmt: skip
        self._peer("transformers, static cache, compiled", model, 3,
                   cache_implementation="static", **common)  # fmt: skip

    def _peer(self, name: str, model: Any, repeats: int, **how: Any) -> None:
        rates = []
        for repeat in range(-1, repeats):
            ids = torch.tensor([self.prompt(PROMPT, repeat)], device=model.device)
            torch.manual_seed(repeat + 1)
            torch.cuda.synchronize()
            begin = time.perf_counter()
            out = model.generate(ids, attention_mask=torch.ones_like(ids), **how)
            torch.cuda.synchronize()
            taken = time.perf_counter() - begin
            if repeat >= 0:
                rates.append((out.shape[1] - PROMPT) / taken)
        self.note(name, tokens_per_second=statistics.median(rates), lowest=min(rates),
                  highest=max(rates))  # fmt: skip


def milliseconds(launch: Any, repeats: int = 30) -> float:
    """The median time of a captured launch."""
    for _ in range(4):
        launch()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        launch()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def bandwidth() -> float:
    """Bytes a second that a reduction over a large tensor reads."""
    source = torch.ones(2**31, dtype=torch.float16, device="cuda")
    return source.numel() * 2 / (milliseconds(lambda: source.view(torch.int32).max(), 10) / 1e3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="where to save the table, as JSON")
    parser.add_argument("--size", default="8b")
    parts = ("pass", "text", "batches", "contexts", "forward", "peers")
    parser.add_argument("--parts", nargs="+", default=parts, choices=parts)
    args = parser.parse_args()
    bench = Bench(args.size)
    bench.note("memory, GiB", weights=bench.bytes[0] / 2**30,
               allocated=torch.cuda.memory_allocated() / 2**30)  # fmt: skip
    for part in args.parts:
        measure = bench.passes if part == "pass" else getattr(bench, part)
        measure()
        if args.output is not None:
            made = {
                "command": "python benchmarks/gpu.py",
                "device": torch.cuda.get_device_name(),
                "versions": {"torch": torch.__version__, "forerun": fr.__version__},
                "bytes_per_second": bench.bandwidth,
                "results": bench.results,
            }
            args.output.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
