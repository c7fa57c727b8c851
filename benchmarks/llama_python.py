"""llama.cpp as a contender by its Python package, for those who have no program of it.

The package lives in an environment of its own, whose interpreter runs this file: it reads requests,
lines of JSON, and answers with the milliseconds that a prompt and later tokens took.  These follow
no answer: the same token again and again, which takes as long.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

CONTEXT = 4096
STEPS = 8  # passes of one token, of which the mean is taken


class Completion(NamedTuple):
    """The times of a request."""

    prompt_ms: float
    next_ms: float  # all later tokens


class LlamaPython:
    """A running worker; the verbs are those of `LlamaServer`."""

    def __init__(self, worker: subprocess.Popen[str]) -> None:
        self._worker = worker
        self.build: str = self._ask()["build"]

    def complete(self, prompt: Sequence[int], num_tokens: int, **_: Any) -> Completion:
        request = {"prompt": list(prompt), "count": num_tokens - 1}
        assert self._worker.stdin is not None
        self._worker.stdin.write(json.dumps(request) + "\n")
        self._worker.stdin.flush()
        return Completion(**self._ask())

    def token_ms(self, prompt: Sequence[int], slot: int) -> float:
        """A pass of one token right after a prompt."""
        return self.complete(prompt, STEPS + 1).next_ms / STEPS

    def _ask(self) -> Any:
        assert self._worker.stdout is not None
        return json.loads(self._worker.stdout.readline())


@contextmanager
def start_llama(python: str, gguf: Path, num_threads: int) -> Iterator[LlamaPython]:
    """The worker until the block ends."""
    command = ["env", "-u", "OMP_WAIT_POLICY", "-u", "OMP_NUM_THREADS"]
    command += [python, __file__, str(gguf), str(num_threads)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as worker:
        yield LlamaPython(worker)
        worker.terminate()


def work(gguf: str, num_threads: int) -> None:
    """Answer requests until there are no more."""
    import llama_cpp  # type: ignore[import-not-found, unused-ignore]

    threads = {"n_threads": num_threads, "n_threads_batch": num_threads}
    model = llama_cpp.Llama(gguf, n_ctx=CONTEXT, verbose=False, **threads)
    features = llama_cpp.llama_print_system_info().decode()
    print(json.dumps({"build": f"{llama_cpp.__version__} ({features})"}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        prompt: list[int] = request["prompt"]
        began = time.perf_counter()
        model.reset()
        model.eval(prompt)
        read = time.perf_counter()
        for _ in range(request["count"]):
            model.eval(prompt[-1:])
        done = time.perf_counter()
        times = Completion((read - began) * 1e3, (done - read) * 1e3)
        print(json.dumps(times._asdict()), flush=True)


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]))
