"""`forerun plan`: says whether speculation pays here, with which drafter, draft length and rule."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from forerun.base.errors import InputError, UnsupportedError, explain
from forerun.cli.lists import counts
from forerun.cli.loading import load_drafter, load_target
from forerun.cli.prompts import read_subject
from forerun.measure.exports import Export, exports, for_sglang, for_vllm, script
from forerun.measure.planner import RULES, SpeculationPlan, plan
from forerun.measure.pricing import Forecast
from forerun.measure.probe import step_sizes
from forerun.measure.progress import Progress
from forerun.measure.sweep import as_chat

ENGINES = {"vllm": for_vllm, "sglang": for_sglang}


def run(args: argparse.Namespace) -> int:
    """Measure, plan, and print the advice as a table, as JSON or as flags of another engine."""
    names, prompts = read_subject(args)
    for flag, value in (("--batch", args.batch), ("--max-draft-length", args.max_draft_length)):
        if value < 1:
            raise InputError(explain(f"{flag} is too small.", value, "Use 1 or more."))
    trees = counts("--tree", args.tree) if args.tree else []
    drafters = {name: load_drafter(name, args.device, args.dtype) for name in names}
    target = load_target(args.model, args.device, args.dtype)
    num_trees = len(trees) if "match" in (args.rule or RULES) else 0
    sizes = step_sizes(len(drafters), len(prompts), 1, num_trees)
    with Progress("probing", len(sizes), sizes=sizes) as progress:
        advice = plan(
            target,
            {name: drafter for name, drafter in drafters.items() if drafter is not None},
            [as_chat(target, prompt) for prompt in prompts],
            batch=args.batch,
            temperature=args.temperature,
            rules=args.rule or RULES,
            max_draft_length=args.max_draft_length,
            trees=trees,
            max_new_tokens=args.max_tokens,
            seed=args.seed,
            report=progress.begin,
        )
    source = "of our own" if args.prompts is None else f"of {args.prompts}"
    report = as_dict(advice) | {"num_prompts": len(prompts)}
    about = f"{len(prompts)} {'prompt' if len(prompts) == 1 else 'prompts'} {source}"
    if args.json:
        print(json.dumps(report))
    elif args.engine is not None:
        print(script(_export(args.engine, advice), advice))
    else:
        print(render(advice, about))
    return 0


def _export(engine: str, advice: SpeculationPlan) -> Export:
    """The plan for another engine; raises if that engine lacks what was chosen."""
    export = ENGINES[engine](advice)
    if export.arguments is None:
        cure = "Plan with drafters that it has, for example --drafter ngram."
        raise UnsupportedError(explain(" ".join(export.notes), str(advice), cure))
    return export


def render(advice: SpeculationPlan, about: str) -> str:
    """The advice as text: the best setting of each drafter and rule, a recommendation, and its
    exports."""
    how = "greedy" if advice.temperature == 0 else f"temperature {advice.temperature:g}"
    lines = [f"{advice.target}, {about}, {how}, batch {advice.batch}", ""]
    lines += [f"{'drafter':<24} {'rule':<6} {'K':>3}  {'tokens per round':<20}  {'speed-up':<20}"]
    best: dict[tuple[str, str, int | None], Forecast] = {}
    for setting in advice.forecasts:
        key = (setting.drafter, setting.rule, setting.tree)
        if key not in best or setting.speedup.mean > best[key].speedup.mean:
            best[key] = setting
    for setting in best.values():
        mark = "  ◆" if setting == advice.choice else ""
        tokens, gain = _interval(setting.tokens_per_round), _interval(setting.speedup)
        name = setting.drafter.rstrip("/").split("/")[-1]
        name = (name if setting.tree is None else f"{name} tree {setting.tree}")[:24]
        length = setting.draft_length
        lines.append(f"{name:<24} {setting.rule:<6} {length:>3}  {tokens:<20}  {gain:<17}{mark}")
    lines += ["", str(advice), ""]
    for export in exports(advice):
        lines.append(f"{export.engine}: {'-' if export.arguments is None else export.arguments}")
        lines += [f"  {note}" for note in export.notes]
    return "\n".join(line.rstrip() for line in lines)


def as_dict(advice: SpeculationPlan) -> dict[str, Any]:
    """The plan, its forecasts and its exports as a dictionary for JSON."""
    return {
        "target": advice.target,
        "batch": advice.batch,
        "temperature": advice.temperature,
        "speculate": advice.speculates,
        "advice": str(advice),
        "choice": None if advice.choice is None else asdict(advice.choice),
        "forecasts": [asdict(setting) for setting in advice.forecasts],
        "exports": [asdict(export) for export in exports(advice)],
    }


def _interval(value: Any) -> str:
    """A mean with its interval: `1.23 [1.10, 1.36]`."""
    return f"{value.mean:.2f} [{value.low:.2f}, {value.high:.2f}]"
