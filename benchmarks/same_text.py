"""Same seed, same text: SmolLM2 on Spec-Bench prompts, plain against every way of speculating.

Every configuration must give the tokens of plain decoding.  A difference is put before the doctor,
who says whether float arithmetic broke a near-tie or something is wrong.

    python benchmarks/same_text.py [SPEC_BENCH.jsonl]
"""

from __future__ import annotations

import argparse
import time

from tqdm import tqdm

import forerun as fr
from forerun.doctor.diagnosis import diagnose
from machine import device_name, save
from spec_bench import read
from tiny_draft import noisy_copy

SAMPLING = fr.Sampling(temperature=0.8, top_p=0.95, seed=7)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompts", nargs="?", help="Spec-Bench's file (default: our own prompts)")
    parser.add_argument("--target", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--per-group", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    args = parser.parse_args()
    target = fr.load(args.target, device=args.device, dtype="float32")
    chats = [[{"role": "user", "content": text}] for _, text in read(args.prompts, args.per_group)]
    drafters = {"ngram": fr.drafters.NGram(), "noisy copy": noisy_copy(target, 0.1)}
    shared = {"sampling": SAMPLING, "max_new_tokens": args.max_new_tokens}
    configurations = [("plain", None, 0, 8)] + [
        (name, drafter, length, batch)
        for name, drafter in drafters.items()
        for length in (2, 5)
        for batch in (1, 8)
    ]
    plain = [
        fr.generate(target, chat, drafter=None, **shared).tokens
        for chat in tqdm(chats, "plain, batch 1")
    ]
    rows = [{"drafter": "plain", "draft_length": 0, "batch": 1, "identical": len(chats)}]
    for name, drafter, length, batch in tqdm(configurations, "configurations"):
        start = time.perf_counter()
        found = fr.generate(
            target, chats, drafter=drafter, draft_length=length, batch_size=batch, **shared
        )
        seconds = time.perf_counter() - start
        verdicts = [
            diagnose(target, chat, one, other.tokens, sampling=SAMPLING)
            for chat, one, other in zip(chats, plain, found, strict=True)
        ]
        differing = [verdict for verdict in verdicts if verdict is not None]
        emitted = sum(each.stats.emitted for each in found)
        rows.append(
            {
                "drafter": name,
                "draft_length": length,
                "batch": batch,
                "identical": len(chats) - len(differing),
                "near_ties": sum(verdict.is_near_tie for verdict in differing),
                "bugs": sum(not verdict.is_near_tie for verdict in differing),
                "explanations": [str(verdict) for verdict in differing],
                "tokens_per_round": emitted / sum(each.stats.rounds for each in found),
                "seconds": seconds,
            }
        )
        tqdm.write(str(rows[-1]))
    save(
        "same_text",
        {
            "prompts": len(chats),
            "device": device_name(args.device),
            "sampling": str(SAMPLING),
            "rows": rows,
        },
        args.device,
    )


if __name__ == "__main__":
    main()
