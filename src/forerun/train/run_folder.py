"""The folder of a run, with its target and options, so that only the same run resumes in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forerun.base.errors import InputError, UnsupportedError, explain
from forerun.drafters.heads.fingerprint import Fingerprint

RUN, DATA, HELD_OUT = "run.json", "data", "held-out.npz"


def open_run(folder: Path, target: Fingerprint, settings: dict[str, Any]) -> None:
    """Begin a run in an empty folder, or resume the same run; refuse any other folder."""
    file = folder / RUN
    if not file.exists():
        if folder.is_dir() and any(folder.iterdir()):
            wrong = "The output folder holds something that is not a training run."
            raise InputError(explain(wrong, repr(str(folder)), "Name a new or empty folder."))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _write(file, {"target": target.to_dict(), "settings": settings})
        except OSError as error:
            wrong = f"The output folder cannot be written to ({error.strerror})."
            cure = "Name one that you may write to."
            raise InputError(explain(wrong, repr(str(folder)), cure)) from error
        return
    run = _read(file)
    theirs = Fingerprint.from_dict(run["target"])
    try:
        theirs.check(target)
    except UnsupportedError as error:
        wrong = f"The output folder holds a run for {theirs.name}, not for {target.name}."
        raise InputError(explain(wrong, repr(str(folder)), "Name another folder.")) from error
    known = run["settings"]
    changed = [name for name in settings if known.get(name, settings[name]) != settings[name]]
    if changed:
        wrong = "The output folder holds a run that was started with other options."
        received = ", ".join(f"{name} {settings[name]!r}, was {known[name]!r}" for name in changed)
        cure = "Use the same options to go on with it, or name another folder."
        raise InputError(explain(wrong, received, cure))
    _write(file, {**run, "settings": {**known, **settings}})


def check_data(folder: Path, target: Fingerprint) -> None:
    """Refuse to train on another target's answers."""
    if not (folder / RUN).exists():
        wrong = "There are no collected answers there."
        cure = "Name a folder that `forerun train --data-only --out` wrote."
        raise InputError(explain(wrong, repr(str(folder)), cure))
    theirs = Fingerprint.from_dict(_read(folder / RUN)["target"])
    try:
        theirs.check(target)
    except UnsupportedError as error:
        wrong = f"The answers were collected from {theirs.name}, not from {target.name}."
        cure = "Collect answers of your own target."
        raise InputError(explain(wrong, repr(str(folder)), cure)) from error


def _read(file: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return {"target": content["target"], "settings": content["settings"]}
    except (OSError, ValueError, LookupError) as error:
        wrong = f"The description of a run cannot be read ({error})."
        raise InputError(explain(wrong, repr(str(file)), "Name another folder.")) from error


def _write(file: Path, content: dict[str, Any]) -> None:
    unfinished = file.with_suffix(".part")
    unfinished.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    unfinished.replace(file)
