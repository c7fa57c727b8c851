"""`forerun doctor`: checks that a model gives the same text with and without speculation."""

from __future__ import annotations

import argparse
import json
from textwrap import shorten

from forerun.cli.flags.shared import check_least
from forerun.cli.lists import tree
from forerun.cli.loading import load_drafter, load_target
from forerun.cli.prompts import read_list
from forerun.doctor.checkup import SAMPLES, Checkup, Finding, checked_rule, examine
from forerun.sampling.options import Sampling

SHOWN = 32  # characters of a prompt


def run(args: argparse.Namespace) -> int:
    """Print a finding for each prompt, and a summary. Returns status 1 if there is a bug."""
    check_least(args, draft_length=0, max_tokens=1, batch=1)
    sampling = Sampling(temperature=args.temperature, top_p=args.top_p, seed=args.seed)
    rule, shape = checked_rule(args.rule, sampling), tree("--tree", args.tree)
    prompts = (read_list(args.prompts) if args.prompts else list(SAMPLES))[: args.limit]
    drafter = load_drafter(args.drafter, args.device, args.dtype)
    target = load_target(args.model, args.device, args.dtype)
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
        max_new_tokens=args.max_tokens,
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
    """A finding as a line of the table, or as JSON."""
    stats = finding.drafted.stats
    if not as_json:
        shown = shorten(prompt, SHOWN, placeholder=" ...")
        return f"{stats.tokens_per_round:>12.2f}  {shown:<{SHOWN}}  {finding}"
    row = {"prompt": number, "verdict": str(finding), "identical": finding.difference is None}
    return json.dumps(row | {"stats": stats.to_dict()})
