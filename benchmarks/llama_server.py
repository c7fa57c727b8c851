"""llama.cpp as a contender: its server in a process of its own, on the GGUF file that we read too.

The server says how long it read a prompt and how long it generated, so HTTP is not counted.  Both
sides read the same few-bit weights.  llama.cpp rounds the other factor of a product to 8 bits, our
pass keeps float32's precision, so texts may differ.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from serve import running
from turns import Answer, Contender

ABOUT = (
    "llama.cpp reads the same file; it rounds activations to 8 bits where ours keep float32's "
    "precision, and is timed by its own clock, without HTTP"
)
LEFT_OUT = "llama.cpp is left out: --llama-server names its program"
NUM_SLOTS = 5  # texts that the server keeps, each with room for CONTEXT tokens
CONTEXT = 4096
STEPS = 8  # passes of one token, of which the mean is taken


class Completion(NamedTuple):
    """An answer and the server's own times."""

    tokens: list[int]
    num_read: int  # tokens of the prompt; the others were kept from an earlier request
    prompt_ms: float  # until the first token of the answer
    next_ms: float  # all later tokens


class LlamaServer:
    """A running server that answers greedily."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self.build: str = self._ask("/props")["build_info"]

    def complete(
        self, prompt: Sequence[int], num_tokens: int, *, slot: int = 0, keeps_prompt: bool = False,
        ignore_eos: bool = False,
    ) -> Completion:  # fmt: skip
        """keeps_prompt: read only what the slot does not store yet."""
        greedy = {"temperature": 0.0, "samplers": ["top_k"], "top_k": 1, "return_tokens": True}
        said = {"prompt": list(prompt), "n_predict": num_tokens, "id_slot": slot, **greedy}
        answer = self._ask(
            "/completion", {**said, "cache_prompt": keeps_prompt, "ignore_eos": ignore_eos}
        )
        times = answer["timings"]
        return Completion(
            answer["tokens"], times["prompt_n"], times["prompt_ms"], times["predicted_ms"]
        )

    def token_ms(self, prompt: Sequence[int], slot: int) -> float:
        """A pass of one token right after a prompt, which is read when it is first asked for."""
        answer = self.complete(prompt, STEPS + 1, slot=slot, keeps_prompt=True, ignore_eos=True)
        return answer.next_ms / STEPS

    def contender(self, num_tokens: int) -> Contender:
        """Decoding until the answer ends or has so many tokens."""

        def run(prompt: list[int]) -> Answer:
            began = time.perf_counter()
            answer = self.complete(prompt, num_tokens)
            later = answer.next_ms / 1e3
            return Answer(answer.tokens, len(answer.tokens), 1, time.perf_counter() - began - later)

        return run

    def _ask(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._url + path, data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)


@contextmanager
def start_llama(program: str, gguf: Path, num_threads: int) -> Iterator[LlamaServer]:
    """The server until the block ends.  Its threads may wait as they like, whatever ours do."""
    words = f"-t {num_threads} -tb {num_threads} -np {NUM_SLOTS} -c {NUM_SLOTS * CONTEXT}"
    options = ["-m", str(gguf), *f"--port {{port}} --cache-ram 0 --no-webui {words}".split()]
    unset = ["env", "-u", "OMP_WAIT_POLICY", "-u", "OMP_NUM_THREADS"]
    with running([*unset, program, *options]) as port:
        yield LlamaServer(port)
