"""The laws of a whole text by one request, where a server tells log-probabilities of prompts."""

from __future__ import annotations

import pytest
from standins.rounds import FunctionRound
from standins.server import StandIn

import forerun as fr
from forerun.audit.budget import Budget
from forerun.audit.dialects import Dialect
from forerun.audit.endpoint import Endpoint, likeliest
from forerun.audit.journal import Journal
from forerun.audit.meeting import meet
from forerun.audit.prompts import prompts
from forerun.audit.questions import Question, Token
from forerun.audit.wire import Call, Raw
from forerun.proof.broken import walk

PROMPT = prompts(1)[0]


def server(**settings: bool) -> StandIn:
    return StandIn(round=FunctionRound(walk), seed=3, **settings)


def endpoint_of(transport: object, *, has_echo: bool) -> Endpoint:
    dialect = Dialect("completions", has_echo=has_echo)
    return Endpoint(Journal(transport, None, {}), Budget(500), dialect)  # type: ignore[arg-type]


def text_of(endpoint: Endpoint) -> tuple[Token, ...]:
    question = Question(PROMPT.text, 6, options={**endpoint.plain, "seed": 1})
    return endpoint.ask("text", question).choices[0].tokens or ()


def test_one_request_tells_the_laws_of_a_text() -> None:
    """They are those of one-token requests, and cost one token."""
    echoing, asking = (endpoint_of(server(has_echo=on), has_echo=on) for on in (True, False))
    tokens = text_of(echoing)
    assert len(tokens) == 6
    before = echoing.budget.spent
    echoing.read_along(PROMPT.text, tokens)
    assert echoing.budget.spent == before + 1
    for end in range(len(tokens)):
        assert echoing.knows(PROMPT.text, tokens[:end])
        told, asked = (one.law(PROMPT.text, tokens[:end]) for one in (echoing, asking))
        assert told is not None
        assert asked is not None
        assert told.keys == asked.keys
        assert told.chances == pytest.approx(asked.chances)
    assert echoing.budget.spent == before + 1
    echoing.read_along(PROMPT.text, tokens)  # nothing is left to learn
    assert echoing.budget.spent == before + 1


class Muddled:
    """Echoes a text as other tokens than it came from."""

    def __init__(self, inner: StandIn) -> None:
        self.inner = inner

    def send(self, call: Call) -> Raw:
        raw = self.inner.send(call)
        if call.body and call.body.get("echo"):
            raw.body["choices"][0]["logprobs"]["tokens"][-3] += "?"
        return raw


def test_an_echo_that_is_read_otherwise_teaches_nothing() -> None:
    endpoint = endpoint_of(Muddled(server(has_echo=True)), has_echo=True)
    tokens = text_of(endpoint)
    endpoint.read_along(PROMPT.text, tokens)
    assert not any(endpoint.knows(PROMPT.text, tokens[:end]) for end in range(len(tokens)))


def test_the_token_that_came_is_no_part_of_a_law_unless_it_is_likely() -> None:
    table = {f" {number}": -float(number) for number in range(1, 22)}
    assert list(likeliest(table, 20)) == [f" {number}" for number in range(1, 21)]


def test_an_echo_is_asked_for_where_it_is_there() -> None:
    for has_echo in (True, False):
        journal = Journal(server(has_echo=has_echo), None, {})
        met = meet(journal, Budget(100), "/v1", None, PROMPT)
        assert met.endpoint.dialect.has_echo is has_echo


def test_more_of_the_budget_is_text() -> None:
    def num_tokens(is_echoing: bool) -> int:
        report = fr.audit("http://stand-in/v1", transport=server(has_echo=is_echoing), budget=400)
        law = next(found for found in report.findings if found.check == "law")
        return int(law.details["tokens"])

    assert num_tokens(True) > 1.2 * num_tokens(False)
