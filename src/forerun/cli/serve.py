"""`forerun serve`: a model behind OpenAI's API, and a page to watch it work."""

from __future__ import annotations

import argparse
import ipaddress
import json
import os
import re
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forerun import rules
from forerun.base.errors import InputError, MissingExtraError, explain
from forerun.cli import serve_ray
from forerun.cli.flags.shared import flag_of
from forerun.cli.loading import (
    follow,
    is_follower,
    load_drafter,
    load_target,
    settled,
)
from forerun.cli.serve_ray import Loaded
from forerun.loading.bundled import NAME
from forerun.serve.openai.offer import Limits

if TYPE_CHECKING:
    from forerun.serve.admission.keys import Keys

NEEDED = ("starlette", "uvicorn", "prometheus_client")


def run(args: argparse.Namespace) -> int:
    check_extra()
    if is_follower(args.tensor_parallel):
        return follow()
    chosen = check_rules(args.rule, args.rules)
    _check_counts(args)
    serve_ray.check(args)
    check_origins(args.cors_origin)
    from forerun.serve.admission.keys import Keys
    from forerun.serve.http.bounds import Bounds
    from forerun.serve.http.lifecycle import bind
    from forerun.serve.watching.logs import say, set_up

    set_up(is_json=args.log_json)
    keys = None if args.api_key_file is None else Keys.from_file(args.api_key_file)
    bounds = Bounds(args.max_body_mib * 2**20, reader_seconds=args.reader_seconds)
    bound = bind(args.host, args.port, bounds)  # before a model is loaded for nothing
    with bound, ExitStack() as stack:
        names = args.drafter or ["auto"]
        say("loading", model=args.model or NAME, drafters=",".join(names))
        loaded = _load(args, names) if not args.ray else serve_ray.start(args, stack)
        _serve(args, bound, loaded, chosen, keys, bounds)
    return 0


def _load(args: argparse.Namespace, names: Sequence[str]) -> Loaded:
    from forerun.serve.http.assembly import make_server

    drafters = {name: load_drafter(name, args.device, args.dtype) for name in names}
    drafters.setdefault("none", None)
    lean: Any = False if args.no_lean else "auto"
    target = load_target(
        args.model, args.device, args.dtype, lean, args.quantize, args.tensor_parallel
    )
    if args.tensor_parallel is not None:
        target.ranks.on_failure = end_at_once
    by_name = settled(drafters, target)
    make = partial(
        make_server,
        target,
        by_name,
        draft_length=args.draft_length,
        max_batch=args.max_batch,
        slowdown=args.slowdown,
    )
    return Loaded(target.name, list(by_name), args.max_batch, make, pass_of(target))


def _serve(
    args: argparse.Namespace,
    bound: socket.socket,
    loaded: Loaded,
    chosen: Sequence[str],
    keys: Keys | None,
    bounds: Any,
) -> None:
    from forerun.serve.http.lifecycle import Server

    name = args.name or public_name(args.model, loaded.name)
    app, desk = loaded.make(
        rule=args.rule,
        rules=chosen,
        max_queue=args.max_queue,
        keys=keys,
        limits=limits_for(args.max_tokens, loaded.max_batch + args.max_queue),
        bounds=bounds,
        cors_origins=args.cors_origin,
        hosts=hosts_for(args.host, args.allowed_host, has_keys=keys is not None),
        name=name,
    )
    for note in warnings_for(args.host, chosen, has_keys=keys is not None):
        print(f"warning: {note}", file=sys.stderr)
    where, passes = address_of(bound), loaded.passes
    text = welcome(
        name, loaded.drafters, desk.rule, where, has_keys=keys is not None, passes=passes
    )
    Server(
        app, desk, drain_seconds=args.drain_seconds, announce=lambda: print(text, flush=True)
    ).run(sockets=[bound])


def end_at_once(reason: str) -> None:
    """A rank is lost, and with it every engine: end, so that whoever watches starts it again."""
    print(f"forerun serve: {reason}", file=sys.stderr, flush=True)
    os._exit(1)


def limits_for(max_tokens: int | None, num_places: int) -> Limits:
    """What a request may ask for; one with more answers than there are places never gets in."""
    max_choices = min(Limits.max_choices, num_places)
    return Limits(max_tokens=max_tokens, max_choices=max_choices)


def check_extra() -> None:
    """Whether everything is installed, before anything is loaded."""
    from importlib.util import find_spec

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        cure = 'Install it with: pip install "forerun[serve]"'
        received = f"no {', '.join(missing)}"
        raise MissingExtraError(explain("The server is an extra.", received, cure))


def check_rules(rule: str, listed: str | None) -> list[str]:
    """The rules a request may name, the default one first."""
    named = [] if listed is None else [name.strip() for name in listed.split(",")]
    for name in (rule, *named):
        rules.get(name)
    if not rules.get(rule).lossless and rule not in named:
        cure = f"Allow it with --rules {rule}, or use match."
        raise InputError(explain("The rule is lossy, so texts would change.", rule, cure))
    return list(dict.fromkeys([rule, *(named or rules.names(lossless=True))]))


def _check_counts(args: argparse.Namespace) -> None:
    for name, least in (
        ("max_batch", 1),
        ("max_queue", 0),
        ("max_tokens", 1),
        ("max_body_mib", 1),
        ("drain_seconds", 0),
        ("reader_seconds", 1),
        ("draft_length", 0),
    ):
        value = getattr(args, name)
        if isinstance(value, int) and value < least:
            raise InputError(
                explain(f"{flag_of(name)} is too small.", value, f"Use {least} or more.")
            )
    if not args.slowdown >= 1:
        cure = "Use 1 or more; 1 reads a prompt a token at a time beside answers."
        raise InputError(explain("--slowdown is too small.", args.slowdown, cure))
    if not 0 <= args.port < 2**16:
        cure = "Use a number from 0 to 65535."
        raise InputError(explain("There is no such port.", args.port, cure))


def check_origins(origins: Sequence[str]) -> None:
    """Whether these are origins as browsers write them; others would never match."""
    for origin in origins:
        if origin != "*" and not re.fullmatch(r"https?://[^/\s?#@]+", origin):
            cure = "Write it as browsers do, like https://chat.example.org, or * for all."
            raise InputError(explain("--cors-origin is no origin.", origin, cure))


def warnings_for(host: str, chosen: Sequence[str], *, has_keys: bool) -> list[str]:
    """What whoever starts a server should know."""
    notes = []
    if not is_loopback(host) and not has_keys:
        notes.append(
            f"everybody who can reach {host} can use this server; --api-key-file asks for keys"
        )
    lossy = [name for name in chosen if not rules.get(name).lossless]
    if lossy:
        notes.append(f"requests may ask for lossy rules, which change the text: {', '.join(lossy)}")
    return notes


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def hosts_for(host: str, allowed: Sequence[str], *, has_keys: bool) -> list[str]:
    """The names a server answers to; none for any.

    A page in a browser can make its own name lead to a loopback address; only a name it cannot
    have, or a key, keeps it out there.
    """
    if has_keys or not is_loopback(host):
        return list(allowed)
    return ["localhost", "127.0.0.1", "::1", host, *allowed]


def public_name(model: str | None, name: str) -> str:
    """A model's id for clients: of a folder only its last part, since paths are nobody's business.

    model: as it was named on the command line.  name: the loaded model's.
    """
    if model is None or not Path(model).is_dir():
        return name
    return Path(model).resolve().name + (name.removeprefix(model) if model in name else "")


def address_of(bound: socket.socket) -> str:
    """Where to reach a server on this machine."""
    host, port = bound.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "127.0.0.1" if bound.family == socket.AF_INET else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def pass_of(target: Any) -> str:
    """Which pass runs, for how many tokens there is room, and why it is not the lean pass."""
    parts = [getattr(target, "pass_name", "")]
    if tokens := getattr(target, "num_tokens_free", None):
        parts.append(f"room for {tokens:,} tokens of all requests together")
    if reason := getattr(target, "why_not_lean", ""):
        parts.append(f"not the lean pass: {reason}")
    return "; ".join(filter(None, parts))


def welcome(
    model: str,
    drafters: Sequence[str],
    rule: str,
    address: str,
    *,
    has_keys: bool,
    passes: str = "",
) -> str:
    """The text that a server prints when it is ready."""
    messages = [{"role": "user", "content": "Hello!"}]
    body = {"model": model, "messages": messages, "max_tokens": 64}
    key = ' -H "Authorization: Bearer $KEY"' if has_keys else ""
    return (
        f"Serving {model}; drafters {', '.join(drafters)}; rule {rule}\n"
        f"{f'  pass  {passes}' + chr(10) if passes else ''}"
        f"  page  {address}/\n"
        f"  API   {address}/v1\n"
        f"  try   curl {address}/v1/chat/completions{key} "
        f"-H 'Content-Type: application/json' -d '{json.dumps(body)}'"
    )
