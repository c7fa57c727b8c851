"""Runs a sweep on the machines of a Ray cluster, one setting at a time on each.

All settings for one batch of prompts run on the same machine, in the order of the grid, so that
compared numbers come from one machine. The machines must be equal nevertheless, because the results
are means over all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from forerun.base.errors import ForerunError, InputError, explain
from forerun.drafters.base import Drafter
from forerun.loading.load import wrap
from forerun.measure.grid import Job
from forerun.measure.job_runner import JobRunner
from forerun.measure.machine import Machine, this_machine
from forerun.measure.records import Run
from forerun.scale.ray_cluster import reason_of, start_ray

UNEQUAL = frozenset({"load", "command"})
"""Fields of the machines of one sweep that may differ."""

Load = Callable[[], tuple[Any, Mapping[str, Drafter]]]


class SweepOnRay:
    """Runs the jobs of a sweep on a cluster; see `Spread` in `measure/sweep.py`.

    load: loads the target and the drafters, on each machine.
    """

    def __init__(self, load: Load, *, max_new_tokens: int, read_prompts_once: bool) -> None:
        self._settings = (load, max_new_tokens, read_prompts_once)

    def __call__(self, jobs: Sequence[Job], machine: Machine) -> Iterator[Run]:
        if not jobs:
            return
        ray = start_ray()
        actors = [_actor_on(ray, node, self._settings) for node in ray.nodes() if node["Alive"]]
        try:
            check_equal([machine, *ray.get([actor.machine.remote() for actor in actors])])
            yield from _runs(ray, actors, jobs)
        except ray.exceptions.RayError as error:
            cure = "Look above for the reason; started again, the sweep goes on where it was."
            raise ForerunError(explain("A machine failed.", reason_of(error), cure)) from error
        finally:
            for actor in actors:
                ray.kill(actor)


def check_equal(machines: Sequence[Machine]) -> None:
    """Raise if the machines differ in a way that affects measurements."""
    first, *others = [asdict(machine) for machine in machines]
    for other in others:
        for name in first.keys() - UNEQUAL:
            if first[name] != other[name]:
                wrong = "The machines differ, so their figures cannot be compared."
                received = f"{name} {first[name]!r} and {other[name]!r}"
                cure = "Sweep from a machine of a cluster of equal ones, or without --ray."
                raise InputError(explain(wrong, received, cure))


def groups_of(jobs: Sequence[Job]) -> list[deque[Job]]:
    """Divide jobs into groups that are compared with each other: those with the same batch of
    prompts."""
    key = lambda job: (job.repeat, job.questions)  # noqa: E731
    return [deque(group) for _, group in groupby(jobs, key)]


def _runs(ray: Any, actors: Sequence[Any], jobs: Sequence[Job]) -> Iterator[Run]:
    """Yield the runs as they finish. A machine that has finished a group takes the next one."""
    groups = deque(groups_of(jobs))
    running: dict[Any, tuple[Any, deque[Job]]] = {}

    def go_on(actor: Any, group: deque[Job]) -> None:
        group = group or (groups.popleft() if groups else group)
        if group:
            running[actor.run.remote(group.popleft())] = actor, group

    for actor in actors:
        go_on(actor, deque())
    while running:
        (done,), _ = ray.wait(list(running))
        actor, group = running.pop(done)
        run: Run = ray.get(done)
        go_on(actor, group)
        yield run


def _actor_on(ray: Any, node: Mapping[str, Any], settings: tuple[Load, int, bool]) -> Any:
    """An actor that occupies a whole machine, so that no other Ray work runs beside it."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    resources = node["Resources"]
    options = {
        "num_cpus": resources.get("CPU", 0),
        "num_gpus": resources.get("GPU", 0),
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
    }
    return ray.remote(_MachineRunner).options(**options).remote(*settings)


class _MachineRunner:
    """Runs the jobs of one machine."""

    def __init__(self, load: Load, max_new_tokens: int, read_prompts_once: bool) -> None:
        target, drafters = load()
        self._runner = JobRunner(
            wrap(target), drafters, max_new_tokens, read_prompts_once=read_prompts_once
        )

    def machine(self) -> Machine:
        return this_machine(self._runner.target)

    def run(self, job: Job) -> Run:
        return self._runner.run(job)
