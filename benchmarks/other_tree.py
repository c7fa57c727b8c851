"""Another version of this library as a contender: its source tree, in a process of its own.

    mkdir old; git archive COMMIT src | tar x -C old; python benchmarks/laptop.py --old old/src

The process gets prompts and gives answers, a line of JSON each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import forerun as fr
from forerun.loading.default import default_model
from turns import Answer, Contender, ours


@contextmanager
def other_tree(source: str, num_tokens: int, heat: float) -> Iterator[dict[str, Contender]]:
    """Plain decoding and the default of the version whose `src` this is, greedy and sampled at a
    temperature, until the block ends."""
    folder = str(Path(source).resolve())
    paths = [folder, str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    process = subprocess.Popen(
        [sys.executable, "-c", f"import other_tree; other_tree.answer({num_tokens}, {heat})"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )
    asked, answered = process.stdin, process.stdout
    assert asked is not None
    assert answered is not None

    def contender(name: str) -> Contender:
        def run(prompt: list[int]) -> Answer:
            print(json.dumps([name, prompt]), file=asked, flush=True)
            return Answer(*json.loads(answered.readline()))

        return run

    try:
        imported = answered.readline().strip()
        if not imported.startswith(folder):
            raise RuntimeError(f"{source} holds no forerun that runs: got {imported or 'nothing'}.")
        names = [name + warmth for name in ("plain", "default") for warmth in ("", f", T {heat}")]
        yield {f"old {name}": contender(name) for name in names}
    finally:
        asked.close()
        process.wait()


def answer(num_tokens: int, heat: float) -> None:
    """The other process: where the package lies, then an answer to each line."""
    answers, sys.stdout = sys.stdout, sys.stderr  # nothing else gets between the lines
    print(fr.__file__, file=answers, flush=True)
    target = default_model()
    both = fr.drafters.Mixed(fr.drafters.Heads(), fr.drafters.Suffix())
    warm = fr.Sampling(temperature=heat, seed=1)
    contenders = {
        "plain": ours(target, num_tokens),
        "default": ours(target, num_tokens, drafter=both),
        f"plain, T {heat}": ours(target, num_tokens, sampling=warm),
        f"default, T {heat}": ours(target, num_tokens, sampling=warm, drafter=both),
    }
    for line in sys.stdin:
        name, prompt = json.loads(line)
        print(json.dumps(contenders[name](prompt)), file=answers, flush=True)
