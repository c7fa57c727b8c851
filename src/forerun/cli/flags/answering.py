"""The flags of commands that generate answers: `generate`, `serve`, `batch`, `demo`."""

from __future__ import annotations

import argparse

from forerun.cli.flags.config import add_config
from forerun.cli.flags.shared import (
    DRAFTER,
    add_draft_length,
    add_drafter,
    add_model,
    add_pass,
    add_place,
    add_ranks,
    add_rule,
    add_sampling,
    add_seed,
)

GENERATE_EXAMPLES = """examples:
  forerun generate "What is the capital of France?"
  forerun generate "Summarise this:" --file report.txt --stats
  git diff | forerun generate --system "Write a commit message for this diff."
  forerun generate "Tell me a story." --temperature 0.8 --top-p 0.95 --seed 7
  forerun generate Qwen/Qwen3-8B "Explain KV caches." --drafter Qwen/Qwen3-0.6B
  forerun generate "Name ten rivers." --drafter heads+suffix --tree 16
  forerun generate "Name ten rivers." --tree 3,1,1 --rule traversal --temperature 0.8
  forerun generate "def fibonacci(n):" --raw --stop "def " --drafter none
  forerun generate --prompts questions.jsonl --json > answers.jsonl
  forerun generate Qwen/Qwen3-32B "Explain KV caches." --tensor-parallel 2

Under the rule match the same seed gives the same text, whatever the drafter and draft length.
On a terminal tokens are coloured by their fate; set NO_COLOR to leave that out.
"""


def generate(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `generate`: prompts, models, drafting and sampling."""
    parser.description = (
        "Answer a prompt: the text of the target, faster, by drafting and verifying."
    )
    parser.epilog = GENERATE_EXAMPLES
    add_model(parser, then="prompt", about="the text; without it, standard input is read")
    parser.add_argument("--file", metavar="F", help="the prompt, or its end, from a file or -")
    parser.add_argument("--prompts", metavar="F", help='one per line, or JSON lines with "prompt"')
    parser.add_argument("--system", metavar="TEXT", help="system message of the chat")
    parser.add_argument("--raw", action="store_true", help="continue the text: no chat template")
    parser.add_argument("--json", action="store_true", help="print one JSON object per prompt")
    parser.add_argument("--stats", action="store_true", help="print statistics to standard error")

    models = parser.add_argument_group("models")
    add_drafter(models)
    add_draft_length(models)
    models.add_argument(
        "--tree",
        metavar="T",
        help="guess a tree: 16 for 16 tokens in any shape (rule match only), or 2,2 for two "
        "children at each of two levels (also siblings and traversal) (default: a chain)",
    )
    add_rule(models)
    add_place(models)
    add_pass(models)
    add_ranks(models)

    sampling = parser.add_argument_group("sampling")
    add_sampling(sampling)
    sampling.add_argument(
        "--seed",
        metavar="N",
        type=int,
        help="the same seed gives the same text (default: a fresh one)",
    )


SERVE_EXAMPLES = """examples:
  forerun serve
  forerun serve Qwen/Qwen3-8B --drafter Qwen/Qwen3-0.6B --drafter suffix
  forerun serve --host 0.0.0.0 --api-key-file keys.txt --max-batch 16
  forerun serve --rules match,ratio,typical
  forerun serve --config forerun.toml
  forerun serve --tls-cert cert.pem --tls-key key.pem --uds /run/forerun.sock
  forerun serve --ray --replicas 2

Any OpenAI client can talk to it.  A request's field "speculation" chooses among the drafters and
rules named here, or is false; under the rule match none of that changes the text.
SIGTERM and Ctrl-C let running requests finish; a second one stops at once.
"""


def serve(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `serve`: models, rules, replicas, the address, and limits for clients."""
    parser.description = "Serve a model over HTTP: OpenAI's routes, and a page at /."
    parser.epilog = SERVE_EXAMPLES
    add_model(parser)
    models = parser.add_argument_group("models")
    models.add_argument(
        "--drafter",
        metavar="D",
        action="append",
        help=f"{DRAFTER}; repeatable: requests choose, the first is the default",
    )
    add_draft_length(models)
    models.add_argument("--rule", default="match", help="the default one (default: match)")
    models.add_argument(
        "--rules",
        metavar="R,R",
        help="those a request may name; lossy ones must be named (default: all lossless ones)",
    )
    add_place(models)
    add_pass(models)
    add_ranks(models)
    models.add_argument(
        "--name",
        action="append",
        help="the model's id for clients (default: MODEL, of a folder or file its last part); "
        "repeatable: the others are other names for it",
    )
    models.add_argument(
        "--needs-gib",
        metavar="X",
        type=float,
        help="memory that the model takes, where a configuration has several (default: the size of "
        "its weights' files)",
    )

    _add_replicas(parser)
    place = parser.add_argument_group("address and access")
    place.add_argument("--host", default="127.0.0.1", help="(default: 127.0.0.1)")
    place.add_argument("--port", type=int, default=8000, help="0: any (default: 8000)")
    place.add_argument("--uds", metavar="PATH", help="a unix socket instead of --host and --port")
    place.add_argument("--tls-cert", metavar="F", help="a certificate in PEM: answer over TLS")
    place.add_argument("--tls-key", metavar="F", help="its key (default: in --tls-cert)")
    place.add_argument(
        "--api-key-file", metavar="F", help="one key per line, or name:key, with limits after it"
    )
    place.add_argument(
        "--cors-origin",
        metavar="URL",
        action="append",
        default=[],
        help="whose pages may ask from a browser; repeatable (default: none but its own)",
    )
    place.add_argument(
        "--allowed-host",
        metavar="NAME",
        action="append",
        default=[],
        help="a name that clients reach it by; repeatable (default: any, but without keys on "
        "a loopback address only that and localhost)",
    )

    bounds = parser.add_argument_group("bounds")
    for flag, default, text in (
        ("--max-batch", 8, "answers in one pass"),
        ("--max-queue", 64, "answers that may wait; a request with more gets 429"),
        ("--max-tokens", None, "new tokens of an answer, at most (default: what fits)"),
        ("--max-body-mib", 4, "size of a request"),
        ("--drain-seconds", 30, "for running requests to finish when stopped"),
        ("--reader-seconds", 30, "for a client to take in what it was sent"),
    ):
        text += "" if default is None else f" (default: {default})"
        bounds.add_argument(flag, metavar="N", type=int, default=default, help=text)
    bounds.add_argument(
        "--slowdown",
        metavar="X",
        type=float,
        default=4.0,
        help="times as long as usual that a round may take in order to read prompts: more gives "
        "sooner first tokens and longer pauses in answers (default: 4)",
    )
    bounds.add_argument(
        "--memory-gib",
        metavar="X",
        type=float,
        help="of all loaded models together, where a configuration has several "
        "(default: 80%% of this machine's)",
    )
    parser.add_argument("--log-json", action="store_true", help="log lines as JSON")
    parser.add_argument(
        "--request-log",
        metavar="F",
        help="a line of JSON for each request that ends, never with its texts; - is stdout",
    )
    own = [action.dest for action in models._group_actions]
    add_config(parser, ("model", *own, "max_batch", "max_queue", "max_tokens", "slowdown"))


def _add_replicas(parser: argparse.ArgumentParser) -> None:
    """Add the flags for replicas on Ray: their number and resources."""
    group = parser.add_argument_group("replicas on Ray (extra `ray`)")
    group.add_argument(
        "--ray", action="store_true", help="replicas on Ray: this machine, or the cluster it is in"
    )
    group.add_argument("--replicas", metavar="N", type=int, help="how many (default: 1)")
    group.add_argument(
        "--autoscale", metavar="A:B", help="from A to B replicas, by the answers they have"
    )
    group.add_argument(
        "--replica-cpus",
        metavar="N",
        type=float,
        help="cores of a replica (default: an even share of this machine's)",
    )
    group.add_argument("--replica-gpus", metavar="N", type=float, help="(default: 0)")
    group.add_argument(
        "--ready-seconds",
        metavar="N",
        type=int,
        help="for the first replica to be ready (default: 600)",
    )


BATCH_EXAMPLES = """examples:
  forerun batch questions.jsonl --out answers
  forerun batch Qwen/Qwen3-8B requests.jsonl --out answers --name gpt-4o-mini
  forerun batch prompts.parquet --out answers --workers 4 --max-tokens 64 --temperature 0.8
  forerun batch questions.jsonl --out answers --ray --workers 16

A line is one of OpenAI's batch format, or {"prompt": "..."} or {"messages": [...]} with any fields
of a request beside it.  answers/output.jsonl has one line for each, in order, in OpenAI's format.
Kill it when you like: started again with the same words it goes on where it was.  Texts depend on
the seed and each line alone, not on drafters, workers or interruptions.
"""


def batch(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `batch`: files, workers, and defaults for lines that are bare prompts."""
    parser.description = "Answer every line of a file of requests into a folder."
    parser.epilog = BATCH_EXAMPLES
    add_model(parser, then="input", about="JSON lines, or a file ending in .parquet")
    parser.add_argument("--out", metavar="DIR", required=True, help="folder to write, or go on in")
    parser.add_argument("--limit", metavar="N", type=int, help="only the first N lines")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="only read the input, and say which lines are bad, as far as no model is needed",
    )
    parser.add_argument(
        "--retry-failed",
        action="store_true",
        help="do lines again that failed for reasons outside of them (status 500 and above)",
    )

    places = parser.add_argument_group("workers")
    places.add_argument(
        "--workers",
        metavar="N",
        type=int,
        default=1,
        help="processes, each with the model loaded, which share the cores (default: 1)",
    )
    places.add_argument("--ray", action="store_true", help="workers are actors of a Ray cluster")
    places.add_argument(
        "--max-batch", metavar="N", type=int, default=8, help="answers in one pass (default: 8)"
    )

    models = parser.add_argument_group("models")
    models.add_argument(
        "--name",
        help="what bodies may call the model (default: its name; of a folder, the last part)",
    )
    add_drafter(models)
    add_draft_length(models)
    add_place(models)
    add_pass(models)

    sampling = parser.add_argument_group(
        "defaults", "of lines that are bare prompts or messages; OpenAI's lines say it themselves"
    )
    add_sampling(sampling)
    sampling.add_argument("--raw", action="store_true", help="no chat template for bare prompts")
    add_seed(parser, "of the job; a line's own is made of it and of its custom_id or number")


def demo(parser: argparse.ArgumentParser) -> None:
    """Set the description of `demo`, which has no flags of its own."""
    parser.description = "Answer two prompts plainly and speculatively: the same text twice."
