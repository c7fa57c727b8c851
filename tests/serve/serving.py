"""Servers for tests: tiny models with a tokenizer, an app in this process and its callers.

`processes.py` starts real ones.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from reciting import byte_tokenizer, token_ids

from forerun.drafters import NGram
from forerun.engine.answer_options import AnswerOptions
from forerun.engine.results import Generation, Piece
from forerun.models.function import FunctionModel
from forerun.sampling.options import Sampling
from forerun.serve.admission.admission import Desk
from forerun.serve.admission.ask import Ask, Speculation
from forerun.serve.admission.errors import ApiError
from forerun.serve.http.app import make_app
from forerun.serve.http.models import one_model

PROMPT = "the quick brown fox jumps over the lazy dog and the quick brown"
TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


class Babbler(FunctionModel):
    """Laws that depend on the last two tokens, and a real tokenizer: it says anything.

    before: called with the text at every evaluation; it may raise, wait, or count.
    """

    def __init__(self, before: Callable[[Sequence[int]], None] | None = None) -> None:
        self.tokenizer = byte_tokenizer()
        self.before = before
        self._laws: dict[tuple[int, ...], Any] = {}
        super().__init__(self._law, vocab_size=len(self.tokenizer), logits=True)
        self.name = "babbler"
        self.max_context = 512

    def _law(self, ids: Any) -> Any:
        if self.before is not None:
            self.before(ids.tolist())
        context = tuple(ids[-2:].tolist())
        if context not in self._laws:
            generator = np.random.default_rng(context)
            self._laws[context] = 3 * generator.standard_normal(len(self.tokenizer))
        return self._laws[context]


def gated() -> tuple[Babbler, threading.Event]:
    """A model whose passes wait until the gate is opened."""
    gate = threading.Event()

    def wait(ids: Sequence[int]) -> None:
        gate.wait(60)

    return Babbler(wait), gate


@cache
def tiny_llama() -> Any:
    """A model whose rows are stored and shared, with the same tokenizer and a chat template."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from forerun.models.huggingface import HuggingFaceModel

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(byte_tokenizer()),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=None,
    )
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return HuggingFaceModel(LlamaForCausalLM(config).eval(), tokenizer)


def an_ask(
    prompt: str = PROMPT,
    *,
    seed: int = 1,
    n: int = 1,
    speculation: Speculation | None = None,
    is_streamed: bool = False,
    **options: Any,
) -> Ask:
    """A sampled request of a few tokens; options of `AnswerOptions`."""
    sampling = Sampling(temperature=0.8, seed=seed, n=n)
    asked = AnswerOptions(sampling, **{"max_new_tokens": 12, **options})
    return Ask([token_ids(prompt)], asked, speculation or Speculation(), is_streamed=is_streamed)


class PlainRoute:
    """The smallest route: the fields of `an_ask`, and answers as texts."""

    path = "/v1/plain"

    def read(self, body: Mapping[str, Any]) -> Ask:
        if not isinstance(prompt := body.get("prompt"), str):
            raise ApiError("prompt must be a text.", param="prompt", code="invalid_type")
        speculation = body.get("speculation", {}) or {"draft_length": 0}
        return an_ask(
            prompt,
            seed=body.get("seed", 1),
            n=body.get("n", 1),
            max_new_tokens=body.get("max_tokens", 12),
            is_streamed=body.get("stream", False),
            priority=body.get("priority", 0),
            timeout=body.get("timeout"),
            logprobs=body.get("logprobs"),
            stop=body.get("stop", ()),
            draft_length=speculation.pop("draft_length", None),
            speculation=Speculation(**speculation),
        )

    def reply(self, ask: Ask, request_id: str, created: int, fingerprint: str) -> PlainReply:
        return PlainReply(request_id)


@dataclass
class PlainReply:
    request_id: str

    def whole(self, answers: Sequence[Generation]) -> dict[str, Any]:
        return {
            "id": self.request_id,
            "texts": [answer.text for answer in answers],
            "tokens": [answer.tokens for answer in answers],
            "reasons": [answer.finish_reason for answer in answers],
        }

    def opening(self) -> Sequence[Mapping[str, Any]]:
        return [{"id": self.request_id}]

    def piece(self, choice: int, piece: Piece) -> Sequence[Mapping[str, Any]]:
        return [{"choice": choice, "text": piece.text, "tokens": piece.tokens}]

    def closing(self, answers: Sequence[Generation]) -> Sequence[Mapping[str, Any]]:
        return [self.whole(answers)]


@dataclass
class Answered:
    """A response as it came."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    chunks: list[bytes] = field(default_factory=list)
    is_complete: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The data of server-sent events; [DONE] as a text."""
        lines = self.body.decode().split("\n\n")
        data = [line.partition("data: ")[2] for line in lines if "data: " in line]
        return ["[DONE]" if text == "[DONE]" else json.loads(text) for text in data]

    @property
    def text(self) -> str:
        """The streamed text of choice 0."""
        pieces = [event for event in self.events if isinstance(event, dict)]
        return "".join(event["text"] for event in pieces if event.get("choice") == 0)


async def call(
    app: Any,
    path: str = PlainRoute.path,
    body: Any = None,
    *,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
    query: str = "",
    leave_after: int | None = None,
    before_send: Callable[[Answered], Awaitable[None]] | None = None,
) -> Answered:
    """Ask an app in this process.

    body: bytes, a list of bytes for a body in parts, or anything that becomes JSON.
    leave_after: go away after so many parts of the response; 0 is at once.
    before_send: awaited before each message of the app is taken in, as by a slow reader.
    """
    parts = body if isinstance(body, list) else [body]
    parts = [part if isinstance(part, bytes) else json.dumps(part).encode() for part in parts]
    received = Answered()
    gone = asyncio.Event()
    if leave_after == 0:
        asyncio.get_running_loop().call_later(0.05, gone.set)
    messages = [
        {"type": "http.request", "body": part, "more_body": index < len(parts) - 1}
        for index, part in enumerate(parts)
    ]

    async def receive() -> Any:
        if messages:
            return messages.pop(0)
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if before_send is not None:
            await before_send(received)
        if gone.is_set():
            return
        if message["type"] == "http.response.start":
            received.status = message["status"]
            received.headers = {k.decode(): v.decode() for k, v in message["headers"]}
            return
        received.chunks.append(message.get("body", b""))
        received.is_complete = not message.get("more_body", False)
        if leave_after is not None and len(received.chunks) >= leave_after:
            gone.set()

    given = {"content-type": "application/json", **(headers or {})}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in given.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "state": {},
    }
    await asyncio.wait_for(app(scope, receive, send), 60)
    return received


@asynccontextmanager
async def serving(
    target: Any = None,
    *,
    route: Any = None,
    queries: Sequence[Any] = (),
    drafters: Any = None,
    app: Mapping[str, Any] | None = None,
    **desk: Any,
) -> AsyncIterator[tuple[Any, Desk]]:
    """An app of one route and its desk; app: further arguments of `make_app`."""
    drafters = drafters or {"ngram": NGram(), "none": None}
    counter = Desk(Babbler() if target is None else target, drafters, **desk)
    made = make_app(one_model(counter, [route or PlainRoute()], queries), **(app or {}))
    async with made.router.lifespan_context(made):
        yield made, counter


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for something that another thread or task brings about."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def run(work: Awaitable[Any]) -> Any:
    """Run a coroutine, for at most a minute."""

    async def bounded() -> Any:
        return await asyncio.wait_for(work, 60)

    return asyncio.run(bounded())
