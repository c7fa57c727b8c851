"""JSON by a schema: SmolLM2 on our own prompts, plain and with every way of speculating.

Every answer must be JSON of the schema, or be cut by the limit, and every way of speculating must
give the tokens of plain decoding.  What forced tokens are good for is counted in tokens per round.

    python benchmarks/grammar.py [--requests 100] [--drafters forced suffix]
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from tqdm import tqdm

import forerun as fr
from forerun import prompts
from forerun.doctor.diagnosis import diagnose
from machine import save

SCHEMA = {
    "type": "object",
    "properties": {
        "language": {"enum": ["English", "French", "German", "Spanish", "other"]},
        "topic": {"type": "string", "maxLength": 40},
        "difficulty": {"type": "integer", "minimum": 1, "maximum": 5},
        "needs_calculation": {"type": "boolean"},
        "keywords": {
            "type": "array",
            "items": {"type": "string", "maxLength": 20},
            "minItems": 1,
            "maxItems": 3,
        },
        "answer": {"type": "string", "maxLength": 120},
    },
    "required": [
        "language", "topic", "difficulty", "needs_calculation", "keywords", "answer",
    ],
    "additionalProperties": False,
}  # fmt: skip
QUESTION = "Describe the following task, and answer it, as a JSON object.\n\n"
LENGTH = 5


class Unforced(fr.grammars.Cursor):
    """A grammar whose forced tokens nobody drafts."""

    def forced(self, output: Any) -> list[int]:
        return []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--max-new-tokens", type=int, default=200)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--drafters", nargs="+", help="those of them to run (default: all)")
    parser.add_argument("--kinds", nargs="+", help="those of the grammars to run (default: both)")
    args = parser.parse_args()
    target = fr.load(args.target, "cpu", "float32")
    texts = [prompt.text for prompt in prompts.own()]
    chats = [
        [{"role": "user", "content": QUESTION + texts[index % len(texts)]}]
        for index in range(args.requests)
    ]
    drafters = {
        "forced": fr.drafters.Forced(),
        "suffix": fr.drafters.Suffix(),
        "heads": fr.drafters.Heads(),
        "heads, tree of 12": fr.drafters.Heads(),
    }
    if args.drafters:
        drafters = {name: drafters[name] for name in args.drafters}
    kinds = {
        "any white space": fr.grammars.json_schema(SCHEMA),
        "fixed separators": fr.grammars.json_schema(SCHEMA, separators=(", ", ": ")),
    }
    if args.kinds:
        kinds = {name: kinds[name] for name in args.kinds}
    rows, is_right = [], True
    for kind, grammar in kinds.items():
        samplings = [
            fr.Sampling(0.8 * (index % 2), top_p=0.95, seed=index, grammar=grammar)
            for index in range(args.requests)
        ]
        how: dict[str, Any] = {
            "sampling": samplings, "max_new_tokens": args.max_new_tokens, "batch_size": args.batch,
        }  # fmt: skip
        plain: list[fr.Generation] = []
        for name in tqdm(["plain", *drafters], kind):
            ways = [True, False] if name in ("suffix", "heads", "heads, tree of 12") else [True]
            for is_forced in ways:
                own = {} if name == "plain" else {"drafter": drafters[name], "draft_length": LENGTH}
                own |= {"tree": 12} if "tree" in name else {}
                start = time.perf_counter()
                found = run(target, chats, is_forced, **how, **own)
                seconds = time.perf_counter() - start
                plain = plain or found
                verdicts = [
                    diagnose(target, chat, one.tokens, other.tokens, sampling=sampling)
                    for chat, one, other, sampling in zip(
                        chats, plain, found, samplings, strict=True
                    )
                ]
                differing = [verdict for verdict in verdicts if verdict is not None]
                states = [state(answer) for answer in found]
                emitted = sum(answer.stats.emitted for answer in found)
                row = {
                    "grammar": kind,
                    "drafter": name,
                    "forced": is_forced and name != "plain",
                    "valid": states.count("valid"),
                    "cut": states.count("cut"),
                    "wrong": states.count("wrong"),
                    "identical": len(found) - len(differing),
                    "near_ties": sum(verdict.is_near_tie for verdict in differing),
                    "tokens_per_round": emitted / sum(answer.stats.rounds for answer in found),
                    "tokens_per_second": emitted / seconds,
                }
                is_right &= not row["wrong"] and row["near_ties"] == len(differing)
                rows.append(row)
                tqdm.write(json.dumps(row))
    save(
        "grammar",
        {
            "requests": args.requests,
            "prompts": len(texts),
            "max_new_tokens": args.max_new_tokens,
            "batch": args.batch,
            "draft_length": LENGTH,
            "rows": rows,
        },
    )
    if not is_right:
        raise SystemExit("✗ an answer is not of the schema, or not the text of plain decoding")
    print("✓ JSON of the schema or cut by the limit, and the text of plain decoding, every time")


def run(target: Any, chats: Any, is_forced: bool, **how: Any) -> list[fr.Generation]:
    """Answers to all prompts, with or without forced tokens in the drafts."""
    from forerun.generation import intake

    usual = intake.Cursor
    intake.Cursor = usual if is_forced else Unforced  # type: ignore[misc]
    try:
        return list(fr.generate(target, chats, **{"drafter": None} | how))
    finally:
        intake.Cursor = usual  # type: ignore[misc]


def state(answer: fr.Generation) -> str:
    """Whether an answer is of the schema, cut by the limit, or neither."""
    if answer.finish_reason == "length":
        return "cut"
    if answer.finish_reason != "stop":
        return "wrong"
    found = json.loads(answer.text or "")
    kinds = {"topic": str, "difficulty": int, "needs_calculation": bool, "answer": str}
    is_valid = (
        set(found) == set(SCHEMA["properties"])  # type: ignore[call-overload]
        and all(type(found[name]) is kind for name, kind in kinds.items())
        and 1 <= found["difficulty"] <= 5
        and 1 <= len(found["keywords"]) <= 3
        and len(found["answer"]) <= 120
    )
    return "valid" if is_valid else "wrong"


if __name__ == "__main__":
    main()
