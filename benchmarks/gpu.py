"""Rounds on a GPU: the pass, whole rounds, and text through `fr.generate`, beside transformers.

    python benchmarks/gpu.py [--output gpu] [--parts pass text context forward peers]
        [--size 8b] [--agreements 0.8 0.3] [--batches 1 8 32] [--lengths 0 3 auto] [--rules ratio]
        [--prompts 64 4000] [--contexts 32000 120000] [--repeats 5] [--cell-seconds 20]
        [--seconds 280]

A target of 8 billion parameters in bfloat16 with random weights, and a draft of its first two
layers, whose agreement is set.  Every figure stands beside its limit: the time to read all weights
(and keys) once at the bandwidth that a copy reaches in the same run.  Prompts are random tokens,
256 tokens are generated at temperature 1, and rates are medians over calls with the lowest and the
highest; all draft lengths have the same prompts and seeds.  A cell begins with a call that
captures, "auto" with one more that learns; both are reported and not part of the rates.  The table
is saved after every cell.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from itertools import pairwise, product
from typing import Any

import torch

import forerun as fr
from forerun.gpu.model import GpuModel
from forerun.gpu.rows import Line, fill
from forerun.gpu.shapes import PassShape, num_chunks
from forerun.models.huggingface import HuggingFaceModel
from llama_pair import Pair
from machine import result_file

NEW, PROMPT = 256, 64
AUTO = "auto"


class Bench:
    """A pair, and what was measured on it."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self._begin = args, time.perf_counter()
        self.pair = Pair(args.size)
        self.target = GpuModel(self.pair.target)
        self.results: dict[str, Any] = {}
        self.bandwidth = bandwidth()
        self.agree(args.agreements[0])
        self.weights = self.target._weights
        weights = self.weights, self.draft._weights
        self.bytes = [one.num_bytes for one in weights]
        print(f"{self.target}, {self.bandwidth / 1e12:.2f} TB/s", flush=True)

    @property
    def is_over(self) -> bool:
        """Whether no cell may begin any more."""
        return time.perf_counter() - self._begin > self.args.seconds

    def agree(self, wanted: float) -> None:
        """Set how much the two agree; to the draft policy it is another draft."""
        self.agreement = self.pair.agree(wanted)
        self.draft = GpuModel(self.pair.draft)
        self.drafter = fr.drafters.Model(self.draft)

    def limit(self, length: int = 0, context: int = 0, batch: int = 1) -> float:
        """Milliseconds to read what a round reads at least."""
        weights = self.weights
        keys = 2 * len(weights.layers) * weights.form.num_key_heads * weights.form.head_size * 2
        total = self.bytes[0] + length * self.bytes[1] + batch * context * keys
        return 1e3 * total / self.bandwidth

    def note(self, name: str, **figures: Any) -> None:
        """Print a cell, and save all of them."""
        self.results[name] = figures
        shown = "  ".join(
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in figures.items()
        )
        print(f"{name:60}{shown}", flush=True)
        made = {
            "command": " ".join(["python", *sys.argv]),
            "device": torch.cuda.get_device_name(),
            "model": self.pair.about,
            "versions": {"torch": torch.__version__, "forerun": fr.__version__},
            "bytes_per_second": self.bandwidth,
            "results": self.results,
        }
        path = result_file(self.args.output, "cuda")
        path.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")

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
                    state.reserve(0, 0, context + count)
                    captured = state.storage.captured(shape)
                    fill(captured.inputs, lines, list(range(logits)))
                    taken = milliseconds(captured.run)
                limit = self.limit(context=context)
                self.note(f"pass of {count} at {context}", ms=taken, limit=limit,
                          reached=limit / taken)  # fmt: skip

    def text(self) -> None:
        """Every draft length, by agreement, prompt, batch and rule."""
        args = self.args
        for wanted in args.agreements:
            self.agree(wanted)
            for prompt, batch, rule in product(args.prompts, args.batches, args.rules):
                names = {
                    length: self.generate(length, rule, batch=batch, prompt=prompt)
                    for length in args.lengths
                    if not self.is_over
                }
                self.compare(names)

    def compare(self, names: dict[Any, str]) -> None:
        """ "auto" beside the best given length, and beside plain decoding at its fastest."""
        if not {AUTO, 0} <= set(names):
            return
        cells = {length: self.results[name] for length, name in names.items()}
        auto = cells.pop(AUTO)
        best = max(cells, key=lambda length: cells[length]["tokens_per_second"])
        self.note(
            names[AUTO] + ", compared",
            best_length=best,
            to_best=auto["tokens_per_second"] / cells[best]["tokens_per_second"],
            to_plain=auto["tokens_per_second"] / cells[0]["tokens_per_second"],
            worst_to_plain=auto["lowest"] / cells[0]["highest"],
        )

    def context(self) -> None:
        """One text after a long prompt: the time to its first token, and between the others."""
        for context, length in product(self.args.contexts, (0, 5)):
            if self.is_over:
                return
            how: dict[str, Any] = {"drafter": None}
            if length:
                how = {"drafter": self.drafter, "draft_length": length, "rule": "match"}
            begin = time.perf_counter()
            stream = fr.stream(
                self.target, self.prompt(context, 0), max_new_tokens=NEW,
                sampling=fr.Sampling(temperature=1.0, seed=0), **how,
            )  # fmt: skip
            times = [time.perf_counter() for _ in stream]
            gaps = [1e3 * (later - sooner) for sooner, later in pairwise(times)]
            limit = self.limit(length, context + NEW // 2)
            middle = statistics.median(gaps)
            self.note(
                f"after {context}, K {length}",
                first_seconds=times[0] - begin,
                ms_per_round=middle,
                lowest=min(gaps),
                highest=max(gaps),
                tokens_per_second=(NEW - 1) / (times[-1] - times[0]),
                limit=limit,
                reached=limit / middle,
            )

    def forward(self) -> None:
        """The same target run by transformers in captured passes, for models of other shapes."""
        lean, self.target = self.target, HuggingFaceModel(self.pair.target)
        self.generate(0, "match", name="transformers' forward, captured")
        self.target = lean

    def generate(
        self, length: Any, rule: str, *, batch: int = 1, prompt: int = PROMPT, name: str = ""
    ) -> str:
        """Rates of `fr.generate`, reading the prompt included; gives the name of the cell."""
        how: dict[str, Any] = {"drafter": None}
        if length != 0:
            how = {"drafter": self.drafter, "draft_length": length}
        rates: list[float] = []
        unmeasured: list[float] = []
        rounds: list[float] = []
        begin = time.perf_counter()
        for repeat in range(-2 if length == AUTO else -1, self.args.repeats):
            if len(rates) > 1 and time.perf_counter() - begin > self.args.cell_seconds:
                break
            numbers = [1000 * (repeat + 2) + index for index in range(batch)]
            prompts = [self.prompt(prompt, number) for number in numbers]
            seeds = [fr.Sampling(temperature=1.0, seed=prompt << 20 | one) for one in numbers]
            start = time.perf_counter()
            outs = fr.generate(
                self.target, prompts, sampling=seeds, max_new_tokens=NEW, rule=rule,
                batch_size=batch, **how,
            )  # fmt: skip
            taken = time.perf_counter() - start
            if repeat < 0:
                unmeasured.append(taken)
                continue
            rates.append(batch * NEW / taken)
            rounds += [out.stats.rounds for out in outs]
        rate, tokens = statistics.median(rates), NEW / statistics.mean(rounds)
        figures = {
            "tokens_per_second": rate,
            "lowest": min(rates),
            "highest": max(rates),
            "calls": len(rates),
            "tokens_per_round": tokens,
            "ms_per_round": 1e3 * batch * tokens / rate,
            "seconds_before": [round(taken, 2) for taken in unmeasured],
        }
        if length == AUTO:
            drafted = [count for out in outs for count in out.stats.drafted_by_round]
            figures["lengths"] = dict(sorted(Counter(drafted).items()))
        else:
            limit = self.limit(length, prompt + NEW // 2, batch)
            figures["limit"], figures["reached"] = limit, limit / figures["ms_per_round"]
        name = name or (
            f"{rule}, K {length}, agreement {self.agreement:.2f}, batch {batch}, prompt {prompt}"
        )
        self.note(name, **figures)
        return name

    def prompt(self, count: int, seed: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed + 10_000)
        size = self.target.vocab_size
        return torch.randint(0, size, (count,), generator=generator).tolist()

    def peers(self) -> None:
        """transformers on the same models: plain, assisted, and compiled over a static cache."""
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
        if self.is_over:
            return
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
    parser.add_argument("--output", default="gpu", help="name of the JSON file")
    parser.add_argument("--size", default="8b")
    parts = ("pass", "text", "context", "forward", "peers")
    parser.add_argument("--parts", nargs="+", default=parts, choices=parts)
    parser.add_argument("--agreements", nargs="+", type=float, default=[0.8, 0.6, 0.9, 0.3])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32, 64])
    parser.add_argument("--lengths", nargs="+", type=draft_length, default=[0, 1, 2, 3, 5, 8, AUTO])
    parser.add_argument("--rules", nargs="+", default=["ratio"])
    parser.add_argument("--prompts", nargs="+", type=int, default=[PROMPT])
    parser.add_argument("--contexts", nargs="+", type=int, default=[32_000, 120_000])
    parser.add_argument("--repeats", type=int, default=5, help="measured calls in a cell")
    parser.add_argument(
        "--cell-seconds", type=float, default=20, help="after which a cell has no third call"
    )
    parser.add_argument(
        "--seconds", type=float, default=1e9, help="after which no cell begins any more"
    )
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu: no CUDA device, nothing measured")
        return
    bench = Bench(args)
    bench.note("memory, GiB", weights=bench.bytes[0] / 2**30,
               allocated=torch.cuda.memory_allocated() / 2**30)  # fmt: skip
    for part in args.parts:
        measure = bench.passes if part == "pass" else getattr(bench, part)
        measure()


def draft_length(text: str) -> int | str:
    return text if text == AUTO else int(text)


if __name__ == "__main__":
    main()
