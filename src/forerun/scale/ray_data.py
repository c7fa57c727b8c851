"""Ray Data: a model as a step of your own pipeline, and batch jobs on a cluster.

    from forerun.scale import ray_data
    answered = ray_data.map_batches(ray.data.read_json("questions.json"), workers=4, max_tokens=64)

Texts are the same with any number of workers: a row's seed is derived from its `custom_id`, or else
from its prompt.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from typing import Any

from forerun.base.errors import ForerunError, InputError, explain
from forerun.batch.answerer import AnswerCounts, Answered, Answerer, WorkerSettings
from forerun.batch.lines import BatchRequest, first_text, seed_of, why_failed
from forerun.scale.ray_cluster import reason_of, share_of_cluster, start_ray

REQUESTS_PER_ROW = 4
"""The number of requests that an actor gets at once, as a multiple of its rows. The last ones run
alone."""


def map_batches(
    dataset: Any,
    model: str | None = None,
    *,
    workers: int = 1,
    seed: int = 0,
    drafter: str = "ngram",
    settings: WorkerSettings | None = None,
    **options: Any,
) -> Any:
    """The dataset with two more columns: `text`, and `error` for rows that could not be answered.

    dataset: rows with a `prompt` or with `messages`, and perhaps a `custom_id`; other columns are
    kept.
    model: hub name or folder; None for the default model.
    workers: the number of actors, each of which loads the model.
    settings: further settings of the actors.
    options: request options under OpenAI's names: max_tokens, temperature, stop, ...
    """
    settings = replace(settings or WorkerSettings(), model=model, drafter=drafter)
    return dataset.map_batches(
        _Rows,
        fn_constructor_args=(settings, seed, options),
        batch_size=REQUESTS_PER_ROW * settings.max_batch,
        **_actors(workers, settings),
    )


def answers_on_ray(
    settings: WorkerSettings,
    on_ready: Callable[[str], None],
    requests: Iterator[BatchRequest],
    *,
    num_workers: int,
) -> Iterator[Answered]:
    """Answer the requests of a batch job with actors; yields the answers as they are finished."""
    ray = start_ray()
    import pyarrow

    actors = _actors(num_workers, settings)
    size = REQUESTS_PER_ROW * settings.max_batch
    refs = []
    while block := [json.dumps(asdict(request)) for request in islice(requests, size)]:
        refs.append(ray.put(pyarrow.table({"request": block})))
    dataset = ray.data.from_arrow_refs(refs).map_batches(
        _Lines, fn_constructor_args=(settings,), batch_size=size, **actors
    )
    known: set[str] = set()
    try:
        for batch in dataset.iter_batches(batch_size=None, prefetch_batches=0):
            for fingerprint in sorted(set(batch["fingerprint"]) - known):
                on_ready(str(fingerprint))
                known.add(fingerprint)
            for text in batch["answer"]:
                answer = json.loads(text)
                yield Answered(answer["index"], answer["line"], AnswerCounts(**answer["counts"]))
    except ray.exceptions.RayError as error:
        cure = "Look above for the reason; started again, the job goes on where it was."
        wrong = "Ray could not run the workers."
        raise ForerunError(explain(wrong, reason_of(error), cure)) from error


class _Actor:
    """A loaded model that answers several requests together."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._loop = asyncio.new_event_loop()
        self._answerer = Answerer.load(settings)
        self._loop.run_until_complete(self._answerer.warm_up())
        self.fingerprint = self._answerer.fingerprint

    def answer_all(self, requests: Sequence[BatchRequest]) -> list[Answered]:
        async def gathered() -> list[Answered]:
            return await asyncio.gather(*map(self._answerer.answer, requests))

        return self._loop.run_until_complete(gathered())


class _Lines(_Actor):
    """Answers requests of a batch job; both requests and answers are JSON texts."""

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, list[str]]:
        requests = [BatchRequest(**json.loads(text)) for text in batch["request"]]
        answers = [json.dumps(asdict(answer)) for answer in self.answer_all(requests)]
        return {"answer": answers, "fingerprint": [self.fingerprint] * len(answers)}


class _Rows(_Actor):
    """Answers rows of a user's dataset, and returns them with the columns `text` and `error`."""

    def __init__(self, settings: WorkerSettings, seed: int, options: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self._seed, self._options = seed, options

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        requests = requests_of(batch, self._seed, self._options)
        lines = [answer.line for answer in self.answer_all(requests)]
        texts = [first_text(line["response"]["body"]) for line in lines]
        return {**batch, "text": texts, "error": [why_failed(line) for line in lines]}


def requests_of(
    batch: Mapping[str, Any], seed: int, options: Mapping[str, Any]
) -> list[BatchRequest]:
    """The rows of a batch as requests. A row's seed depends only on that row."""
    column = next((name for name in ("messages", "prompt") if name in batch), None)
    if column is None:
        cure = "Rename the column that holds them: dataset.rename_columns({...})."
        wrong = "The rows have neither a prompt nor messages."
        raise InputError(explain(wrong, f"columns {sorted(batch)}", cure))
    requests = []
    for index, value in enumerate(batch[column]):
        given = _plain(value)
        key = batch["custom_id"][index] if "custom_id" in batch else json.dumps(given)
        body = {"seed": seed_of(seed, str(key)), **options, column: given}
        requests.append(BatchRequest(index, index + 1, str(key), None, body))
    return requests


def _plain(value: Any) -> Any:
    """A value of a column as JSON data: NumPy arrays become lists, and empty fields are removed."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items() if item is not None}
    return value


def _actors(num_workers: int, settings: WorkerSettings) -> dict[str, Any]:
    """Options for Ray Data: the number of actors, and the resources of each."""
    ray = start_ray()
    share = share_of_cluster(ray, num_workers, settings.device)
    return {"compute": ray.data.ActorPoolStrategy(size=num_workers), **asdict(share)}
