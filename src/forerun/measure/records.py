"""The records of a sweep: one JSON object per line, appended and never rewritten.

A *cell* is one setting; a *run* is one call in it: up to `batch` prompts answered together, once.
Records hold counts and seconds as observed.  `figures` computes every figure from them, under the
name that docs/measuring.md gives it.

The type of every field is checked when a record is read: a file that was cut, edited or written by
another version must fail then, and not in a strange plot an hour later.  Only a field with a
default may be missing: it was added after the file was written.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from forerun.base.errors import InputError, explain
from forerun.measure.machine import Machine
from forerun.rules.types import DraftLength


def build(kind: Any, value: Any, where: str = "it") -> Any:
    """Build the object of type `kind` from JSON `value`: a dataclass, a list, dict or union of
    such, or a plain value. Raises ValueError that says where they differ."""
    origin, parts = get_origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(kind, type):
        return _build_dataclass(kind, value, where)
    if origin in (Union, UnionType):
        return _build_union(parts, value, where)
    if origin is Literal:
        return _checked(value in parts, value, f"one of {list(parts)}", where)
    if origin is list:
        _checked(isinstance(value, list), value, "a list", where)
        return [build(parts[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
    if origin is dict:
        _checked(isinstance(value, dict), value, "an object", where)
        return {key: build(parts[1], item, f"{where}.{key}") for key, item in value.items()}
    if kind is float:
        fine = isinstance(value, int | float) and not isinstance(value, bool)
        return float(_checked(fine and math.isfinite(value), value, "a number", where))
    fine = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
    return _checked(fine, value, kind.__name__, where)


def _build_dataclass(kind: Any, value: Any, where: str) -> Any:
    """The object of a dataclass from JSON; raises `ValueError` for missing and unknown fields."""
    _checked(isinstance(value, dict), value, "an object", where)
    hints = _hints(kind)
    known = set(hints)
    needed = {field.name for field in fields(kind) if not _has_default(field)}
    if missing := sorted(needed - set(value)):
        raise ValueError(f"{where} lacks {', '.join(missing)}")
    if unknown := sorted(set(value) - known):
        raise ValueError(f"{where} has unknown fields: {', '.join(unknown)}")
    return kind(**{name: build(hints[name], value[name], f"{where}.{name}") for name in value})


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """The types of the fields, which are cached because looking them up takes longer than reading
    the rest of a line."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _has_default(field: Field[Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _build_union(parts: tuple[Any, ...], value: Any, where: str) -> Any:
    """The value as the first type of a union that it fits; raises `ValueError` if it fits none."""
    if value is None and NoneType in parts:
        return None
    others = [part for part in parts if part is not NoneType]
    if len(others) == 1:
        return build(others[0], value, where)
    for part in others:
        try:
            return build(part, value, where)
        except ValueError:
            continue
    raise ValueError(f"{where} is {value!r}, which fits none of its types")


def _checked(fine: bool, value: Any, expected: str, where: str) -> Any:
    """The value, or a `ValueError` that says where it stands and what was expected there."""
    if not fine:
        raise ValueError(f"{where} is {str(value)[:40]!r} and not {expected}")
    return value


FILE = "sweep.jsonl"
"""Name of the file in a sweep's folder."""

PACKED = FILE + ".gz"
"""Its name when it is kept compressed: it can be read, but not appended to."""


@dataclass(frozen=True)
class Cell:
    """One setting of a sweep.

    Plain decoding is drafter None with draft length 0.  Cells of a peer use the same fields:
    drafter "ngram" is its prompt lookup, and the name of a model is its assisted mode.
    """

    target: str
    drafter: str | None
    draft_length: DraftLength
    tree: int | None  # nodes in a round's tree; None: a chain
    batch: int
    temperature: float
    rule: str
    peer: str | None = None  # the library that ran it, if not Forerun: "transformers"


@dataclass(frozen=True)
class AnswerRecord:
    """The answer to one prompt of a run: counts, and the seconds of its rounds."""

    prompt: str  # its id in the prompt set
    group: str  # its task group
    prompt_tokens: int
    new_tokens: int
    rounds: int
    drafted: int
    accepted: int
    reached_by_position: list[int]  # rounds in which each draft slot was reached
    accepted_by_position: list[int]  # rounds in which each draft slot was accepted
    drafted_by_round: list[int]  # draft length of each round
    accepted_by_round: list[int]  # accepted length of each round, without the extra token
    first_tokens: int  # tokens of the first round, the one that reads the prompt
    first_seconds: float  # seconds of that round
    seconds: float  # of all rounds
    seconds_by_stage: dict[str, float]  # draft, score, verify, commit; empty for a peer
    digest: str  # of the tokens: answers with equal digests have equal texts


@dataclass(frozen=True)
class Run:
    """One call: up to `batch` prompts in one cell; `seconds` is the wall clock of the call."""

    cell: Cell
    repeat: int
    seconds: float
    answers: list[AnswerRecord]
    notes: list[str] = field(default_factory=list)  # from the engine, such as a failed drafter
    read_prompts: bool = True  # False: a prompt came from memory, so the first round is short


@dataclass(frozen=True)
class Interval:
    """A mean or median, and the ends of its 95% interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Prediction:
    """The probe's forecast of a cell before it is run."""

    cell: Cell
    tokens_per_round: Interval
    speedup: Interval


@dataclass(frozen=True)
class Token:
    """A generated token: its text, its fate, and its probability under the target's law."""

    text: str
    fate: str  # "accepted", "correction" or "bonus"
    probability: float


@dataclass(frozen=True)
class Sample:
    """One generation token by token, from an extra call that is not timed."""

    cell: Cell
    prompt: str  # its id
    prompt_text: str
    tokens: list[Token]


@dataclass(frozen=True)
class Header:
    """Settings shared by all records that follow, and the machine they were made on."""

    target: str
    max_new_tokens: int
    seed: int
    prompts: list[str]  # their ids
    prompts_digest: str  # of their texts
    machine: Machine


KINDS: dict[str, type[Any]] = {
    "header": Header,
    "run": Run,
    "prediction": Prediction,
    "sample": Sample,
}
Record = Header | Run | Prediction | Sample


@dataclass
class Records:
    """All of a sweep's lines by kind, in the order they were written."""

    headers: list[Header] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    predictions: list[Prediction] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    skipped: dict[int, str] = field(default_factory=dict)  # line number -> what is wrong with it

    def add(self, record: Record) -> None:
        """Add a record of any kind."""
        for kind, made in KINDS.items():
            if isinstance(record, made):
                getattr(self, f"{kind}s").append(record)


def to_line(record: Record) -> str:
    """A record as a line of JSON, newline included."""
    kind = next(name for name, made in KINDS.items() if isinstance(record, made))
    return json.dumps({"kind": kind, **asdict(record)}, allow_nan=False) + "\n"


def from_line(line: str) -> Record:
    """The record of a line; ValueError says what is wrong with it."""
    row = json.loads(line)
    if not isinstance(row, dict) or row.get("kind") not in KINDS:
        raise ValueError(f"it is none of {', '.join(KINDS)}")
    record: Record = build(KINDS[row.pop("kind")], row)
    return record


def read_records(folder: str | Path, *, skip_corrupt: bool = False) -> Records:
    """All records of a sweep's folder; a corrupt line is an error unless it may be skipped.

    The file may be compressed with gzip, as `sweep.jsonl.gz`.
    A last line without a newline is not an error: the sweep was killed while writing it, and does
    that run again when it resumes.
    """
    path = Path(folder) / FILE
    is_packed = not path.exists() and (Path(folder) / PACKED).exists()
    path = Path(folder) / PACKED if is_packed else path
    try:
        data = gzip.decompress(path.read_bytes()) if is_packed else path.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        wrong = f"The compressed sweep is corrupt ({error})."
        raise InputError(explain(wrong, repr(str(path)), "Restore it, or sweep again.")) from error
    except FileNotFoundError as error:
        cure = "Name the folder that a sweep was told to write: forerun sweep ... --out DIR."
        wrong = "There is no sweep in that folder."
        raise InputError(explain(wrong, repr(str(folder)), cure)) from error
    except OSError as error:
        wrong = f"The sweep cannot be read ({error.strerror})."
        cure = "Check the folder, or sweep into another one."
        raise InputError(explain(wrong, repr(str(path)), cure)) from error
    return parse(data, str(path), skip_corrupt=skip_corrupt)


def parse(data: bytes, name: str, *, skip_corrupt: bool = False) -> Records:
    """Records of the complete lines of a file; errors call the file `name`."""
    lines = data.decode("utf-8", errors="replace").split("\n")[:-1]
    records = Records()
    for number, line in enumerate(lines, start=1):
        try:
            records.add(from_line(line))
        except ValueError as error:
            if not skip_corrupt:
                wrong = f"Line {number} of {name} is corrupt ({error})."
                cure = "Mend or delete it, or pass --skip-corrupt to go on without it."
                raise InputError(explain(wrong, repr(line[:60]), cure)) from error
            records.skipped[number] = str(error)
    return records
