"""A replica dies at any message of any answer: the client notices a pause and nothing else."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from fleets import DIGEST, Asking, fleet, masked, merged
from serving import run, until
from talking import CHAT, COMPLETIONS, HERMES, MESSAGES, RESPONSES, Sayer, Talker

from forerun.scale import failover
from forerun.scale import replica as replica_module
from forerun.scale.blame import LEAST_DEATHS

SAMPLED = {"messages": MESSAGES, "max_tokens": 12, "temperature": 0.8, "seed": 7}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
TEXT = "naïve 🦊 世界 STO STOP 👩‍👧"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "世"}}\n</tool_call>'
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["xx", "yy"]}}, "required": ["a"]}

CASES: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "chat": (Talker, CHAT, SAMPLED),
    "characters": (lambda: Sayer(TEXT), CHAT, {"messages": MESSAGES, "temperature": 0}),
    "stop": (lambda: Sayer(TEXT), CHAT, {**SAMPLED, "stop": ["STOP", "🦊 世x"], "max_tokens": 90}),
    "logprobs": (Talker, CHAT, {**SAMPLED, "logprobs": True, "top_logprobs": 2, "fates": True}),
    "several": (Talker, CHAT, {**SAMPLED, "n": 3, "max_tokens": 8}),
    "penalties": (
        Talker,
        CHAT,
        {**SAMPLED, "frequency_penalty": 1.0, "repetition_penalty": 1.3, "min_tokens": 9},
    ),
    "tools": (
        lambda: Sayer(CALL, HERMES),
        CHAT,
        {"messages": MESSAGES, "temperature": 0, "tools": TOOLS},
    ),
    "schema": (
        lambda: Sayer("{}"),
        CHAT,
        {
            **SAMPLED,
            "max_tokens": 14,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": SCHEMA},
            },
        },
    ),
    "texts": (
        Talker,
        COMPLETIONS,
        {
            "prompt": ["the quick", "brown fox"],
            "max_tokens": 9,
            "seed": 3,
            "logprobs": 1,
            "echo": False,
        },
    ),
    "suffix": (Talker, CHAT, {**SAMPLED, "speculation": {"drafter": "suffix"}}),
    "plain": (Talker, CHAT, {**SAMPLED, "speculation": False}),
}


USUAL_CASES = "characters", "logprobs", "several", "tools"  # the others are marked as slow


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if case in USUAL_CASES else pytest.mark.slow) for case in CASES],
)
def test_a_death_at_any_message_changes_nothing(case: str) -> None:
    make, path, body = CASES[case]
    stream = {**body, "stream": True, "stream_options": {"include_usage": True}}

    async def work() -> None:
        async with fleet(make(), make()) as ask:
            first = await ask(path, stream, headers={"x-request-id": "a"})
            assert first.status == 200, first.body
            undisturbed = merged(first.events)
            whole = masked((await ask(path, body, headers={"x-request-id": "a"})).json())
            place = -1
            while place < 0 or ask.replicas.num_deaths:  # until it is complete before its death
                place += 3 if case == "tools" else 1  # a long text
                answer = await ask(path, stream, [place], headers={"x-request-id": "a"})
                assert merged(answer.events) == undisturbed, place
            assert place > 3
            for early in (1, place // 2):
                answer = await ask(path, body, [early], headers={"x-request-id": "a"})
                assert masked(answer.json()) == whole

    run(work())


@pytest.mark.parametrize("case", ["chat", "characters", "stop", "logprobs", "several", "tools"])
@pytest.mark.parametrize("lifetime", [2, 3])
def test_an_answer_outlives_any_number_of_replicas(case: str, lifetime: int) -> None:
    """Each gives a piece or two and dies."""
    make, path, body = CASES[case]
    stream = {**body, "stream": True, "stream_options": {"include_usage": True}}

    async def work() -> None:
        async with fleet(make(), make(), make()) as ask:
            undisturbed = merged((await ask(path, stream, headers={"x-request-id": "a"})).events)
            answer = await ask(path, stream, [lifetime] * 1000, headers={"x-request-id": "a"})
            assert merged(answer.events) == undisturbed
            assert len(ask.replicas.works) > 5

    run(work())


def test_the_same_text_as_without_a_fleet() -> None:
    import forerun as fr

    async def work() -> Any:
        async with fleet(Talker(), Talker()) as ask:
            return (await ask(CHAT, SAMPLED, [5, 4])).json()

    sampling = fr.Sampling(temperature=0.8, seed=7)
    plain = fr.generate(Talker(), [MESSAGES], sampling=sampling, max_new_tokens=12)[0]
    assert run(work())["choices"][0]["message"]["content"] == plain.text


def test_pieces_that_wait_for_a_message_go_together() -> None:
    """As replicas send them, where a message is costly."""

    async def work() -> None:
        async with fleet(Talker(), Talker()) as ask:
            stream = {**SAMPLED, "max_tokens": 40, "stream": True}
            undisturbed = merged((await ask(CHAT, stream)).events)
            num_messages = ask.replicas.num_messages
            for replica in ask.replicas.replicas:
                replica._message_seconds = 0.05
            answer = await ask(CHAT, stream, [1])
            assert ask.replicas.num_deaths == 1
            assert ask.replicas.num_messages < num_messages
            assert merged(answer.events) == undisturbed

    run(work())


def test_responses_go_on_too() -> None:
    body = {"input": "the fox", "max_output_tokens": 12, "seed": 7, "stream": True}

    def text_of(events: list[Any]) -> str:
        return "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")

    async def work() -> None:
        async with fleet(Talker(), Talker()) as ask:
            undisturbed = (await ask(RESPONSES, body)).events
            for place in range(1, 9):
                events = (await ask(RESPONSES, body, [place, 2, 2])).events
                assert text_of(events) == text_of(undisturbed)
                last, usual = events[-1]["response"], undisturbed[-1]["response"]
                assert last["status"] == usual["status"] == "incomplete"
                assert last["usage"]["output_tokens"] == usual["usage"]["output_tokens"] == 12

    run(work())


def test_a_request_that_kills_is_given_up_and_the_others_go_on() -> None:
    """It gains no token anywhere: after a few replicas that is held against it."""

    async def work() -> None:
        async with fleet(Talker(), Talker()) as ask:
            answer = await ask(CHAT, SAMPLED, [1] * 50)
            assert answer.status == 500
            assert answer.json()["error"]["code"] == "generation_failed"
            assert len(ask.replicas.works) == LEAST_DEATHS
            assert (await ask(CHAT, SAMPLED)).status == 200

    run(work())


def test_a_request_that_gains_a_token_in_between_is_no_killer() -> None:
    async def work() -> None:
        async with fleet(Talker(), Talker()) as ask:
            answer = await ask(CHAT, SAMPLED, [*[1] * (LEAST_DEATHS - 1), 3] * 3)
            assert answer.status == 200
            assert ask.replicas.num_deaths == 3 * LEAST_DEATHS

    run(work())


def test_work_that_only_waited_is_not_held_against_a_request() -> None:
    async def work() -> None:
        async with fleet(Talker(), Talker()) as ask:
            answer = await ask(CHAT, SAMPLED, [0] * (LEAST_DEATHS + 2))
            assert answer.status == 200
            assert len(ask.replicas.works) == LEAST_DEATHS + 3

    run(work())


def test_a_replica_of_another_model_is_not_gone_on_with() -> None:
    """The text would be another one: better none."""

    async def work() -> None:
        async with fleet(Talker(), digests=("another",)) as ask:
            answer = await ask(CHAT, SAMPLED)
            assert answer.status == 500
        async with fleet(Talker(), Talker(), digests=("another", DIGEST)) as ask:
            assert (await ask(CHAT, SAMPLED)).status == 200

    run(work())


def test_an_engine_that_dies_in_a_replica_is_a_replica_that_dies() -> None:
    deaths = [1]

    def die(ids: Any) -> None:
        if len(ids) > 40 and deaths:
            deaths.pop()
            raise MemoryError("no room")

    async def work() -> None:
        target, body = Talker(), {**SAMPLED, "max_tokens": 24}
        async with fleet(target, Talker()) as ask:
            undisturbed = masked((await ask(CHAT, body, headers={"x-request-id": "a"})).json())
            target.before = die
            for _ in range(2):
                answer = await ask(CHAT, body, headers={"x-request-id": "a"})
                assert masked(answer.json()) == undisturbed
            assert not deaths
            await until(lambda: all(replica.is_sound for replica in ask.replicas.replicas))

    run(work())


def test_a_client_that_leaves_ends_its_answer_in_the_replica() -> None:
    body = {**SAMPLED, "max_tokens": 400, "stream": True}

    async def work() -> None:
        passes: list[Any] = []
        target = Talker()
        target.before = passes.append
        async with fleet(target) as ask:
            await ask(CHAT, body, leave_after=3)
            (replica,) = ask.replicas.replicas
            await until(lambda: replica._engines.num_running == 0)
            assert ask.desk.num_running == 0
            assert 0 < len(passes) < 300

    run(work())


@pytest.mark.parametrize("deaths", [[], [3]])
def test_a_deadline_ends_an_answer_wherever_it_is(deaths: list[int]) -> None:
    body = {**SAMPLED, "max_tokens": 400, "timeout": 0.3}

    class Slow:
        """Replicas of which none is free after the first."""

        def __init__(self, ask: Asking) -> None:
            self.inner = ask.replicas.answer

        async def answer(self, work: Any) -> Any:
            if work.given:
                await asyncio.Event().wait()
            async for message in self.inner(work):
                yield message

    async def work() -> None:
        async with fleet(Talker(), Talker()) as ask:
            ask.desk._engines._replicas = Slow(ask)  # type: ignore[attr-defined]
            answer = await ask(CHAT, body, deaths)
            assert answer.json()["choices"][0]["finish_reason"] == "length"
            assert answer.json()["usage"]["completion_tokens"] > 0

    run(work())


def test_a_conversation_comes_back_to_the_replica_that_has_its_beginning() -> None:
    first_turn = {**SAMPLED, "temperature": 0, "max_tokens": 90}

    async def work() -> None:
        async with fleet(Sayer(TEXT), Sayer(TEXT)) as ask:
            await ask(CHAT, first_turn)
            await ask(CHAT, first_turn)
            (again,) = ask.replicas.works
            assert again.replica == ""  # a prompt that others have too
            turns = [*MESSAGES, {"role": "assistant", "content": TEXT}, *MESSAGES]
            await ask(CHAT, {**first_turn, "messages": turns})
            (second,) = ask.replicas.works
            assert second.replica == "replica 0"
            turns = [*turns, {"role": "assistant", "content": TEXT}, *MESSAGES]
            await ask(CHAT, {**first_turn, "messages": turns}, [2])  # dies there
            turns = [*turns, {"role": "assistant", "content": TEXT}, *MESSAGES]
            await ask(CHAT, {**first_turn, "messages": turns})
            assert ask.replicas.works[-1].replica == "replica 1"

    run(work())


def test_a_full_ingress_says_when_to_come_back() -> None:
    async def work() -> None:
        async with fleet(Talker(), max_queue=0) as ask:
            body = {**SAMPLED, "max_tokens": 80}
            running = [asyncio.create_task(ask(CHAT, body)) for _ in range(8)]
            await until(lambda: ask.desk.num_open == 8)
            answer = await ask(CHAT, body)
            assert answer.status == 429
            assert int(answer.headers["retry-after"]) >= 1
            for task in running:
                assert (await task).status == 200

    run(work())


def hanging_after(count: int, ask: Asking) -> Any:
    """Replicas of which the first says nothing any more after so many messages, beats included."""
    answer, has_hung = ask.replicas.answer, []

    class Hanging:
        async def answer(self, work: Any) -> Any:
            left = count
            async for message in answer(work):
                if not has_hung and not left:
                    has_hung.append(True)
                    await asyncio.Event().wait()
                left -= 1
                yield message

    return Hanging()


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_a_replica_that_hangs_is_lost_like_one_that_dies(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failover, "PATIENCE", 0.2)

    async def work() -> None:
        async with fleet(Talker(), Talker()) as ask:
            undisturbed = merged((await ask(CHAT, {**SAMPLED, "stream": True})).events)
            ask.desk._engines._replicas = hanging_after(count, ask)  # type: ignore[attr-defined]
            answer = await asyncio.wait_for(ask(CHAT, {**SAMPLED, "stream": True}), 5)
            assert merged(answer.events) == undisturbed
            assert len(ask.replicas.works) == 2
            if count > 2:  # a message has told who it was
                assert ask.replicas.works[1].avoid == ("replica 0",)

    run(work())


def test_a_deadline_holds_in_a_replica_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It had begun, and does not end the answer itself."""
    monkeypatch.setattr(failover, "GRACE", 0.1)

    async def work() -> None:
        async with fleet(Talker()) as ask:
            ask.desk._engines._replicas = hanging_after(5, ask)  # type: ignore[attr-defined]
            body = {**SAMPLED, "max_tokens": 400, "timeout": 0.3}
            answer = await asyncio.wait_for(ask(CHAT, body), 2)
            assert answer.json()["choices"][0]["finish_reason"] == "length"
            assert answer.json()["usage"]["completion_tokens"] > 0

    run(work())


def test_a_long_pass_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replica says that it lives while its engine is at work."""
    monkeypatch.setattr(failover, "PATIENCE", 0.3)
    monkeypatch.setattr(replica_module, "BEAT_SECONDS", 0.05)

    async def work() -> None:
        target = Talker()
        async with fleet(target) as ask:
            undisturbed = masked((await ask(CHAT, SAMPLED, headers={"x-request-id": "a"})).json())
            target.before = lambda ids: time.sleep(0.9) if len(ids) % 7 == 0 else None
            answer = await ask(CHAT, SAMPLED, headers={"x-request-id": "a"})
            assert masked(answer.json()) == undisturbed
            assert len(ask.replicas.works) == 1

    run(work())


def test_a_message_that_comes_twice_counts_once() -> None:
    async def work() -> None:
        async with fleet(Talker(), Talker()) as ask:
            undisturbed = merged((await ask(CHAT, {**SAMPLED, "stream": True})).events)
            answer = ask.replicas.answer

            class Echoing:
                async def answer(self, work: Any) -> Any:
                    async for message in answer(work):
                        yield message
                        yield message

            ask.desk._engines._replicas = Echoing()  # type: ignore[attr-defined]
            again = await ask(CHAT, {**SAMPLED, "stream": True})
            assert merged(again.events) == undisturbed
            assert len(ask.replicas.works) == 1

    run(work())
