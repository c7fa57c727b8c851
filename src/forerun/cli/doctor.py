"""`forerun doctor`: checks that speculation on a model gives the text of plain decoding."""

from __future__ import annotations

import argparse
import json
from textwrap import shorten

from forerun.cli.lists import tree
from forerun.cli.loading import DRAFTERS, MODELS, add_place, load_drafter, load_target
from forerun.cli.prompts import read_list
from forerun.doctor.checkup import SAMPLES, Checkup, Finding, checked_rule, examine
from forerun.sampling.options import Sampling

EXAMPLES = """examples:
  forerun doctor --target ./my-model --drafter ngram --prompts prompts.jsonl
  forerun doctor --target ./my-model --drafter ./my-draft --draft-length 4 --temperature 0.8
  forerun doctor --target ./my-model --device cuda --dtype bfloat16 --batch 8 --repeat-in-float32
  forerun doctor --prompts prompts.txt --limit 10 --json
"""

SHOWN = 32  # characters of a prompt


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "doctor",
        help="compare speculative with plain text, and explain every difference",
        description="Generate each prompt plainly and with a drafter, from the same seed.  Every "
        "difference is traced to a near-tie of float arithmetic, or called a bug.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--target", metavar="M", help=MODELS)
    parser.add_argument("--drafter", metavar="D", help=DRAFTERS)
    parser.add_argument(
        "--prompts", help=f"one per line, or JSONL (default: {len(SAMPLES)} of ours)"
    )
    parser.add_argument(
        "--limit", metavar="N", type=int, default=8, help="use only the first N (default: 8)"
    )
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
    parser.add_argument(
        "--repeat-in-float32",
        action="store_true",
        help="look again, with a float32 copy, at what 16 bits leave open",
    )
    add_place(parser)
    parser.add_argument("--json", action="store_true", help="one JSON line per prompt")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    sampling = Sampling(temperature=args.temperature, top_p=args.top_p, seed=args.seed)
    rule, shape = checked_rule(args.rule, sampling), tree("--tree", args.tree)
    prompts = (read_list(args.prompts) if args.prompts else list(SAMPLES))[: args.limit]
    drafter = load_drafter(args.drafter, args.device, args.dtype)
    target = load_target(args.target, args.device, args.dtype)
    findings: list[Finding] = []
    if not args.json:
        print(f"{'tokens/round':>12}  {'prompt':<{SHOWN}}  speculative against plain text")
    for finding in examine(
        target,
        prompts,
        drafter=drafter,
        draft_length=args.draft_length,
        tree=shape,
        rule=rule,
        sampling=sampling,
        max_new_tokens=args.max_new_tokens,
        batch_size=args.batch,
        repeat_in_float32=args.repeat_in_float32,
    ):
        number = len(findings)
        print(_line(number, prompts[number], finding, as_json=args.json), flush=True)
        findings.append(finding)
    checkup = Checkup(tuple(findings))
    if not args.json:
        print(f"\n{checkup.summary}")
        if checkup.num_unclear:
            print("Run it again with --repeat-in-float32 to tell rounding from a bug.")
    return 1 if checkup.num_bugs else 0


def _line(number: int, prompt: str, finding: Finding, *, as_json: bool) -> str:
    stats = finding.drafted.stats
    if not as_json:
        shown = shorten(prompt, SHOWN, placeholder=" ...")
        return f"{stats.tokens_per_round:>12.2f}  {shown:<{SHOWN}}  {finding}"
    row = {"prompt": number, "verdict": str(finding), "identical": finding.difference is None}
    return json.dumps(row | {"stats": stats.to_dict()})
