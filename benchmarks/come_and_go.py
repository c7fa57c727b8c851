"""Requests beside one another: pauses, samples of one prompt, the next turn of a conversation.

On the default model and the CPU pass, in one run:

- four answers are being written when a prompt of 1,500 tokens arrives: the rounds while it is read
  over a usual one (the longest, and the 99th and 95th percentiles, since one hiccup of the machine
  makes the longest), with the prompt read in parts and, for comparison, whole; in seconds, in
  CPU seconds, which other processes do not stretch, and in seconds without those in which a thread
  of ours was ready and another process or another guest of the machine had the processor (Linux);
  beside them the same figures of as many rounds in which nothing is read: what is left of those is
  the machine's own;
- eight samples of a prompt of 1,000 tokens in one call, against eight calls;
- the first token of a second turn after 1,000 tokens of conversation, against an engine that has
  not seen them.

    python benchmarks/come_and_go.py [--repeats 3]
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import forerun as fr
from forerun import rules
from forerun.engine.answer_options import AnswerOptions
from forerun.engine.engine import Engine
from forerun.engine.pacing import SLOWDOWN
from forerun.generation.intake import make_request
from forerun.gpu_rounds.choosing import executor_of
from forerun.loading.default import default_model
from machine import save
from spec_bench import read, summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=32, help="of each sample")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    target = default_model()
    text = prompt_tokens(target)
    fr.generate(target, text[:20], drafter=None, max_new_tokens=8)  # compiles
    results: dict[str, Any] = {}
    pauses: dict[str, list[dict[str, float]]] = {"in parts": [], "none": [], "whole": []}
    for _ in range(args.repeats):
        paced = pause(target, text[:1500], is_paced=True)
        pauses["in parts"].append(paced)
        pauses["none"].append(quiet(target, text, int(paced["rounds"])))
        pauses["whole"].append(pause(target, text[:1500], is_paced=False))
    for name, runs in pauses.items():
        results[f"pause, prompt {name}"] = {
            key: summary([one[key] for one in runs]) for key in runs[0]
        }
    runs = [samples(target, text[:1000], args.new_tokens) for _ in range(args.repeats)]
    results["eight samples of 1,000 tokens"] = {
        "times_faster": summary([one["apart"] / one["together"] for one in runs]),
        "same_texts": all(one["same"] for one in runs),
    }
    runs = [second_turn(target, text[:1000]) for _ in range(args.repeats)]
    results["second turn after 1,000 tokens"] = {
        "times_sooner": summary([one["fresh"] / one["reused"] for one in runs]),
        "same_texts": all(one["same"] for one in runs),
    }
    for name, figures in results.items():
        shown = ", ".join(
            f"{key} {value['median']:.3g}" if isinstance(value, dict) else f"{key} {value}"
            for key, value in figures.items()
        )
        print(f"{name:34}{shown}")
    save("come_and_go", {"load_average": [load, os.getloadavg()[0]], "results": results})


def prompt_tokens(target: Any) -> list[int]:
    """Some thousand tokens of ordinary text."""
    words = "\n\n".join(text for _, text in read(None, 20))
    tokens: list[int] = target.tokenizer.encode(words)
    return (tokens * (1 + 1600 // len(tokens)))[:1600]


def engine_of(target: Any, num_rows: int, is_paced: bool = False) -> Engine:
    return Engine(
        target,
        executor_of=executor_of,
        drafter=None,
        draft_length=0,
        rule=rules.get("match"),
        num_rows=num_rows,
        slowdown=SLOWDOWN if is_paced else None,
    )


def request_of(target: Any, prompt: list[int], count: int, seed: int = 0) -> Any:
    sampling = fr.Sampling(temperature=0.8, seed=seed)
    return make_request(target, prompt, AnswerOptions(sampling, max_new_tokens=count))


def pause(target: Any, prompt: list[int], is_paced: bool) -> dict[str, float]:
    """Rounds of four answers while the prompt is read, over what they would take without it.

    That is timed before the prompt comes and after it has gone, and grows in between as evenly as
    the answers do.
    """
    engine = four_answers(target, prompt, is_paced)
    before = usual_round(engine)
    request, rounds = request_of(target, prompt[::-1], 4), []
    engine.submit(request)
    while request.num_output == 0:
        rounds.append(timed_round(engine))
    while request.finish_reason is None:
        engine.step()
    after = usual_round(engine)
    engine.close()
    return over_usual(rounds, before, after) | {
        "longest_over_first": float(max(rounds)[0] / before[0]),
        "usual_milliseconds": 1e3 * float(before[0]),
        "usual_milliseconds_after": 1e3 * float(after[0]),
        "rounds": len(rounds),
        "seconds_to_first_token": float(np.sum(rounds, axis=0)[0]),
    }


def quiet(target: Any, prompt: list[int], count: int) -> dict[str, float]:
    """The same figures of so many rounds of four answers, with no prompt to read."""
    engine = four_answers(target, prompt, is_paced=True)
    before = usual_round(engine)
    rounds = [timed_round(engine) for _ in range(count)]
    after = usual_round(engine)
    engine.close()
    return over_usual(rounds, before, after)


def four_answers(target: Any, prompt: list[int], is_paced: bool) -> Engine:
    engine = engine_of(target, 5, is_paced)
    for seed in range(4):
        engine.submit(request_of(target, prompt[50 * seed : 50 * seed + 20], 4000, seed))
    return engine


def usual_round(engine: Engine) -> NDArray[np.float64]:
    return np.asarray(np.median([timed_round(engine) for _ in range(25)][5:], axis=0))  # (3,)


def over_usual(
    rounds: list[tuple[float, float, float]],
    before: NDArray[np.float64],
    after: NDArray[np.float64],
) -> dict[str, float]:
    """The longest rounds over what is usual, for each of the three ways to take the time."""
    usual = np.linspace(before, after, len(rounds))  # (rounds, 3)
    figures: dict[str, float] = {}
    for column, name in enumerate(("", "_cpu", "_undisturbed")):
        ratios = np.array(rounds)[:, column] / usual[:, column]
        high, higher = np.percentile(ratios, [95, 99])
        figures[f"longest_over_usual{name}"] = float(ratios.max())
        figures[f"p99_over_usual{name}"] = float(higher)
        figures[f"p95_over_usual{name}"] = float(high)
    return figures


def timed_round(engine: Engine) -> tuple[float, float, float]:
    """Seconds of a round, CPU seconds of all threads, and seconds less those taken by others."""
    waited = seconds_waited()
    begin, cpu_begin = time.perf_counter(), time.process_time()
    engine.step()
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu_begin
    taken = max((later - waited.get(name, 0.0) for name, later in seconds_waited().items()))
    return seconds, cpu, seconds - taken


def seconds_waited() -> dict[str, float]:
    """How long each thread has been ready to run without running, and the machine's processors
    were given to other guests, since they began; nothing where there is no Linux."""
    waited = {"": 0.0}
    for path in Path("/proc/self/task").glob("*/schedstat"):
        waited[path.parent.name] = int(path.read_text().split()[1]) / 1e9
    if (stat := Path("/proc/stat")).exists():
        ticks = int(stat.read_text().split(maxsplit=9)[8])
        waited["other guests"] = ticks / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1)
    return waited


def samples(target: Any, prompt: list[int], count: int) -> dict[str, Any]:
    """Seconds of eight samples in one call and in eight."""
    how: dict[str, Any] = {"max_new_tokens": count, "ignore_eos": True}
    begin = time.perf_counter()
    together = fr.generate(
        target,
        prompt,
        drafter=None,
        sampling=fr.Sampling(temperature=0.8, seed=1, n=8),
        batch_size=8,
        **how,
    )
    middle = time.perf_counter()
    apart = [
        fr.generate(
            target,
            prompt,
            drafter=None,
            sampling=fr.Sampling(temperature=0.8, seed=out.seed),
            **how,
        )
        for out in together
    ]
    end = time.perf_counter()
    same = [out.tokens for out in together] == [out.tokens for out in apart]
    return {"together": middle - begin, "apart": end - middle, "same": same}


def second_turn(target: Any, history: list[int]) -> dict[str, Any]:
    """Seconds to the first token of a second turn, where the first one is known and where not."""
    engine = engine_of(target, 2)
    first = request_of(target, history, 16)
    engine.submit(first)
    while engine.busy:
        engine.step()
    prompt = [*first.tokens, *np.random.default_rng(0).permutation(history)[:12].tolist()]
    taken, texts = [], []
    for one in (engine, engine_of(target, 2)):
        request = request_of(target, prompt, 16, seed=3)
        begin = time.perf_counter()
        one.submit(request)
        while request.num_output == 0:
            one.step()
        taken.append(time.perf_counter() - begin)
        while one.busy:
            one.step()
        texts.append(request.output)
        one.close()
    return {"reused": taken[0], "fresh": taken[1], "same": texts[0] == texts[1]}


if __name__ == "__main__":
    main()
