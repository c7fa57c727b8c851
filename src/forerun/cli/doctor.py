"""`forerun doctor`: checks that speculation on a model gives the text of plain decoding."""

from __future__ import annotations

import argparse
import json
from typing import Any

from forerun import rules
from forerun.cli.lists import tree
from forerun.cli.loading import DRAFTERS, load_drafter, load_target, usual_drafter
from forerun.cli.prompts import read_list
from forerun.doctor import diagnose
from forerun.engine.generate import generate
from forerun.errors import UnsupportedError, explain
from forerun.sampling import Sampling

EXAMPLES = """examples:
  forerun doctor --target ./my-model --drafter ngram --prompts prompts.jsonl
  forerun doctor --target ./my-model --drafter ./my-draft --draft-length 4 --temperature 0.8
  forerun doctor --prompts prompts.txt --limit 10 --json
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "doctor",
        help="compare speculative with plain text, and explain every difference",
        description="Generate each prompt plainly and with a drafter, from the same seed.  Every "
        "difference is traced to a near-tie of float arithmetic, or called a bug.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--target", help="a model's name or folder (default: SmolLM2-135M)")
    parser.add_argument("--drafter", metavar="D", help=DRAFTERS)
    parser.add_argument("--prompts", help="a file: one prompt per line, or JSONL")
    parser.add_argument("--limit", type=int, default=8, help="prompts to use (default: 8)")
    parser.add_argument("--draft-length", type=int, default=5, help="K (default: 5)")
    parser.add_argument(
        "--tree", metavar="T", help="16 tokens in any shape, or 2,2 children by level"
    )
    parser.add_argument(
        "--rule", default="match", help="match; greedy also any other lossless one (default: match)"
    )
    parser.add_argument("--max-new-tokens", type=int, default=64, help="(default: 64)")
    parser.add_argument("--temperature", type=float, default=0.0, help="(default: 0)")
    parser.add_argument("--top-p", type=float, default=1.0, help="(default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="(default: 0)")
    parser.add_argument("--batch", type=int, default=1, help="requests per pass (default: 1)")
    parser.add_argument("--json", action="store_true", help="one JSON line per prompt")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    sampling = Sampling(temperature=args.temperature, top_p=args.top_p, seed=args.seed)
    rule, shape = _rule(args.rule, sampling), tree("--tree", args.tree)
    prompts = (read_list(args.prompts) if args.prompts else list(SAMPLES))[: args.limit]
    name = usual_drafter(args.target) if args.drafter is None else args.drafter
    drafter, target = load_drafter(name), load_target(args.target)
    shared: dict[str, Any] = {"sampling": sampling, "max_new_tokens": args.max_new_tokens}
    bugs = ties = 0
    for number, prompt in enumerate(prompts):
        plain = generate(target, prompt, **shared)
        batch = [prompt] * args.batch
        guessed = generate(
            target,
            batch,
            drafter=drafter,
            draft_length=args.draft_length,
            tree=shape,
            rule=rule,
            batch_size=args.batch,
            **shared,
        )[0]
        difference = diagnose(target, prompt, plain.tokens, guessed.tokens, sampling=sampling)
        ties += difference is not None and difference.is_near_tie
        bugs += difference is not None and not difference.is_near_tie
        verdict = "identical" if difference is None else str(difference)
        if args.json:
            row = {"prompt": number, "verdict": verdict, "identical": difference is None}
            print(json.dumps(row | {"stats": guessed.stats.to_dict()}), flush=True)
        else:
            per_round = guessed.stats.tokens_per_round
            print(f"{number:>4}  {per_round:5.2f} tokens/round  {verdict}", flush=True)
    if not args.json:
        same = len(prompts) - ties - bugs
        print(f"\n{same} identical, {ties} near-ties, {bugs} bugs in {len(prompts)} prompts.")
    return 1 if bugs else 0


def _rule(name: str, sampling: Sampling) -> rules.Rule:
    """The rule; refuses rules that do not promise the exact text of plain decoding."""
    rule = rules.get(name)
    if not rule.lossless or (rule.name != "match" and sampling.temperature > 0):
        wrong = "This rule does not promise the text of plain decoding."
        received = f"{rule.name} at temperature {sampling.temperature:g}"
        cure = "Use match, or a lossless rule at temperature 0; `forerun certify` judges laws."
        raise UnsupportedError(explain(wrong, received, cure))
    return rule


SAMPLES = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "To make bread you need flour, water, salt and yeast. To make bread you need",
)
