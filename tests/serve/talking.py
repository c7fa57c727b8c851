"""OpenAI's routes in this process, over tiny models that say what a test wants."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import copy
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from reciting import byte_tokenizer
from serving import Answered, Babbler, call, run

import forerun as fr
from forerun.drafters import NGram
from forerun.models.function import FunctionModel
from forerun.serve.admission.admission import Desk
from forerun.serve.admission.errors import ApiError
from forerun.serve.http.app import make_app
from forerun.serve.http.models import one_model
from forerun.serve.openai.fingerprint import Fingerprint
from forerun.serve.openai.offer import Limits, Offer
from forerun.serve.openai.routes import queries, text_routes
from forerun.serve.openai.routes.queries import card_of

CREATED = 1_700_000_000
MARK = "<assistant>"
PLAIN = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
CALLS = (
    "{% for message in messages %}{% if message.tool_calls %}{% for call in message.tool_calls %}"
    "{{ call.function.name }} {{ call.function.arguments | tojson }}\n{% endfor %}{% endif %}"
    "{% endfor %}"
)
HERMES = "{% if tools %}{{ tools | tojson }} as <tool_call>\n{% endif %}" + CALLS + PLAIN
LLAMA = (
    '{% if tools %}{{ tools | tojson }} as {"name": n, "parameters": p}<|python_tag|>\n{% endif %}'
    + CALLS
    + PLAIN
)
MESSAGES = [{"role": "user", "content": "the quick brown fox"}]
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"


def tokenizer_with(template: str | None) -> Any:
    tokenizer = copy(byte_tokenizer())
    tokenizer.chat_template = template
    return tokenizer


def with_end(target: Any) -> Any:
    """A model that says itself which token ends a text."""
    target.model = SimpleNamespace(
        config=SimpleNamespace(eos_token_id=target.tokenizer.eos_token_id)
    )
    return target


class Talker(Babbler):
    """Babbles in answer to anything."""

    def __init__(self, template: str | None = PLAIN) -> None:
        super().__init__()
        self.tokenizer = tokenizer_with(template)


class Sayer(FunctionModel):
    """Says a text in answer to any chat, and ends; other tokens are possible but unlikely."""

    def __init__(self, text: str, template: str = PLAIN) -> None:
        self.tokenizer = tokenizer_with(template)
        self._script = [*self.tokenizer.encode(text), self.tokenizer.eos_token_id]
        self._mark = self.tokenizer.encode(MARK)
        super().__init__(self._law, vocab_size=len(self.tokenizer), logits=True)
        self.name = "sayer"
        self.max_context = 1024
        with_end(self)

    def _law(self, ids: Any) -> Any:
        text, mark = ids.tolist(), self._mark
        ends = [i for i in range(len(mark), len(text) + 1) if text[i - len(mark) : i] == mark]
        place = len(text) - ends[-1] if ends else 0
        law = np.random.default_rng([len(text)]).standard_normal(len(self.tokenizer))
        law[self._script[min(place, len(self._script) - 1)]] += 20
        return law


@cache
def talker(template: str | None = PLAIN) -> Talker:
    return Talker(template)


def offer_of(target: Any = None, limits: Limits | None = None) -> Offer:
    return Offer(
        target=talker() if target is None else target,
        name="tiny",
        drafters=("ngram", "none"),
        rules=("match", "ratio"),
        limits=limits or Limits(),
    )


Ask = Callable[..., Awaitable[Answered]]


@asynccontextmanager
async def talking(target: Any = None, limits: Limits | None = None) -> AsyncIterator[Ask]:
    """Yields a function (path, body) that asks the app."""
    offer = offer_of(target, limits)
    desk = Desk(offer.target, {"ngram": NGram(), "none": None}, rules=offer.rules)
    fingerprint, card = Fingerprint(offer), card_of(offer, CREATED)
    app = make_app(
        one_model(desk, text_routes(offer), queries(offer), fingerprint, [offer.name], card)
    )

    async def ask(path: str, body: Any = None, **how: Any) -> Answered:
        return await call(app, path, body, **how)

    async with app.router.lifespan_context(app):
        yield ask


def answer_to(
    path: str, *bodies: Mapping[str, Any], target: Any = None, limits: Limits | None = None
) -> Any:
    """What the app answers, one body after the other; a stream as the list of its events."""

    async def work() -> list[Any]:
        async with talking(target, limits) as ask:
            answers = [await ask(path, body) for body in bodies]
        for answer in answers:
            assert answer.status == 200, answer.body
        return [
            answer.events if body.get("stream") else answer.json()
            for body, answer in zip(bodies, answers, strict=True)
        ]

    told = run(work())
    return told[0] if len(told) == 1 else told


def refusal(route: Any, **body: Any) -> ApiError:
    """Why a route does not read a body."""
    with pytest.raises(ApiError) as caught:
        route.read(body)
    json.dumps(caught.value.body(), ensure_ascii=False).encode()
    return caught.value


def generations(target: Any, prompt: Any, **options: Any) -> Sequence[Any]:
    """What `generate` says, as a list."""
    answers = fr.generate(target, prompt, drafter=None, **options)
    return answers if isinstance(answers, list) else [answers]
