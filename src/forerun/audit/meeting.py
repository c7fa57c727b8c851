"""Finds out what an endpoint can do: its model, its route, and what it reports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from forerun.audit.budget import Budget
from forerun.audit.dialects import Dialect, read
from forerun.audit.endpoint import NEUTRAL, PLAIN, Endpoint
from forerun.audit.journal import Journal
from forerun.audit.prompts import Prompt
from forerun.audit.questions import NUM_TOP, Answer, Question, RefusedError
from forerun.audit.wire import Call, EndpointError
from forerun.base.errors import InputError, explain

FEWER_TOP = (NUM_TOP, 10, 5, 1)
"""The numbers of likeliest tokens to ask for, one after another, until the server allows it."""
PREFILLS: tuple[dict[str, Any], ...] = (
    {},
    {"continue_final_message": True, "add_generation_prompt": False},
)
"""Options that may make a server continue a message, in the order in which they are tried: none,
then vLLM's."""


@dataclass(frozen=True)
class Meeting:
    """The facts found out about an endpoint.

    model: the name to use in requests.
    has_logprobs: whether it reports those of the likeliest tokens.
    notes: what it lacks, and which checks that affects.
    """

    endpoint: Endpoint
    model: str | None
    has_logprobs: bool
    has_seeds: bool
    notes: tuple[str, ...]


def base_path(url: str) -> str:
    """The path below which the routes lie; /v1 if the address has none."""
    path = urlsplit(url).path.rstrip("/")
    for ending in ("/chat/completions", "/completions"):
        path = path.removesuffix(ending)
    return path or "/v1"


def meet(journal: Journal, budget: Budget, base: str, model: str | None, prompt: Prompt) -> Meeting:
    """Find out how to ask the endpoint, and what it reports.

    Everything is tried with one-token requests; a typical server answers the first one. What the
    endpoint lacks becomes a note, and the checks that need it say so.
    """
    notes: list[str] = []
    model = _model(journal, base, model, notes)
    dialect = _dialect(journal, budget, Dialect("completions", base, model), prompt)
    endpoint = Endpoint(journal, budget, dialect)
    has_logprobs = dialect.num_top > 0
    if not has_logprobs:
        notes.append("no log-probabilities, so distributions cannot be compared token by token")
    elif dialect.num_top < NUM_TOP:
        notes.append(f"only {dialect.num_top} likeliest tokens are told; the rest is one bin")
    if dialect.route == "chat":
        endpoint = _continued(endpoint, prompt, notes)
    endpoint.plain = _neutral(endpoint, prompt)
    if has_logprobs and dialect.route == "completions" and _has_echo(endpoint, prompt):
        endpoint.dialect = replace(endpoint.dialect, has_echo=True)
    has_seeds = _has_seeds(endpoint, prompt, notes)
    return Meeting(endpoint, model, has_logprobs, has_seeds, tuple(notes))


def _model(journal: Journal, base: str, model: str | None, notes: list[str]) -> str | None:
    """The model to name in requests: the one asked for, or the first that is listed."""
    raw = journal.answer("models", Call("GET", f"{base}/models"))
    if raw.status in (401, 403):
        raise _wrong_key(raw.status)
    listed: list[str] = []
    if raw.status == 200 and isinstance(raw.body, dict):
        items = raw.body.get("data")
        listed = [
            str(item["id"]) for item in items or () if isinstance(item, dict) and "id" in item
        ]
    if model is None and not listed:
        notes.append("no list of models, so requests name none")
    if model is not None and listed and model not in listed:
        cure = f"Use one of {', '.join(listed[:5])}."
        raise InputError(explain("The endpoint has no such model.", repr(model), cure))
    return model or (listed[0] if listed else None)


def _wrong_key(status: int) -> EndpointError:
    """The error for an API key that the endpoint refuses."""
    cure = "Name the environment variable that holds the key with --key-env."
    return EndpointError(explain("The endpoint refuses the key.", f"status {status}", cure))


def _dialect(journal: Journal, budget: Budget, first: Dialect, prompt: Prompt) -> Dialect:
    """The most informative format that the endpoint answers."""
    failures: list[str] = []
    for number, dialect in enumerate(_ways(first)):
        question = Question(prompt.text, 1, options=PLAIN, wants_logprobs=dialect.num_top > 0)
        budget.reserve(1)
        try:
            answer = read(journal.answer(f"probe/{number}", dialect.call(question)))
        except RefusedError as refusal:
            budget.settle(1, 0)
            if refusal.status in (401, 403):
                raise _wrong_key(refusal.status) from refusal
            failures.append(f"{dialect.path}: {refusal}")
            continue
        budget.settle(1, answer.num_tokens or 1, answer.num_prompt_tokens or 0)
        if dialect.num_top and not _has_tops(answer):
            failures.append(f"{dialect.path}: no log-probabilities in the answer")
            continue
        return dialect
    cure = "An endpoint needs /completions or /chat/completions in OpenAI's form."
    received = "; ".join(failures[-2:])
    raise EndpointError(explain("No route of the endpoint answers.", received, cure))


def _ways(first: Dialect) -> Iterator[Dialect]:
    """The formats to try, the most informative first."""
    for num_top in FEWER_TOP:
        for route in ("completions", "chat"):
            yield replace(first, route=route, num_top=num_top)
    for route in ("completions", "chat"):
        yield replace(first, route=route, num_top=0)


def _has_tops(answer: Answer) -> bool:
    """Whether an answer lists the likeliest tokens."""
    tokens = answer.choices[0].tokens
    return bool(tokens and tokens[0].top)


def _continued(endpoint: Endpoint, prompt: Prompt, notes: list[str]) -> Endpoint:
    """Find out how to make a chat continue from the beginning of an answer.

    It is tried with one token of an answer, which must make the prompt longer by one token.
    """
    options = {"temperature": 0.0}
    start = endpoint.ask("probe/prefill", Question(prompt.text, 1, options=options))
    token = start.text
    for number, prefill in enumerate(PREFILLS):
        dialect = replace(endpoint.dialect, prefill=prefill)
        question = Question(prompt.text, 1, (token,), options=options)
        trial = replace(endpoint, dialect=dialect)
        try:
            answer = trial.ask(f"probe/prefill/{number}", question)
        except RefusedError:
            continue
        counts = (start.num_prompt_tokens, answer.num_prompt_tokens)
        if counts[0] is not None and counts[1] == counts[0] + 1:
            return trial
    notes.append("chats cannot continue an answer: only the distribution of first tokens is known")
    return replace(endpoint, can_continue=False)


def _neutral(endpoint: Endpoint, prompt: Prompt) -> dict[str, Any]:
    """The plain options, with those neutral options that the endpoint does not refuse."""
    both = {**PLAIN, **NEUTRAL}
    if not _is_refused(endpoint, "probe/neutral", Question(prompt.text, 1, options=both)):
        return both
    plain = dict(PLAIN)
    for name, value in NEUTRAL.items():
        question = Question(prompt.text, 1, options={**plain, name: value})
        if not _is_refused(endpoint, f"probe/neutral/{name}", question):
            plain[name] = value
    return plain


def _is_refused(endpoint: Endpoint, name: str, question: Question) -> bool:
    """Whether the endpoint answers a question with a 4xx error."""
    try:
        endpoint.ask(name, question)
    except RefusedError:
        return True
    return False


def _has_echo(endpoint: Endpoint, prompt: Prompt) -> bool:
    """Whether the endpoint can report the log-probabilities of a prompt's tokens."""
    question = Question(prompt.text, 1, options=endpoint.plain, echoes=True)
    try:
        tokens = endpoint.ask("probe/echo", question).choices[0].tokens or ()
    except RefusedError:
        return False
    text = "".join(token.text for token in tokens[:-1])
    return len(tokens) > 1 and text.endswith(prompt.pieces[-1]) and bool(tokens[-2].top)


def _has_seeds(endpoint: Endpoint, prompt: Prompt, notes: list[str]) -> bool:
    """Whether the endpoint accepts seeds."""
    question = Question(prompt.text, 1, options={**endpoint.plain, "seed": 1})
    try:
        endpoint.ask("probe/seed", question)
    except RefusedError as refusal:
        notes.append(f"seeds are refused ({refusal.reason[:60]})")
        return False
    return True


def token_id(journal: Journal, base: str, model: str | None, text: str) -> int | None:
    """The id of a token, given its text, from /tokenize in vLLM's or llama.cpp's format; else
    None."""
    root = base.removesuffix("/v1")
    bodies: tuple[dict[str, Any], ...] = (
        {"model": model, "prompt": text, "add_special_tokens": False},
        {"content": text},
    )
    for number, body in enumerate(bodies):
        raw = journal.answer(f"tokenize/{number}/{text}", Call("POST", f"{root}/tokenize", body))
        tokens = raw.body.get("tokens") if isinstance(raw.body, dict) else None
        if raw.status == 200 and isinstance(tokens, list) and len(tokens) == 1:
            return int(tokens[0])
    return None
