"""Arguments shared by `plan` and `sweep`: a target, drafters, and prompts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from forerun import prompts as prompt_sets
from forerun.base.errors import InputError, explain
from forerun.cli.loading import MODELS, add_place, usual_drafters
from forerun.prompts import Prompt


def add_subject(parser: argparse.ArgumentParser, *, per_group: int) -> None:
    """The arguments that both commands share."""
    parser.add_argument("target", nargs="?", help=MODELS)
    parser.add_argument(
        "--drafter",
        metavar="D",
        action="extend",
        nargs="+",
        help="one or more: a name that `forerun generate --drafter` takes (default: ngram, suffix, "
        "and for the default model heads+suffix)",
    )
    parser.add_argument(
        "--prompts",
        metavar="F",
        help='JSON lines with "prompt", or Spec-Bench\'s (default: 48 prompts of our own)',
    )
    parser.add_argument(
        "--per-group",
        metavar="N",
        type=int,
        default=per_group,
        help=f"prompts of each task group (default: {per_group})",
    )
    parser.add_argument("--max-new-tokens", metavar="N", type=int, default=64, help="(default: 64)")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="(default: 0)")
    add_place(parser)


def read_subject(args: argparse.Namespace) -> tuple[list[str], list[Prompt]]:
    """The drafters' names and the prompts, checked before a model is loaded."""
    if args.max_new_tokens < 1:
        cure = "Use 1 or more; 64 shows what there is to see."
        raise InputError(explain("--max-new-tokens is too small.", args.max_new_tokens, cure))
    prompts = prompt_sets.own() if args.prompts is None else prompt_sets.read(args.prompts)
    names = _drafters(args.drafter or usual_drafters(args.target))
    return names, prompt_sets.pick(prompts, args.per_group)


def _drafters(names: Sequence[str]) -> list[str]:
    if "none" in names:
        cure = "Leave it out: plain decoding is always measured."
        raise InputError(explain("`none` drafts nothing.", list(names), cure))
    return list(dict.fromkeys(names))
