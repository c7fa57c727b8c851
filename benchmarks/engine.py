"""The engine against transformers, in one run: plain, prompt lookup, assisted, and a batch.

Contenders take turns on each prompt, so that a slow minute of the machine hits them alike; what is
reported is the median over prompts of the ratio within a prompt, and the spread of repeats.

    python benchmarks/engine.py [SPEC_BENCH.jsonl]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
from tqdm import tqdm

import forerun as fr
from machine import result_file, save
from spec_bench import read, summary
from tiny_draft import first_layers, truncated

DRAFT_LAYERS = 8
NAMES = {
    "plain": "transformers greedy",
    "ngram": "transformers prompt lookup",
    "model": "transformers assisted",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompts", nargs="?", help="Spec-Bench's file (default: our own prompts)")
    parser.add_argument("--per-group", type=int, default=2)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=("batch_8",), help="measure this part, keep the rest")
    args = parser.parse_args()
    target = fr.load("HuggingFaceTB/SmolLM2-135M-Instruct", "cpu", lean=False)  # the same passes
    size = args.max_new_tokens
    prompts = [encode(target, text) for _, text in read(args.prompts, args.per_group)]
    theirs_draft = truncated(target.model, DRAFT_LAYERS)
    theirs_draft.generation_config.num_assistant_tokens = 5
    theirs_draft.generation_config.num_assistant_tokens_schedule = "constant"
    theirs_draft.generation_config.assistant_confidence_threshold = 0.0
    lookup = {"prompt_lookup_num_tokens": 5, "max_matching_ngram_size": 3}
    pairs: dict[str, tuple[Callable[[list[int]], Any], Callable[[list[int]], Any]]] = {
        "plain": (ours(target, size), theirs(target, size)),
        "ngram": (ours(target, size, fr.drafters.NGram()), theirs(target, size, **lookup)),
        "model": (
            ours(target, size, first_layers(target, DRAFT_LAYERS)),
            theirs(target, size, assistant_model=theirs_draft),
        ),
    }
    results: dict[str, Any] = {}
    if args.only:
        known = json.loads(result_file("engine").read_text())
        results, pairs = known["results"], {}
    for name, (mine, peer) in pairs.items():
        results[name] = compare(name, mine, peer, prompts, args.repeats)
        tqdm.write(f"{name}: {results[name]}")
    several = sorted((encode(target, text) for _, text in read(args.prompts, 8)), key=len)[:8]
    results["batch_8"] = batch_throughput(target, several, args.repeats)
    tqdm.write(f"batch: {results['batch_8']}")
    save("engine", {"max_new_tokens": size, "prompts": len(prompts), "results": results})


def encode(target: Any, text: str) -> list[int]:
    chat = target.tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
    )
    return list(target.tokenizer.encode(chat, add_special_tokens=False))


def ours(target: Any, size: int, drafter: Any = None) -> Callable[[list[int]], Any]:
    """A call that returns the generation: tokens and stats."""
    return lambda prompt: fr.generate(
        target, prompt, drafter=drafter, draft_length=5, max_new_tokens=size, ignore_eos=True
    )


def theirs(target: Any, size: int, **options: Any) -> Callable[[list[int]], Any]:
    def run(prompt: list[int]) -> Any:
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            return target.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=size,
                min_new_tokens=size,
                do_sample=False,
                pad_token_id=0,
                **options,
            )

    return run


def compare(
    name: str, mine: Callable[..., Any], peer: Callable[..., Any], prompts: Any, repeats: int
) -> dict[str, Any]:
    ratios, ours_rate, theirs_rate, outside, per_round = [], [], [], [], []
    mine(prompts[0]), peer(prompts[0])  # warm both
    for prompt in tqdm(prompts, name):
        for _ in range(repeats):
            start = time.perf_counter()
            generation = mine(prompt)
            middle = time.perf_counter()
            peer(prompt)
            end = time.perf_counter()
            count = len(generation.tokens)
            ratios.append((end - middle) / (middle - start))
            ours_rate.append(count / (middle - start))
            theirs_rate.append(count / (end - middle))
            seconds = generation.stats.seconds
            models = seconds.score + (seconds.draft if name == "model" else 0.0)
            outside.append(1 - models / (middle - start))
            per_round.append(generation.stats.tokens_per_round)
    return {
        "peer": NAMES[name],
        "speed_against_peer": summary(ratios),
        "tokens_per_second": summary(ours_rate),
        "peer_tokens_per_second": summary(theirs_rate),
        "share_of_time_outside_models": summary(outside),
        "tokens_per_round": summary(per_round),
    }


def batch_throughput(target: Any, prompts: Any, repeats: int) -> dict[str, Any]:
    """Eight short prompts at once against the same eight one after the other, 64 tokens each."""
    ratios = []
    for _ in range(repeats):
        start = time.perf_counter()
        fr.generate(target, prompts, drafter=None, max_new_tokens=64, ignore_eos=True, batch_size=8)
        middle = time.perf_counter()
        for prompt in prompts:
            fr.generate(target, prompt, drafter=None, max_new_tokens=64, ignore_eos=True)
        end = time.perf_counter()
        ratios.append((end - middle) / (middle - start))
    lengths = [len(prompt) for prompt in prompts]
    return {"throughput_against_one_by_one": summary(ratios), "prompt_tokens": lengths}


if __name__ == "__main__":
    main()
