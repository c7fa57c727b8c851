"""A server among clients of every kind, for minutes: nobody dies, nothing fails, no text changes.

16 clients ask the default model, each with a new request when its last is over: prompts of 5 to
3,000 tokens on four routes, streamed or whole, with temperatures, cuts, penalties, biases, formats,
log-probabilities, several answers, stop strings and all ways to speculate.  Some leave in the
middle, some read slowly, some send what is refused.  Before that, each request is answered alone by
a server without a drafter; every answer must be equal to that one.

    python benchmarks/soak.py [--minutes 20] [--clients 16] [--requests 64] [--output NAME]

It holds where no engine was replaced, no status was 500 or above, no answer was different, and the
largest memory of the last quarter of the time is within 10% of that of the second quarter.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

import httpx
import numpy as np

from forerun.loading.bundled import NAME, local_copy
from load import percentiles
from machine import save
from serve import running
from spec_bench import read

MOST_MEMORY = 1.10  # times the second quarter's that the last quarter's may be
SHARES = {"whole": 35, "streamed": 25, "leaves": 15, "reads slowly": 10, "is refused": 15}
"""How often a request of a kind is sent, of 100."""
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"enum": [1, 2, 3]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.8},
    {"temperature": 1.2, "top_p": 0.9},
    {"temperature": 0.8, "top_k": 40, "min_p": 0.02},
    {"temperature": 0.9, "presence_penalty": 0.8, "frequency_penalty": 0.4},
    {"temperature": 0.7, "repetition_penalty": 1.2},
    {"temperature": 0.8, "logit_bias": {"28": -100, "30": 2}},
    {"temperature": 0.8, "stop": [".", "\n\n"]},
    {"temperature": 0.8, "speculation": False},
    {"temperature": 0.8, "speculation": {"draft_length": 3}},
    {"temperature": 0.8, "speculation": {"drafter": "suffix"}},
    {"temperature": 0, "speculation": {"drafter": "none"}},
]
"""What every route but Anthropic's takes as it is."""
OF_TEXTS: list[dict[str, Any]] = [
    {"n": 2, "temperature": 0.9},
    {"guided_regex": "[a-z]{3,9} and [a-z]{3,9}", "temperature": 0.8},
    {"min_tokens": 6, "temperature": 0.8},
]
"""What chats and completions take beside these."""
OF_CHATS: list[dict[str, Any]] = [
    {"response_format": FORMAT, "temperature": 0.8, "max_tokens": 48},
    {"response_format": {"type": "json_object"}, "temperature": 0.6, "max_tokens": 32},
    {"logprobs": True, "top_logprobs": 3, "temperature": 0.8},
]
REFUSED: list[tuple[str, Any, int]] = [
    ("chat/completions", b"{", 400),
    ("chat/completions", {"messages": []}, 400),
    ("chat/completions", {"messages": [{"role": "user", "content": 1}]}, 400),
    ("chat/completions", {"messages": "hello", "colour": 1}, 400),
    ("chat/completions", {"messages": [{"role": "user", "content": "a"}], "tools": [1]}, 400),
    ("completions", {"prompt": "z " * 20_000}, 400),
    ("completions", {"prompt": [10**9]}, 400),
    ("completions", {"prompt": "a", "temperature": "hot"}, 400),
    ("completions", {"prompt": "a", "max_tokens": 0}, 400),
    ("completions", b'{"prompt": [' + b"5," * 400_000 + b"5]}", 400),
    ("responses", {"input": "a", "previous_response_id": "resp_1"}, 400),
    ("messages", {"messages": [{"role": "user", "content": "a"}]}, 400),
    ("embeddings", {"input": "a"}, 404),
]


class Wanted(NamedTuple):
    """A request that can be answered."""

    route: str
    body: dict[str, Any]


class Answered(NamedTuple):
    status: int
    content: Any  # what has to be equal
    first_token: float | None = None  # seconds, of a stream


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=20.0, help="Ctrl-C ends it sooner")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=64, help="that differ")
    parser.add_argument("--longest", type=int, default=3000, help="tokens of a prompt")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="soak", metavar="NAME", help="of the JSON file")
    args = parser.parse_args()
    load, random = os.getloadavg()[0], Random(args.seed)
    wanted = make_requests(args, random)
    command = [sys.executable, "-m", "forerun.cli", "serve", "--port", "{port}"]
    with running([*command, "--drafter", "none"]) as port:
        alone = asyncio.run(answer_alone(port, wanted))
    with running([*command, "--drafter", "heads+suffix", "--drafter", "suffix"]) as port:
        soak = Soak(port, wanted, alone, random)
        with suppress(KeyboardInterrupt):  # which ends it early
            asyncio.run(soak.run(args.clients, 60 * args.minutes))
    results = soak.report()
    print(json.dumps({key: results[key] for key in results if key != "memory_mib"}, indent=1))
    print("✓ it holds" if results["holds"] else "✗ it does not hold")
    settings = {key: value for key, value in vars(args).items() if key != "output"}
    settings["minutes"] -= soak.seconds_left / 60
    save(args.output, {"load_average": load, "settings": settings, **results})
    sys.exit(not results["holds"])


def make_requests(args: argparse.Namespace, random: Random) -> list[Wanted]:
    """Requests with prompts of 5 tokens to the longest, as many short as long ones by orders of
    magnitude, and with options in turn."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(local_copy(NAME) or NAME)
    tokens = tokenizer.encode("\n\n".join(text for _, text in read(None, 20)))
    tokens *= 1 + args.longest // len(tokens)
    lengths = np.geomspace(5, args.longest, args.requests).astype(int).tolist()
    random.shuffle(lengths)
    wanted = []
    for number, length in enumerate(lengths):
        start = random.randrange(len(tokens) - length + 1)
        text = tokenizer.decode(tokens[start : start + length])
        wanted.append(make_request(number, text))
    return wanted


def make_request(number: int, text: str) -> Wanted:
    """The request of a number: routes take turns, and on each of them the options."""
    route = ("chat/completions", "completions", "chat/completions", "responses", "messages")[
        number % 5
    ]
    usual = {"seed": number, "max_tokens": 8 + number % 25}
    if route == "messages":
        options = OPTIONS[number % 2]
        body = {"messages": [{"role": "user", "content": text}], "model": NAME}
    elif route == "responses":
        options = OPTIONS[number // 5 % 4]
        usual["max_output_tokens"] = usual.pop("max_tokens") + 8  # which this route has at least
        body = {"input": text}
    else:
        is_chat = route == "chat/completions"
        found = [*OPTIONS, *OF_TEXTS, *(OF_CHATS if is_chat else [])]
        options = found[number // 5 % len(found)]
        if is_chat and number % 5 == 2:
            options = found[-1 - number // 5 % len(found)]
        body = {"messages": [{"role": "user", "content": text}]} if is_chat else {"prompt": text}
    return Wanted(route, {**usual, **options, **body})


async def answer_alone(port: int, wanted: list[Wanted]) -> list[Answered]:
    """Each request answered by itself, without a draft."""
    answers = []
    async with client_of(port) as client:
        for one in wanted:
            body = {key: value for key, value in one.body.items() if key != "speculation"}
            answers.append(await whole(client, one.route, body))
            if answers[-1].status != 200:
                raise RuntimeError(f"{one.route}: {answers[-1].content}")
    return answers


def client_of(port: int) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=8)
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=600, limits=limits)


async def whole(client: httpx.AsyncClient, route: str, body: Any) -> Answered:
    how: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
    headers = {"Content-Type": "application/json"}
    response = await client.post(f"/v1/{route}", headers=headers, **how)
    try:
        told = response.json()
    except ValueError:
        told = response.text
    return Answered(response.status_code, said(route, told) if response.is_success else told)


def said(route: str, told: Any) -> Any:
    """What must be equal of an answer: texts, reasons, and log-probabilities."""
    if route == "messages":
        return [told["content"][0]["text"] if told["content"] else "", told["stop_reason"]]
    if route == "responses":
        return [part["text"] for item in told["output"] for part in item["content"]]
    return [
        [
            choice["message"]["content"] if "message" in choice else choice["text"],
            choice["finish_reason"],
            [one["logprob"] for one in (choice.get("logprobs") or {}).get("content", ())],
        ]
        for choice in sorted(told["choices"], key=lambda choice: choice["index"])
    ]


class Soak:
    """The clients of one server, and what came of their requests."""

    def __init__(
        self, port: int, wanted: list[Wanted], alone: list[Answered], random: Random
    ) -> None:
        self._port, self._wanted, self._alone, self._random = port, wanted, alone, random
        self._statuses: Counter[str] = Counter()
        self._first_tokens: list[float] = []
        self._different: list[dict[str, Any]] = []
        self._broken: Counter[str] = Counter()  # answers that ended without an end
        self._memory: list[float] = []  # MiB, every second
        self._restarts = 0.0
        self.seconds_left = 0.0

    async def run(self, num_clients: int, seconds: float) -> None:
        self.seconds_left = seconds
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch())
            for _ in range(num_clients):
                group.create_task(self._client())

    async def _watch(self) -> None:
        """Note memory and replaced engines every second.  Time in which all of us stood still, as
        on a machine that was suspended, does not count."""
        async with client_of(self._port) as client:
            while self.seconds_left > 0:
                begin = time.monotonic()
                text = (await client.get("/metrics")).text
                self._memory.append(metric(text, "process_resident_memory_bytes") / 2**20)
                self._restarts = metric(text, "forerun:engine_restarts_total")
                await asyncio.sleep(1)
                self.seconds_left -= min(2.0, time.monotonic() - begin)

    async def _client(self) -> None:
        kinds, shares = list(SHARES), list(SHARES.values())
        async with client_of(self._port) as client:
            while self.seconds_left > 0:
                (kind,) = self._random.choices(kinds, shares)
                try:
                    await self._ask(client, kind)
                except httpx.HTTPError as error:
                    self._broken[f"{kind}: {type(error).__name__}"] += 1

    async def _ask(self, client: httpx.AsyncClient, kind: str) -> None:
        if kind == "is refused":
            route, body, status = self._random.choice(REFUSED)
            told = await whole(client, route, body)
            self._statuses[f"{kind}: {told.status}"] += 1
            if told.status != status:
                self._different.append({"route": route, "status": told.status, "due": status})
            return
        number = self._random.randrange(len(self._wanted))
        one = self._wanted[number]
        if kind == "whole":
            told: Answered | None = await whole(client, one.route, one.body)
        else:
            told = await self._stream(client, one, kind)
        if told is None:
            self._statuses[f"{kind}: left"] += 1
            return
        self._statuses[f"{kind}: {told.status}"] += 1
        if told.first_token is not None:
            self._first_tokens.append(told.first_token)
        if told.status == 200 and told.content != self._alone[number].content:
            due = self._alone[number].content
            self._different.append({"request": number, "answer": told.content, "due": due})

    async def _stream(self, client: httpx.AsyncClient, one: Wanted, kind: str) -> Answered | None:
        """A streamed answer; None where the client left in the middle."""
        most = self._random.randrange(1, 12) if kind == "leaves" else sys.maxsize
        patience = 4 * self._random.random() if kind == "leaves" else None
        begin, gathered = time.monotonic(), Gathered(one.route)
        body = {**one.body, "stream": True}
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(patience),
                client.stream("POST", f"/v1/{one.route}", json=body) as response,
            ):
                if response.status_code != 200:
                    content = (await response.aread()).decode()
                    return Answered(response.status_code, content)
                async for event in events_of(response):
                    gathered.add(event, time.monotonic() - begin)
                    if gathered.num_events >= most:
                        return None
                    if kind == "reads slowly":
                        await asyncio.sleep(0.5 * self._random.random())
                return Answered(200, gathered.said(), gathered.first_token)
        return None

    def report(self) -> dict[str, Any]:
        """The figures, and whether they hold."""
        quarter = max(1, len(self._memory) // 4)
        settled, last = max(self._memory[quarter : 2 * quarter]), max(self._memory[-quarter:])
        failed = [
            status
            for status in self._statuses
            if status.rpartition(": ")[2] not in ("200", "left")
            and not status.startswith("is refused: 4")
        ]
        return {
            "holds": not (self._restarts or failed or self._different or self._broken)
            and last <= MOST_MEMORY * settled,
            "requests": self._statuses.total(),
            "statuses": dict(sorted(self._statuses.items())),
            "different": len(self._different),
            "first_different": self._different[:3],
            "broken": dict(self._broken),
            "engines_replaced": self._restarts,
            "first_token_ms": percentiles(self._first_tokens),
            "memory_times": last / settled,
            "memory_mib": [round(one) for one in self._memory[:: max(1, len(self._memory) // 60)]],
        }


def metric(text: str, name: str) -> float:
    found = re.search(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"There is no metric {name}.")
    return float(found[1])


async def events_of(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: {"):
            yield json.loads(line[6:])


class Gathered:
    """A streamed answer, put together until it is what a whole one says."""

    def __init__(self, route: str) -> None:
        self._route = route
        self._choices: dict[int, list[Any]] = {}
        self._reason: Any = None
        self.num_events = 0
        self.first_token: float | None = None

    def add(self, event: dict[str, Any], seconds: float) -> None:
        self.num_events += 1
        if "error" in event:
            raise RuntimeError(str(event["error"]))
        kind = event.get("type", "")
        for index, text, logprobs in self._pieces(event, kind):
            choice = self._choices.setdefault(index, ["", None, []])
            choice[0] += text
            choice[2] += logprobs
            if text and self.first_token is None:
                self.first_token = seconds
        for one in event.get("choices", ()):
            if one.get("finish_reason") is not None:
                self._choices.setdefault(one["index"], ["", None, []])[1] = one["finish_reason"]
        if kind == "message_delta":
            self._reason = event["delta"]["stop_reason"]

    def _pieces(self, event: dict[str, Any], kind: str) -> list[tuple[int, str, list[float]]]:
        if kind == "content_block_delta":
            return [(0, event["delta"]["text"], [])]
        if kind == "response.output_text.delta":
            return [(0, event["delta"], [])]
        return [
            (
                one["index"],
                (one["delta"].get("content") if "delta" in one else one["text"]) or "",
                [each["logprob"] for each in (one.get("logprobs") or {}).get("content", ())],
            )
            for one in event.get("choices", ())
        ]

    def said(self) -> Any:
        choices = [choice for _, choice in sorted(self._choices.items())]
        if self._route == "messages":
            return [choices[0][0] if choices else "", self._reason]
        if self._route == "responses":
            return [choice[0] for choice in choices]
        return choices


if __name__ == "__main__":
    main()
