"""A worker process of a batch job: `python -m forerun.batch.batch_worker`.

It reads lines of JSON from standard input: the settings first, then requests. It writes lines of
JSON to standard output: `{"ready": fingerprint}` or `{"refused": reason}`, then answers as they are
finished. To `{"stop": true}` it replies `{"begun": ...}`, with the tokens of unfinished answers.
When its input ends, it exits at once, even while loading its model, because its parent then needs
nothing more.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from queue import SimpleQueue
from typing import Any, TextIO

from forerun.base.errors import ForerunError
from forerun.batch.answerer import Answerer, WorkerSettings
from forerun.batch.lines import BatchRequest

Tell = Callable[[dict[str, Any]], None]


def main() -> None:
    """Load the model that the first message names, then answer requests until standard input ends.
    If the model is refused, exit with status 2."""
    tell = _teller(_answer_output())
    messages: SimpleQueue[dict[str, Any]] = SimpleQueue()
    threading.Thread(target=_listen, args=(messages,), daemon=True).start()
    first = messages.get()
    settings = _placed(WorkerSettings(**first["settings"]), first["place"])
    try:
        answerer = Answerer.load(settings)
        asyncio.run(_work(answerer, messages, tell))
    except ForerunError as error:
        tell({"refused": str(error)})
        os._exit(2)  # the thread that listens cannot be ended otherwise


def _listen(messages: SimpleQueue[dict[str, Any]]) -> None:
    """Queue the messages from standard input; end the process when the input ends."""
    for line in sys.stdin:
        messages.put(json.loads(line))
    os._exit(0)


async def _work(answerer: Answerer, messages: SimpleQueue[dict[str, Any]], tell: Tell) -> None:
    """Warm up, report the fingerprint, and answer requests as they come, each in a task of its
    own."""
    await answerer.warm_up()
    tell({"ready": answerer.fingerprint})
    tasks: set[asyncio.Task[None]] = set()

    async def answer(request: BatchRequest) -> None:
        tell({"answer": asdict(await answerer.answer(request))})

    while True:  # until its input ends
        message = await asyncio.to_thread(messages.get)
        if "stop" in message:
            tell({"begun": answerer.begun()})
            continue
        task = asyncio.create_task(answer(BatchRequest(**message)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


def _answer_output() -> TextIO:
    """Standard output, reserved for answers; whatever else is printed goes to standard error."""
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return output


def _teller(output: TextIO) -> Tell:
    def tell(message: dict[str, Any]) -> None:
        try:
            output.write(json.dumps(message) + "\n")
            output.flush()
        except BrokenPipeError:  # whoever started it died a moment ago
            os._exit(0)

    return tell


def _placed(settings: WorkerSettings, place: int) -> WorkerSettings:
    """The settings of the worker with this number; on a machine with several GPUs, workers are
    spread over them."""
    if settings.device not in (None, "cuda"):
        return settings
    from torch import cuda

    count = cuda.device_count() if cuda.is_available() else 0
    return replace(settings, device=f"cuda:{place % count}") if count > 1 else settings


if __name__ == "__main__":
    main()
