"""A sweep without a model: requests drawn from acceptance rates and costs that we choose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from forerun import prompts
from forerun.measure.machine import Machine
from forerun.measure.records import (
    FILE,
    AnswerRecord,
    Cell,
    Header,
    Interval,
    Prediction,
    Record,
    Run,
    Sample,
    Token,
    to_line,
)

TARGET = "HuggingFaceTB/SmolLM2-135M-Instruct"
RATES = {"ngram": 0.35, "suffix": 0.5, "heads": 0.7}  # acceptance of the first slot
STEP = {"ngram": 0.01, "suffix": 0.01, "heads": 0.08}  # seconds per drafted token, as passes
HABITS = {"summarization": 0.15, "rag": 0.2, "translation": -0.1, "chat": -0.1}
PASS = 0.020  # seconds of a one-token pass

LETTER = (
    "Dear Captain , every Thursday , a little after four , I climb the hundred and twelve steps "
    "and wait for your ship . You cannot know how <much> that small white hand & its wave have "
    "come to mean to me .\n\nThe sea is a quiet neighbour , and the gulls are not ."
)

MACHINE = Machine(
    cpu="Made-up CPU",
    architecture="x86_64",
    cores=2,
    threads=2,
    device="cpu",
    dtype="float32",
    python="3.11.2",
    forerun="0.0",
    packages={"torch": "2.13.0", "transformers": "5.22.0"},
    load=0.1,
    command="forerun sweep --drafter ngram suffix heads --out made-up",
)


def write(folder: Path, records: Iterable[Record]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text("".join(map(to_line, records)), encoding="utf-8")
    return folder


def sweep(
    *,
    drafters: Sequence[str] = tuple(RATES),
    lengths: Sequence[int | str] = (1, 2, 3, 4, 5, 6, 7, 8, "auto"),
    batches: Sequence[int] = (1, 4),
    temperatures: Sequence[float] = (0.0, 0.8),
    per_group: int = 2,
    repeats: int = 2,
    peer: bool = True,
) -> list[Record]:
    """Header, predictions, runs of every cell with plain decoding among them, and a sample."""
    chosen = prompts.pick(prompts.own(), per_group)
    ids = [prompt.id for prompt in chosen]
    found: list[Record] = [Header(TARGET, 64, 0, ids, "0" * 16, MACHINE)]
    for batch in batches:
        for temperature in temperatures:
            plain = Cell(TARGET, None, 0, None, batch, temperature, "match")
            cells = [plain] + [
                replace(plain, drafter=drafter, draft_length=length)  # type: ignore[arg-type]
                for drafter in drafters
                for length in lengths
            ]
            if peer:
                theirs = replace(plain, peer="transformers")
                cells += [theirs, replace(theirs, drafter="ngram", draft_length=5)]
            for cell in cells:
                found += [
                    _run(cell, repeat, part)
                    for repeat in range(repeats)
                    for part in [chosen[i : i + batch] for i in range(0, len(chosen), batch)]
                ]
                if cell.drafter and cell.draft_length != "auto" and not cell.peer:
                    found.append(_prediction(cell))
    if drafters:
        found.append(_sample(cells[-3 if peer else -1]))
    return found


def _run(cell: Cell, repeat: int, part: Sequence[prompts.Prompt]) -> Run:
    answers = [_answer(cell, repeat, prompt) for prompt in part]
    return Run(cell, repeat, max(each.seconds for each in answers) + 0.01, answers)


def _answer(cell: Cell, repeat: int, prompt: prompts.Prompt) -> AnswerRecord:
    text = Random(f"{prompt.id} {cell.drafter} {cell.draft_length} {cell.temperature}")
    noise = Random(f"{prompt.id} {cell} {repeat}")
    rate = _rate(cell, prompt.group)
    drafted, accepted, new_tokens = [], [], 0
    while new_tokens < 64:
        length = _length(cell, accepted)
        kept = 0
        while kept < length and text.random() < rate * 0.96**kept:
            kept += 1
        drafted.append(length)
        accepted.append(kept)
        new_tokens += kept + 1
    slots = max(drafted)
    reached = [
        sum(d > k <= a for d, a in zip(drafted, accepted, strict=True)) for k in range(slots)
    ]
    passes = [_pass(cell, length) * noise.lognormvariate(0, 0.05) for length in drafted]
    draft = PASS * STEP.get(cell.drafter or "", 0.0) * sum(drafted)
    score, first = 3 * PASS + sum(passes), 4 * passes[0]
    stages = {"draft": draft, "score": score, "verify": 0.04 * score, "commit": 0.01 * score}
    return AnswerRecord(
        prompt=prompt.id,
        group=prompt.group,
        prompt_tokens=len(prompt.text.split()),
        new_tokens=new_tokens,
        rounds=len(drafted),
        drafted=sum(drafted),
        accepted=sum(accepted),
        reached_by_position=reached,
        accepted_by_position=[sum(a > k for a in accepted) for k in range(slots)],
        drafted_by_round=drafted,
        accepted_by_round=accepted,
        first_tokens=accepted[0] + 1,
        first_seconds=first,
        seconds=sum(stages.values()),
        seconds_by_stage={} if cell.peer else stages,
        digest=f"{prompt.id} at {cell.temperature}",
    )


def _rate(cell: Cell, group: str) -> float:
    return RATES.get(cell.drafter or "", 0.0) + HABITS.get(group, 0.0) - 0.1 * cell.temperature


def _length(cell: Cell, accepted: Sequence[int]) -> int:
    """The cell's draft length; a made-up controller follows what was accepted lately."""
    if cell.draft_length != "auto":
        return cell.draft_length
    recent = accepted[-4:]
    return min(8, round(sum(recent) / len(recent)) + 1) if recent else 3


def _pass(cell: Cell, length: int) -> float:
    slower = 1.25 if cell.peer else 1.0
    return slower * PASS * (1 + 0.1 * length) * (1 + 0.06 * (cell.batch - 1) * (1 + length / 4))


def _prediction(cell: Cell) -> Prediction:
    length = int(cell.draft_length)
    rate = _rate(cell, "qa")
    tokens = sum(rate**slot for slot in range(length + 1))
    cost = (_pass(cell, length) + PASS * STEP[cell.drafter or ""] * length) / _pass(cell, 0)
    speedup = tokens / cost
    return Prediction(
        cell,
        Interval(tokens, 0.95 * tokens, 1.05 * tokens),
        Interval(speedup, 0.92 * speedup, 1.08 * speedup),
    )


def _sample(cell: Cell) -> Sample:
    prompt = prompts.own()[0]
    noise = Random(0)
    words = LETTER.split(" ")
    tokens = []
    for i, word in enumerate(words):
        fate = noise.choices(["accepted", "correction", "bonus"], [6, 2, 1])[0]
        space = "" if i == 0 or word in ",." else " "
        tokens.append(Token(space + word, fate, round(noise.betavariate(3, 1), 4)))
    return Sample(cell, prompt.id, prompt.text, tokens)
