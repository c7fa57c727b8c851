"""Collects answers to train on with the workers of a Ray cluster.

Each of N workers holds the target, asks every N-th prompt in order of length, and has its own seed.
A worker is called again only when its last conversations have been taken, so that they do not pile
up. If a worker dies, only what it had not returned is lost, and another one replaces it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from platform import node
from typing import Any

from forerun.base.errors import ForerunError, InputError, UnsupportedError, explain
from forerun.batch.lines import seed_of
from forerun.drafters.heads.fingerprint import Fingerprint
from forerun.scale.ray_cluster import Share, reason_of, start_ray
from forerun.train.chat import Chat
from forerun.train.collection import Collection
from forerun.train.shards import Spoken
from forerun.train.stages import Assignment, Stages

PATIENCE = 1.0  # seconds to wait for a worker before the caller may look at the clock
MOST_DEATHS = 3  # of workers in one place, in a row and without a conversation

Load = Callable[[], Any]


class NoWorkersError(ForerunError):
    """All workers of a cluster were lost."""


@dataclass(frozen=True)
class TrainingOnRay:
    """Collects conversations on Ray; see `Spread` in `train/run.py`.

    load: loads the target, in each worker.
    """

    load: Load
    num_workers: int
    share: Share
    tell: Callable[[str], None]

    def __call__(
        self, work: Assignment, collection: Collection, fingerprint: Fingerprint
    ) -> Workers:
        return Workers(start_ray(), self, work, collection, fingerprint)


class Workers:
    """A source of conversations: one worker per place, each with one call running."""

    def __init__(
        self,
        ray: Any,
        spread: TrainingOnRay,
        work: Assignment,
        collection: Collection,
        fingerprint: Fingerprint,
    ) -> None:
        if spread.num_workers > len(work.prompts):
            wrong = "There are more workers than prompts to share among them."
            received = f"{spread.num_workers} workers, {len(work.prompts)} prompts"
            raise InputError(explain(wrong, received, "Use fewer --workers, or add prompts."))
        self._ray, self._spread, self._work = ray, spread, work
        self._collection, self._fingerprint = collection, fingerprint
        self._order = sorted(range(len(work.prompts)), key=lambda i: len(work.prompts[i]))
        self._num_started = 0
        self._actors: dict[int, Any] = {}  # by place
        self._calls: dict[Any, int] = {}  # places by the calls under way
        self._deaths: Counter[int] = Counter()  # by place, since its last call that returned
        self._last_reason = "no machine with room for one"

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exception: object) -> None:
        for actor in self._actors.values():
            self._ray.kill(actor)

    def play(self) -> list[Spoken]:
        """Wait for a worker. Returns its conversations, and starts its next call."""
        self._fill()
        done, _ = self._ray.wait(list(self._calls), timeout=PATIENCE)
        if not done and not self._room():  # those that have not started yet never will
            raise self._nobody()
        return [spoken for call in done for spoken in self._take(call)]

    def _take(self, call: Any) -> list[Spoken]:
        place = self._calls.pop(call)
        errors = self._ray.exceptions
        try:
            spoken: list[Spoken] = self._ray.get(call)
        except errors.RayTaskError as error:  # it raised, as it would have here
            raise (error.cause if isinstance(error.cause, Exception) else error) from None
        except errors.RayError as error:
            self._lose(place, reason_of(error))
            return []
        self._deaths[place] = 0
        self._call(place)
        return spoken

    def _call(self, place: int) -> None:
        self._calls[self._actors[place].play.remote()] = place

    def _lose(self, place: int, reason: str) -> None:
        self._ray.kill(self._actors.pop(place))
        self._deaths[place] += 1
        self._last_reason = reason
        self._spread.tell(f"note: a worker was lost ({reason})")

    def _fill(self) -> None:
        """Start a worker at each place without one, as far as the cluster has room."""
        if len(self._actors) == self._spread.num_workers:
            return
        places = range(self._spread.num_workers)
        empty = [place for place in places if place not in self._actors]
        worth_it = [place for place in empty if self._deaths[place] < MOST_DEATHS]
        for place in worth_it[: max(0, self._room() - len(self._actors))]:
            self._actors[place] = self._started(place)
            self._call(place)
        if not self._actors:
            raise self._nobody()

    def _room(self) -> int:
        return self._spread.share.count_in(self._ray.nodes())

    def _nobody(self) -> NoWorkersError:
        cure = "Look above for the reason; started again, the command goes on where it was."
        return NoWorkersError(explain("No worker is left on Ray.", self._last_reason, cure))

    def _started(self, place: int) -> Any:
        """Start a worker with a seed that no other worker has had, in this run or an earlier
        one."""
        indices = self._order[place :: self._spread.num_workers]
        asked = self._collection.asked
        work = replace(
            self._work,
            prompts=[self._work.prompts[index] for index in indices],
            asked=[asked[index] for index in indices],
            seed=seed_of(self._work.seed, f"worker {self._num_started}") >> 1,
        )
        self._num_started += 1
        remote = self._ray.remote(_Worker).options(**asdict(self._spread.share))
        return remote.remote(self._spread.load, work, self._fingerprint)


class _Worker:
    """A process that holds the target and generates conversations."""

    def __init__(self, load: Load, work: Assignment, fingerprint: Fingerprint) -> None:
        self._load, self._work, self._fingerprint = load, work, fingerprint
        self._stages: Stages | None = None

    def play(self) -> list[Spoken]:
        """The next conversations. Loads the target in the first call, so that loading errors appear
        there."""
        if self._stages is None:
            target = self._load()
            if not self._fingerprint.fits(Fingerprint.of(target.model, target.name)):
                wrong = "A worker has another model than the one here."
                cure = "Put the same weights in the same place on every machine."
                raise UnsupportedError(explain(wrong, f"{target.name!r} on {node()}", cure))
            model = target.model.requires_grad_(False)
            self._stages = Stages(model, Chat.of(target.tokenizer), self._work)
        return self._stages.play()
