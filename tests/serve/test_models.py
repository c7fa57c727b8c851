"""Several models in one server: names, loading when asked for, and the memory that they share."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from mmap import mmap
from typing import Any

import pytest
from serving import Answered, Babbler, call, run, until
from talking import COMPLETIONS, PLAIN, Talker

from forerun.base.errors import InputError
from forerun.drafters import NGram
from forerun.serve.http import models as models_module
from forerun.serve.http.app import make_app
from forerun.serve.http.assembly import make_served, make_watching
from forerun.serve.http.models import GIB, MOST_WAITING, Model, Models, Served, memory_in_use
from forerun.serve.watching.metrics import Families

BODY = {"prompt": "the quick brown", "max_tokens": 6, "seed": 1, "temperature": 0.8}


class Site:
    """A server of several tiny models; each load is counted, and waits for a gate if it has one."""

    def __init__(self, sizes: dict[str, float], most: float | None = None) -> None:
        self.loads: list[str] = []
        self.gates: dict[str, threading.Event] = {}
        self.failures: dict[str, Exception] = {}
        self.targets: dict[str, Any] = {}
        families = Families()
        models = []
        for name, gib in sizes.items():
            watcher = make_watching(model=name, drafter="ngram", rule="match", families=families)
            names = [name, f"{name}-too"]
            load = self._loader(names, watcher)
            models.append(Model(names, load, int(gib * GIB), watcher))
        first = models[0]
        assert first.load is not None
        first.served = first.load()
        self.models = Models(models, None if most is None else int(most * GIB))
        self.app = make_app(self.models)

    def _loader(self, names: Sequence[str], watcher: Any) -> Callable[[], Served]:
        def load() -> Served:
            self.loads.append(names[0])
            if names[0] in self.gates:
                self.gates[names[0]].wait(30)
            if names[0] in self.failures:
                raise self.failures[names[0]]
            target = Talker(PLAIN)
            self.targets[names[0]] = weakref.ref(target)
            drafters = {"ngram": NGram(), "none": None}
            return make_served(target, drafters, names=names, watcher=watcher, max_batch=2)

        return load

    async def ask(self, model: Any = None, **options: Any) -> Answered:
        body = {**BODY, **options, **({} if model is None else {"model": model})}
        return await call(self.app, COMPLETIONS, body)

    async def get(self, path: str) -> Any:
        return (await call(self.app, path, method="GET")).json()

    def run(self, work: Callable[[], Any]) -> Any:
        async def main() -> Any:
            async with self.app.router.lifespan_context(self.app):
                return await work()

        return run(main())


def status_and_code(response: Answered) -> tuple[int, str]:
    return response.status, response.json()["error"]["code"]


def test_a_model_is_loaded_when_it_is_first_asked_for() -> None:
    site = Site({"a": 1, "b": 1})

    async def work() -> None:
        before = {card["id"]: card["loaded"] for card in (await site.get("/v1/models"))["data"]}
        assert before == {"a": True, "a-too": True, "b": False, "b-too": False}
        answers = [await site.ask(name) for name in (None, "a", "a-too", "b", "b-too")]
        assert {answer.status for answer in answers} == {200}
        told = [answer.json()["model"] for answer in answers]
        assert told == ["a", "a", "a", "b", "b"]
        assert site.loads == ["a", "b"]
        card = await site.get("/v1/models/b-too")
        assert (card["id"], card["root"], card["loaded"]) == ("b-too", "b", True)
        unknown = await site.ask("c")
        assert status_and_code(unknown) == (404, "model_not_found")
        assert "'a' or 'a-too' or 'b' or 'b-too'" in unknown.json()["error"]["message"]
        assert status_and_code(await site.ask(7)) == (400, "invalid_type")

    site.run(work)


def test_a_load_is_one_however_many_wait_and_holds_nobody_up() -> None:
    site = Site({"a": 1, "b": 1})
    gate = site.gates["b"] = threading.Event()

    async def work() -> None:
        waiting = [asyncio.create_task(site.ask("b", seed=seed)) for seed in range(5)]
        await until(lambda: site.loads == ["a", "b"])
        assert (await site.ask("a")).status == 200
        assert not any(task.done() for task in waiting)
        gate.set()
        assert {(await task).status for task in waiting} == {200}
        assert site.loads == ["a", "b"]

    site.run(work)


def test_the_idle_one_that_was_used_longest_ago_makes_room() -> None:
    site = Site({"a": 1, "b": 1, "c": 1}, most=2)

    async def work() -> None:
        for name in ("b", "a"):
            assert (await site.ask(name)).status == 200
        assert (await site.ask("c")).status == 200
        loaded = [card["id"] for card in (await site.get("/v1/models"))["data"] if card["loaded"]]
        assert loaded == ["a", "a-too", "c", "c-too"]
        gc.collect()
        assert site.targets["b"]() is None  # nothing keeps its weights
        same = (await site.ask("b")).json()["choices"][0]["text"]
        assert same == (await site.ask("c")).json()["choices"][0]["text"]  # the same weights
        assert site.loads == ["a", "b", "c", "b"]

    site.run(work)


def test_what_does_not_fit_says_how_much_is_missing() -> None:
    site = Site({"a": 1, "b": 1.5, "huge": 4}, most=2)

    async def work() -> None:
        never = await site.ask("huge")
        assert status_and_code(never) == (400, "model_too_large")
        assert "2.00 GiB are missing" in never.json()["error"]["message"]
        async with site.models.using("a"):
            now = await site.ask("b")
            assert status_and_code(now) == (503, "model_does_not_fit")
            assert "0.50 GiB are missing" in now.json()["error"]["message"]
            assert int(now.headers["retry-after"]) > 0
        assert (await site.ask("b")).status == 200
        assert site.loads == ["a", "b"]

    site.run(work)


def test_an_answer_keeps_its_model() -> None:
    """Also one that is streamed to a slow reader, or waits in the queue."""
    site = Site({"a": 1, "b": 1}, most=1)

    async def work() -> None:
        gate = asyncio.Event()

        async def wait(received: Answered) -> None:
            if received.chunks:
                await gate.wait()

        body = {**BODY, "stream": True, "model": "a"}
        slow = asyncio.create_task(call(site.app, COMPLETIONS, body, before_send=wait))
        await until(lambda: site.models.default.num_users == 1)
        await asyncio.sleep(0.3)  # the answer has ended; its reader has not
        assert status_and_code(await site.ask("b")) == (503, "model_does_not_fit")
        gate.set()
        assert (await slow).events[-1] == "[DONE]"
        assert (await site.ask("b")).status == 200

    site.run(work)


@pytest.mark.parametrize("error", [InputError("no such folder"), MemoryError("secret")])
def test_a_load_that_fails_is_tried_again(error: Exception) -> None:
    site = Site({"a": 1, "b": 1}, most=2)
    site.failures["b"] = error

    async def work() -> None:
        responses = await asyncio.gather(site.ask("b"), site.ask("b"))
        assert {status_and_code(one) for one in responses} == {(503, "model_not_loaded")}
        assert b"secret" not in responses[0].body
        del site.failures["b"]
        assert (await site.ask("b")).status == 200
        assert site.loads == ["a", "b", "b"]

    site.run(work)


def test_a_model_that_cannot_be_warmed_up_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its engines end, which would hold its weights."""
    site, loaded = Site({"a": 1, "b": 1}, most=2), list[Served]()

    async def fail(served: Served) -> None:
        loaded.append(served)
        await served.desk.warm_up()
        raise MemoryError

    async def work() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Served, "warm_up", fail)
            assert status_and_code(await site.ask("b")) == (503, "model_not_loaded")
        assert loaded[0].desk.is_draining
        assert len(loaded[0].desk._engines) == 0  # type: ignore[arg-type]
        assert (await site.ask("b")).status == 200

    site.run(work)


def test_a_load_that_was_given_up_keeps_its_room_until_its_thread_has_ended() -> None:
    site = Site({"a": 1, "b": 1, "c": 1}, most=2)
    gate = site.gates["b"] = threading.Event()
    site.models._loading._seconds = 0.2

    async def work() -> None:
        async with site.models.using("a"):
            assert status_and_code(await site.ask("b")) == (503, "model_not_loaded")
            assert status_and_code(await site.ask("c")) == (503, "model_does_not_fit")
            again = await site.ask("b")
            assert status_and_code(again) == (503, "model_not_loaded")
            assert "has not ended yet" in again.json()["error"]["message"]
            assert site.loads == ["a", "b"]
            gate.set()
            await until(lambda: not any(model.is_in_thread for model in site.models._models))
            site.models._loading._seconds = 30
            assert (await site.ask("c")).status == 200
        gc.collect()
        assert site.targets["b"]() is None  # what came too late is not kept
        assert (await site.ask("b")).status == 200

    site.run(work)


def test_a_model_that_does_not_end_as_it_should_leaves_its_room() -> None:
    site = Site({"a": 1, "b": 1}, most=1)

    async def work() -> None:
        ends = site.models.default.served
        assert ends is not None
        close = ends.desk.close

        async def fail() -> None:
            await close()
            raise OSError

        ends.desk.close = fail  # type: ignore[method-assign]
        for name in ("b", "a"):
            assert (await site.ask(name)).status == 200

    site.run(work)


def test_what_a_model_takes_is_corrected_by_how_memory_has_grown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site({"a": 1, "b": 1, "c": 1}, most=4)
    grown = iter([0, 2.5, 0, 9])
    monkeypatch.setattr(models_module, "memory_in_use", lambda: int(next(grown) * GIB))

    async def work() -> None:
        async with site.models.using("a"), site.models.using("b"):
            refused = await site.ask("c")
            assert status_and_code(refused) == (503, "model_does_not_fit")
            assert "0.50 GiB are missing" in refused.json()["error"]["message"]
        assert (await site.ask("c")).status == 200  # and may be loaded again, alone
        assert [model.num_bytes / GIB for model in site.models._models] == [1, 2.5, 4]

    site.run(work)


def test_memory_is_measured_where_the_system_tells() -> None:
    """Pages of its own are asked for: others may have been freed and kept by the process."""
    before, size = memory_in_use(), 2**26
    with mmap(-1, size) as held:
        held[::4096] = bytes(size // 4096)
        assert size / 2 < memory_in_use() - before < 3 * size or before == 0


def test_a_request_that_comes_while_another_model_goes_is_answered() -> None:
    """Two idle models would make room, and one of them is asked for while the first one ends."""
    site = Site({"a": 1, "b": 1, "c": 1}, most=3)
    site.models._models[2].num_bytes = 3 * GIB

    async def work() -> None:
        for name in ("b", "a"):
            assert (await site.ask(name)).status == 200
        ends = site.models._models[1].served
        assert ends is not None
        close, is_ending, gate = ends.desk.close, asyncio.Event(), asyncio.Event()

        async def close_late() -> None:
            is_ending.set()
            await gate.wait()
            await close()

        ends.desk.close = close_late  # type: ignore[method-assign]
        large = asyncio.create_task(site.ask("c"))
        await is_ending.wait()
        async with site.models.using("a") as served:
            gate.set()
            assert status_and_code(await large) == (503, "model_does_not_fit")
            assert site.models.default.served is served
            assert not served.desk.is_draining
        assert (await site.ask("c")).status == 200

    site.run(work)


def test_few_wait_for_a_load_and_none_at_the_end() -> None:
    site = Site({"a": 1, "b": 1})
    gate = site.gates["b"] = threading.Event()

    async def work() -> None:
        waiting = [asyncio.create_task(site.ask("b")) for _ in range(MOST_WAITING)]
        await until(lambda: sum(model.num_users for model in site.models._models) == MOST_WAITING)
        assert status_and_code(await site.ask("b")) == (429, "queue_full")
        await site.models.drain(1)
        codes = {status_and_code(await task) for task in waiting}
        assert codes == {(503, "model_not_loaded")}
        (loading,) = (one for one in threading.enumerate() if one.name == "forerun-loading")
        assert loading.daemon  # so an exit does not wait for it
        gate.set()
        assert status_and_code(await site.ask("a")) == (503, "shutting_down")

    site.run(work)


def test_metrics_and_figures_are_told_by_model() -> None:
    site = Site({"a": 1, "b": 1})

    async def work() -> None:
        for name in ("a", "b", "b"):
            await site.ask(name)
        text = (await call(site.app, "/metrics", method="GET")).body.decode()
        assert 'forerun:generation_tokens_total{model_name="a",owner=""} 6.0' in text
        assert 'forerun:generation_tokens_total{model_name="b",owner=""} 12.0' in text
        assert 'forerun:model_loaded{model_name="b"} 1.0' in text
        stats = await site.get("/v1/stats")
        assert set(stats["models"]) == {"a", "b"}
        assert stats["running"] == 0
        assert stats["tokens_per_second"] > stats["models"]["a"]["tokens_per_second"]

    site.run(work)


def test_dashboards_made_for_vllm_find_its_names() -> None:
    site = Site({"a": 1})

    async def work() -> None:
        await site.ask()
        assert "models" not in await site.get("/v1/stats")
        text = (await call(site.app, "/metrics", method="GET")).body.decode()
        response = await call(site.app, "/metrics", method="GET", query="prefix=vllm")
        theirs = response.body.decode()
        assert "forerun:" not in theirs
        assert theirs.count("vllm:") == text.count("forerun:")
        assert 'vllm:generation_tokens_total{model_name="a",owner=""} 6.0' in theirs
        for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
            assert f'vllm:spec_decode_{name}_total{{model_name="a"}}' in theirs
        wrong = await call(site.app, "/metrics", method="GET", query="prefix=a%0Ab")
        assert status_and_code(wrong) == (400, "invalid_value")

    site.run(work)


def test_a_server_of_one_model_is_as_before() -> None:
    served = make_served(Babbler(), {"none": None})
    models = Models([Model(["only"], served=served)])
    assert models.default.served is served
    assert models.cards()[0]["root"] == "only"
