"""What sampling options cost on a GPU: thresholds alone, one request, and 64 with options.

    python benchmarks/gpu_options.py [--output gpu_options] [--parts thresholds one many]
        [--size 8b] [--agreement 0.8] [--batch 64] [--repeats 5] [--cell-seconds 6] [--seconds 600]

The models are those of benchmarks/gpu.py. "thresholds": milliseconds to find those of top-k, top-p
and min-p in a captured launch, for 1, 7 and 64 rows. "one": one request under `match`, plain and
with 6 guesses a round, bare and with each set of options. "many": 64 requests without a drafter,
bare, with log-probabilities for all, with a Python processor (one that forbids half the vocabulary,
or one that changes nothing) or a grammar for one, and with a grammar for all. The grammar is a JSON
array of strings, where llguidance is installed, over a vocabulary of made-up words; otherwise a
fixed set of tokens. Prompts have 64 random tokens, answers 256 tokens for one request and 128 for
many; rates are medians over calls with the lowest and the highest, after a call that captures. The
table is saved after every cell.
"""

from __future__ import annotations

import argparse
import random
import statistics
import string
import time
from typing import Any

import numpy as np
import torch

import forerun as fr
from forerun.gpu.model import GpuModel
from forerun.kernels.scratch import CutScratch
from forerun.kernels.truncation import find_thresholds
from gpu import milliseconds
from llama_pair import Pair
from machine import save

PROMPT, NEW_ONE, NEW_MANY, LENGTH = 64, 256, 128, 6
CUTS: dict[str, dict[str, Any]] = {
    "bare": {},
    "top_p 0.9": {"top_p": 0.9},
    "top_k 20, top_p 0.95": {"top_k": 20, "top_p": 0.95},
    "min_p 0.05": {"min_p": 0.05},
}
CALLS_BEFORE = 1
ENDING = 0
"""A token that ends a text of the grammar."""
SCHEMA = {"type": "array", "items": {"type": "string"}, "minItems": 1000}


class Strings:
    """A grammar for a model without a tokenizer: JSON strings, in a vocabulary of made-up words."""

    def __init__(self, vocab_size: int) -> None:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        words = ["<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
        drawn, known = random.Random(3), set(words)
        while len(words) < vocab_size:
            word = "".join(drawn.choices(string.ascii_letters, k=drawn.randint(2, 9)))
            if word not in known:
                known.add(word)
                words.append(word)
        ids = {word: token for token, word in enumerate(words[:vocab_size])}
        core = Tokenizer(models.BPE(vocab=ids, merges=[]))
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        core.decoder = decoders.ByteLevel()
        self._tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>")
        self._grammar = fr.grammars.json_schema(SCHEMA)

    def matcher(self, tokenizer: Any, vocab_size: int, endings: Any) -> Any:
        return self._grammar.matcher(self._tokenizer, vocab_size, (ENDING,))


class Few:
    """A grammar, and its matcher: every token is one of a fixed set."""

    def __init__(self, vocab_size: int) -> None:
        self._allowed = np.arange(0, vocab_size, 16)

    def matcher(self, tokenizer: Any, vocab_size: int, endings: Any) -> Few:
        return self

    def accept(self, token: int) -> bool:
        return token % 16 == 0

    def rollback(self, count: int) -> None: ...

    def mask(self) -> Any:
        return self._allowed

    def forced(self) -> list[int]:
        return []


def grammar_of(vocab_size: int) -> Any:
    try:
        return Strings(vocab_size)
    except (ImportError, fr.ForerunError) as error:
        print(f"a fixed set of tokens in place of JSON: {error}", flush=True)
        return Few(vocab_size)


class Bench:
    """A pair, and what was measured on it."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self._begin = args, time.perf_counter()
        self.cells: dict[str, dict[str, Any]] = {}
        self.made: dict[str, Any] = {"cells": self.cells}

    def start(self) -> None:
        """Make the pair."""
        args = self.args
        self.pair = Pair(args.size)
        self.made["model"] = self.pair.about
        self.target = GpuModel(self.pair.target)
        self.made["agreement"] = self.pair.agree(args.agreement)
        self.drafter = fr.drafters.Model(GpuModel(self.pair.draft))
        self.grammar = grammar_of(self.target.vocab_size)
        self.made["grammar"] = type(self.grammar).__name__
        print(f"agreement {self.made['agreement']:.2f}", flush=True)

    @property
    def is_over(self) -> bool:
        """Whether no cell may begin any more."""
        return time.perf_counter() - self._begin > self.args.seconds

    def note(self, name: str, **figures: Any) -> None:
        """Print a cell, and save all of them."""
        self.cells[name] = figures
        print(f"{name:48}", *(f"{key} {value:.4g} " for key, value in figures.items()), flush=True)
        save(self.args.output, self.made, "cuda")

    def thresholds(self, vocab_size: int = 128256) -> None:
        """Of rows of normal logits, deviation 2.5."""
        torch.manual_seed(1)
        for num_rows in (1, 7, 64):
            logits = 2.5 * torch.randn(1, num_rows, vocab_size, device="cuda")
            scratch = CutScratch.allocate(num_rows, vocab_size, "cuda")
            for name, options in CUTS.items():
                chosen = fr.Sampling(**options)
                lengths, top_k = (
                    torch.tensor([count], dtype=torch.int32, device="cuda")
                    for count in (num_rows - 1, chosen.top_k or 0)
                )
                real = [
                    torch.tensor([number], device="cuda")
                    for number in (1.0, chosen.top_p, chosen.min_p)
                ]
                inputs = (logits, lengths, real[0], top_k, real[1], real[2])
                out = torch.empty((1, num_rows), device="cuda")
                find_thresholds(*inputs, out, scratch, more=1)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    find_thresholds(*inputs, out, scratch, more=1)
                self.note(f"thresholds, {name}, rows {num_rows}", ms=milliseconds(graph.replay))

    def one(self) -> None:
        self.rate("one, plain", 1, NEW_ONE, [{}])
        for name, options in CUTS.items():
            self.rate(f"one, K {LENGTH}, {name}", 1, NEW_ONE, [options], drafter=self.drafter,
                      draft_length=LENGTH)  # fmt: skip

    def many(self) -> None:
        batch = self.args.batch
        one_grammar: list[dict[str, Any]] = [{"grammar": self.grammar}]
        bare: list[dict[str, Any]] = [{}]
        cells: dict[str, list[dict[str, Any]]] = {
            "bare": bare,
            "a processor for one": [{"processors": [first_half]}, *(batch - 1) * bare],
            "an idle processor for one": [{"processors": [as_it_is]}, *(batch - 1) * bare],
            "a grammar for one": one_grammar + (batch - 1) * bare,
            "a grammar for all": one_grammar,
        }
        for name, options in cells.items():
            self.rate(f"{batch}, {name}", batch, NEW_MANY, options)
        self.rate(f"{batch}, log-probabilities for all", batch, NEW_MANY, bare, logprobs=1)

    def rate(
        self, name: str, batch: int, num_new: int, options: list[dict[str, Any]], **how: Any
    ) -> None:
        """Tokens per second of `fr.generate`, reading the prompts included; options: of the
        requests in turn."""
        if self.is_over:
            return
        how = {"drafter": None} | how
        rates, rounds, begin = [], [], time.perf_counter()
        for repeat in range(-CALLS_BEFORE, self.args.repeats):
            if len(rates) > 1 and time.perf_counter() - begin > self.args.cell_seconds:
                break
            numbers = [1000 * (repeat + CALLS_BEFORE) + index for index in range(batch)]
            sampling = [
                fr.Sampling(temperature=1.0, seed=number, **options[index % len(options)])
                for index, number in enumerate(numbers)
            ]
            prompts = [self.prompt(number) for number in numbers]
            start = time.perf_counter()
            outs = fr.generate(
                self.target, prompts, sampling=sampling, max_new_tokens=num_new, ignore_eos=True,
                batch_size=batch, **how,
            )  # fmt: skip
            taken = time.perf_counter() - start
            assert all(len(out.tokens) == num_new for out in outs), "an answer ended early"
            if repeat >= 0:
                rates.append(batch * num_new / taken)
                rounds += [out.stats.rounds for out in outs]
        self.note(name, tokens_per_second=statistics.median(rates), lowest=min(rates),
                  highest=max(rates), calls=len(rates),
                  tokens_per_round=num_new / statistics.mean(rounds))  # fmt: skip

    def prompt(self, seed: int) -> list[int]:
        drawn = random.Random(seed)
        return [drawn.randrange(self.target.vocab_size) for _ in range(PROMPT)]


def first_half(tokens: Any, scores: Any) -> Any:
    """A processor: only the first half of the vocabulary."""
    scores[..., scores.shape[-1] // 2 :] = -np.inf
    return scores


def as_it_is(tokens: Any, scores: Any) -> Any:
    """A processor that changes nothing."""
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", default="gpu_options", help="name of the JSON file")
    parser.add_argument("--size", default="8b")
    parts = ("thresholds", "one", "many")
    parser.add_argument("--parts", nargs="+", default=parts, choices=parts)
    parser.add_argument("--agreement", type=float, default=0.8)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5, help="measured calls in a cell")
    parser.add_argument(
        "--cell-seconds", type=float, default=6, help="after which a cell has no third call"
    )
    parser.add_argument("--seconds", type=float, default=600, help="after which no cell begins")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_options: no CUDA device, nothing measured")
        return
    bench = Bench(args)
    if set(args.parts) != {"thresholds"}:
        bench.start()
    for part in args.parts:
        getattr(bench, part)()


if __name__ == "__main__":
    main()
