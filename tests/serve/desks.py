"""What the tests of the desk share."""

from __future__ import annotations

from typing import Any

from serving import Babbler, run, until

import forerun as fr
from forerun.drafters import NGram, Suffix
from forerun.serve.admission.admission import Desk
from forerun.serve.admission.ask import Ask
from forerun.serve.watching.roles import Watcher

DRAFTERS: dict[str, Any] = {"ngram": NGram(), "suffix": Suffix(), "none": None}


class Restarts(Watcher):
    """Notes when an engine is replaced."""

    def __init__(self, log: list[int]) -> None:
        self.log = log

    def engine_restarted(self) -> None:
        self.log.append(1)


def plain(ask: Ask) -> list[list[int]]:
    """What `generate` answers without a server and without a drafter."""
    outs = fr.generate(
        Babbler(),
        [list(prompt) for prompt in ask.prompts],
        drafter=None,
        sampling=fr.Sampling(temperature=0.8, seed=ask.options.sampling.seed, n=ask.n),
        max_new_tokens=ask.options.max_new_tokens,
        stop=ask.options.stop,
    )
    flat = [out for group in outs for out in (group if isinstance(group, list) else [group])]
    return [out.tokens for out in flat]


def with_desk(work: Any, target: Any = None, **options: Any) -> Any:
    async def main() -> Any:
        async with Desk(target or Babbler(), DRAFTERS, **options) as desk:
            result = await work(desk)
            await until(lambda: desk.num_open == desk.num_running == 0)
            assert not desk.tickets
            return result

    return run(main())
