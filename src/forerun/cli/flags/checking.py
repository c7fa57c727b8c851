"""The flags of commands that check or report: `certify`, `doctor`, `audit`, `info`,
`completion`."""

from __future__ import annotations

import argparse

from forerun.cli.flags.shared import (
    RULES,
    add_drafter,
    add_max_tokens,
    add_model,
    add_place,
    add_seed,
)

CERTIFY_EXAMPLES = """examples:
  forerun certify                           every rule, and every known bug
  forerun certify --quick                   every rule, and a few of the bugs
  forerun certify --rule block              one rule, case by case
  forerun certify --function mine.py:verify    a function of your own; or a module, mine:verify
  forerun certify --function mine.py:verify --trees
  forerun certify --json > certificate.json

A function of your own is f(draft_tokens, draft_probs, target_probs, rng) -> emitted ids, with
arrays (K,), (K, V), (K + 1, V) and rng used like a numpy.random.Generator.  With --trees it gets
trees to judge: a fifth argument has the parents, target_probs[i + 1] is the distribution
after token i.
"""


def certify(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `certify`: a rule or your own function, and how to sample it if
    necessary."""
    parser.description = "Compare the distribution of what a rule emits with the target's, exactly."
    parser.epilog = CERTIFY_EXAMPLES
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--rule", choices=RULES, help="one rule only, with every case")
    what.add_argument("--function", metavar="FILE:NAME", help="a verifier of your own")
    what.add_argument("--quick", action="store_true", help="fewer of the known bugs")
    parser.add_argument("--trees", action="store_true", help="judge your function on trees")
    parser.add_argument(
        "--samples", type=int, help="texts per case, for what only sampling can test"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the cases and of the sampling")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


DOCTOR_EXAMPLES = """examples:
  forerun doctor ./my-model --drafter ngram --prompts prompts.jsonl
  forerun doctor ./my-model --drafter ./my-draft --draft-length 4 --temperature 0.8
  forerun doctor ./my-model --device cuda --dtype bfloat16 --batch 8 --repeat-in-float32
  forerun doctor --prompts prompts.txt --limit 10 --json
"""


def doctor(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `doctor`: two ways to answer the same prompts."""
    parser.description = (
        "Generate each prompt plainly and with a drafter, from the same seed.  Every "
        "difference is traced to a near-tie of float arithmetic, or called a bug."
    )
    parser.epilog = DOCTOR_EXAMPLES
    add_model(parser)
    add_drafter(parser)
    parser.add_argument(
        "--prompts", metavar="F", help='one per line, or JSON lines with "prompt" (default: ours)'
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
    add_max_tokens(parser, 64)
    parser.add_argument("--temperature", type=float, default=0.0, help="(default: 0)")
    parser.add_argument("--top-p", type=float, default=1.0, help="(default: 1)")
    add_seed(parser)
    parser.add_argument("--batch", type=int, default=1, help="requests per pass (default: 1)")
    parser.add_argument(
        "--repeat-in-float32",
        action="store_true",
        help="look again, with a float32 copy, at what 16 bits leave open",
    )
    add_place(parser)
    parser.add_argument("--json", action="store_true", help="one JSON line per prompt")


AUDIT_EXAMPLES = """examples:
  forerun audit http://localhost:8000/v1
  forerun audit https://example.com/v1 --model M --key-env MY_KEY --rate 2
  forerun audit http://localhost:8000/v1 --budget 20000 --out audit
  forerun audit http://localhost:8000/v1 --dry-run

The budget counts generated tokens.  An audit with --out that was stopped goes on where it was, and
leaves report.json and report.html there.  Exit status: 0 nothing found wrong, 1 something found
wrong, 2 the audit could not be made.
"""


def audit(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `audit`: the endpoint, the budget, and where the report goes."""
    parser.description = "Test whether an endpoint's speculation keeps its own distribution."
    parser.epilog = AUDIT_EXAMPLES
    parser.add_argument("url", metavar="URL", help="base URL of the API, ending in /v1")
    parser.add_argument("--model", help="(default: the first that the endpoint lists)")
    parser.add_argument("--key-env", metavar="VAR", help="environment variable with the API key")
    parser.add_argument("--budget", type=int, default=5000, help="generated tokens (default 5000)")
    parser.add_argument("--out", metavar="DIR", help="folder for journal and report")
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second, at most")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for one answer")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts")
    parser.add_argument("--slack", type=float, help="what rounding may do to a ratio of chances")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be sent; send nothing"
    )


INFO_EXAMPLES = """examples:
  forerun info
  forerun info --json
  forerun info --clear-cache
"""


def info(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `info`: the report, or clearing the cache."""
    parser.description = (
        "Tell what is installed, which passes run on this machine, and how much "
        "the caches hold.  Good to have in a bug report."
    )
    parser.epilog = INFO_EXAMPLES
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--clear-cache",
        action="store_true",
        help="remove the converted and packed models, which are made again when needed",
    )
    parser.add_argument("--yes", action="store_true", help="with --clear-cache: do not ask")


COMPLETION_EXAMPLES = """examples:
  source <(forerun completion bash)                                # in ~/.bashrc
  source <(forerun completion zsh)                                 # in ~/.zshrc, after compinit
  forerun completion fish > ~/.config/fish/completions/forerun.fish
"""


def completion(parser: argparse.ArgumentParser) -> None:
    """Add the argument of `completion`: the shell."""
    parser.description = "Print a completion script for a shell, to be read when it starts."
    parser.epilog = COMPLETION_EXAMPLES
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
