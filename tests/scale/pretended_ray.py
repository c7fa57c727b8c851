"""What workers that collect use of Ray, in this process: calls that run when they are waited for,
workers that die when a test says so, machines that go away."""

from __future__ import annotations

from typing import Any


class RayError(Exception):
    """What Ray raises when it cannot do its part."""


class RayTaskError(RayError):
    """What Ray raises when the code it ran did."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"Traceback of {cause}")
        self.cause = cause


class Actor:
    """An object with its calls; `die_at` counts them from 0."""

    def __init__(self, made: Any, arguments: tuple[Any, ...]) -> None:
        self.made, self.arguments = made, arguments
        self.die_at: int | None = None
        self.num_calls = 0
        self.is_alive = True
        self.play = self  # `actor.play.remote()`

    def remote(self) -> Call:
        return Call(self)


class Call:
    """A call under way."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor

    def run(self) -> Any:
        actor = self.actor
        number, actor.num_calls = actor.num_calls, actor.num_calls + 1
        if number == actor.die_at:
            raise RayError("The actor died.\nIts process was killed.")
        try:
            return actor.made.play()
        except Exception as error:
            raise RayTaskError(error) from error


class PretendedRay:
    """`ray` with one machine of so many cores."""

    class exceptions:
        RayError = RayError
        RayTaskError = RayTaskError

    def __init__(self, num_cores: int, num_gpus: int = 0) -> None:
        self.actors: list[Actor] = []  # all that were ever started
        self.deaths: dict[int, int] = {}  # by number of the actor: the call that it dies in
        self.num_cores, self.num_gpus = num_cores, num_gpus
        self.most_calls = 0  # that were under way at once

    def nodes(self) -> list[dict[str, Any]]:
        resources = {"CPU": float(self.num_cores), "GPU": float(self.num_gpus)}
        return [
            {"Alive": self.num_cores > 0, "Resources": resources},
            {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
        ]

    def remote(self, kind: Any) -> Any:
        ray = self

        class Remote:
            def options(self, *, num_cpus: int, num_gpus: int) -> Remote:
                return self

            def remote(self, *arguments: Any) -> Actor:
                actor = Actor(kind(*arguments), arguments)
                actor.die_at = ray.deaths.get(len(ray.actors))
                ray.actors.append(actor)
                return actor

        return Remote()

    def wait(self, calls: list[Call], timeout: float) -> tuple[list[Call], list[Call]]:
        """The call of the worker that has done least is done."""
        assert calls
        assert len({call.actor for call in calls}) == len(calls)
        self.most_calls = max(self.most_calls, len(calls))
        if self.num_cores == 0:
            return [], calls
        first = min(calls, key=lambda call: call.actor.num_calls)
        return [first], [call for call in calls if call is not first]

    def get(self, call: Call) -> Any:
        return call.run()

    def kill(self, actor: Actor) -> None:
        actor.is_alive = False
