"""`forerun certify`: proves that our rules are lossless, and that known bugs are detected."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from traceback import extract_tb
from typing import Any

from forerun import rules
from forerun.base.errors import InputError, explain, meant
from forerun.cli.screen import wants_colour
from forerun.proof import Certificate, certify, tree_cases
from forerun.proof.mutants import MUTANTS, Mutant

QUICK = (
    "residual is p",
    "argmax as sampled",
    "shared uniform",
    "one coin",
    "block, one address",
    "coin is 0",
    "stale rows",
    "bonus from the last slot",
    "top-k tree as sampled",
    "greedy + 1, whole row",
)
"""Known bugs of several kinds that are caught quickly."""

GREEN, RED, RESET = "\033[32m", "\033[31m", "\033[0m"


def run(args: argparse.Namespace) -> int:
    """Certify one rule or function, or everything. Returns status 1 if a verdict is not as
    expected."""
    if args.trees and not args.function:
        cure = "Add --function FILE:NAME; rules that judge trees are tried on them anyway."
        raise InputError(explain("--trees is for a function of your own.", "no function", cure))
    if args.rule or args.function:
        subject = args.rule or _function(args.function)
        how: dict[str, Any] = {"cases": tree_cases(args.seed)} if args.trees else {}
        name = args.rule or args.function
        certificate = certify(subject, samples=args.samples, seed=args.seed, name=name, **how)
        print(certificate.to_json() if args.json else certificate)
        labelled = args.rule is not None and not rules.get(args.rule).lossless
        return 0 if certificate.lossless or labelled else 1
    bugs = [mutant for mutant in MUTANTS if not args.quick or mutant.name in QUICK]
    return _everything(bugs, args.seed, as_json=args.json)


def _everything(bugs: Sequence[Mutant], seed: int, *, as_json: bool) -> int:
    """Certify every rule and every known bug, one line each. Returns status 1 if a verdict is
    unexpected."""
    rows, wrong = [], 0
    if not as_json:
        print(f"{'':2}{'subject':<26}{'verdict':<22}{'bias (TV)':>10}   worst case / what is wrong")
    for kind, certificate, expected, story in _subjects(bugs, seed):
        right = certificate.lossless == expected
        wrong += not right
        rows.append(certificate.to_dict() | {"kind": kind, "as_expected": right, "story": story})
        if not as_json:
            print(_line(kind, certificate, right, story), flush=True)
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        proven = sum(row["kind"] == "rule" for row in rows)
        caught = sum(row["kind"] == "mutant" and not row["lossless"] for row in rows)
        print(
            f"\n{proven} lossless rules keep the target's joint distribution to 1e-12; "
            f"{caught} of {len(bugs)} known bugs were caught."
        )
        if len(bugs) < len(MUTANTS):
            print(f"There are {len(MUTANTS)}; without --quick all of them are tried.")
        if wrong:
            print(f"{wrong} verdicts are not as they should be.", file=sys.stderr)
    return 1 if wrong else 0


def _subjects(bugs: Sequence[Mutant], seed: int) -> Iterator[tuple[str, Certificate, bool, str]]:
    """Yield (kind, certificate, whether the verdict is as expected, description) for all rules and
    bugs."""
    for name in rules.names(lossless=True):
        certificate = certify(name, seed=seed)
        yield (
            "rule",
            certificate,
            True,
            f"worst of {len(certificate.findings)} cases: {certificate.worst.case}",
        )
    for name in rules.names(lossless=False):
        yield "lossy", certify(name, seed=seed), False, "lossy by design, opt-in"
    for mutant in bugs:
        yield "mutant", mutant.certificate(seed), False, mutant.story


def _line(kind: str, certificate: Certificate, right: bool, story: str) -> str:
    """One line of the table: verdict, bias and description, in colour on a terminal."""
    verdict = {
        "rule": certificate.verdict if certificate.lossless else "NOT LOSSLESS",
        "lossy": "lossy, as labelled",
        "mutant": "NOT CAUGHT" if certificate.lossless else "bug, caught",
    }[kind]
    mark, colour = ("✓", GREEN) if right else ("✗", RED)
    line = f"{mark} {certificate.subject:<26}{verdict:<22}{certificate.bias:>10.1e}   {story}"
    return f"{colour}{mark}{RESET}{line[1:]}" if wants_colour() else line


def _function(spec: str) -> Any:
    """The object named by MODULE:NAME or FILE.py:NAME; modules are also searched in the current
    folder."""
    place, _, name = spec.rpartition(":")
    folder = ""
    if place.endswith(".py"):
        if not Path(place).is_file():
            cure = (
                f"It is looked for from {str(Path.cwd())!r}. Write file and name, mine.py:verify."
            )
            raise InputError(explain("There is no such file.", repr(place), cure))
        folder, place = str(Path(place).parent.resolve()), Path(place).stem
    sys.path.insert(0, folder)
    wrong = "That function cannot be found."
    cure = "Write file and name, mine.py:verify for example, or module and name, mine:verify."
    if not place or not name:
        if (file := Path(spec)).suffix == ".py" and file.is_file():
            cure = f"Write its name after a colon: {spec}:{_last_function(file)}."
        raise InputError(explain(wrong, repr(spec), cure))
    try:
        module = import_module(place)
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{place}.".startswith(f"{error.name}."):
            wrong = f"{place} imports {error.name}, which is not installed here."
            cure = "Install it where Forerun is, or leave that import out."
        raise InputError(explain(wrong, f"{spec} ({error})", cure)) from error
    except Exception as error:  # of that file's own code
        failure = f"{type(error).__name__}: {error}"
        if not isinstance(error, SyntaxError):  # which says so itself
            at = extract_tb(error.__traceback__)[-1]
            failure += f" ({Path(at.filename).name}, line {at.lineno})"
        cure = "Correct it there, and certify the function again."
        raise InputError(explain(f"{place} cannot be imported.", failure, cure)) from error
    if not hasattr(module, name):
        own = [key for key in vars(module) if not key.startswith("_")]
        cure += meant(name, own)
        if (owner := name.partition(".")[0]) in own:
            cure = f"Name the class alone: {spec.removesuffix(name)}{owner}."
        raise InputError(explain(f"{place} has nothing of that name.", repr(name), cure))
    return getattr(module, name)


def _last_function(file: Path) -> str:
    """The name of the last function or class of a file, which is not run; NAME if there is none."""
    found = re.findall(r"^(?:def|class) (\w+)", file.read_text("utf-8", "replace"), re.MULTILINE)
    return found[-1] if found else "NAME"
