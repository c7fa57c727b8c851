"""Replicas on Ray in processes of their own: texts, deaths, full queues, bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from processes import ServerProcess, Stream, chat_body, save_tiny, server
from replicas import descendants, kill_one, replica_pids, wait_until_gone
from serving import tiny_llama

import forerun as fr

pytestmark = pytest.mark.ray

LENGTH = 300
PATIENCE = 300.0
"""Seconds to wait for what takes a few on a machine that does nothing else."""
DRAFTERS = ["ngram", "suffix", "none"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def two(tiny: str) -> Iterator[ServerProcess]:
    words = ["--ray", "--replicas", "2", "--replica-cpus", "0.5", "--no-lean", "--max-queue", "4"]
    drafters = ["--drafter", "ngram", "--drafter", "suffix"]
    with server(tiny, *words, *drafters, seconds=600) as process:
        yield process
        assert process.stop(seconds=PATIENCE) == 0
        wait_until_gone(app_of(process), PATIENCE)


def app_of(process: ServerProcess) -> str:
    """How the titles of its replicas go on, and of no other server's."""
    return f"forerun-{process.process.pid}:"


def text_of(seed: int, max_tokens: int = LENGTH) -> str:
    """What `generate` says without a server."""
    messages = chat_body()["messages"]
    sampling = fr.Sampling(temperature=0.8, seed=seed)
    (answer,) = fr.generate(tiny_llama(), [messages], sampling=sampling, max_new_tokens=max_tokens)
    assert answer.text is not None
    return answer.text


def options(seed: int, **more: Any) -> dict[str, Any]:
    drafter = DRAFTERS[seed % len(DRAFTERS)]
    return {"seed": seed, "max_tokens": LENGTH, "speculation": {"drafter": drafter}, **more}


def test_texts_are_those_of_generate(two: ServerProcess) -> None:
    for seed in range(6):
        assert two.text(**options(seed)) == text_of(seed)


def test_a_next_turn_goes_to_the_replica_that_has_the_last_one(two: ServerProcess) -> None:
    """By chance all eight would with odds of 1 in 256."""
    for number in range(8):
        prompt = [(number + 3) * place % 300 + 1 for place in range(40)]
        body = {"prompt": prompt, "max_tokens": 24, "ignore_eos": True, "fates": True, "seed": 1}
        _, _, first = two.ask("/v1/completions", body)
        prompt += [*first["choices"][0]["token_ids"], 5, 6, 7]
        _, _, second = two.ask("/v1/completions", {**body, "prompt": prompt, "max_tokens": 1})
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= 40


def test_replicas_die_under_streams_and_texts_go_on(two: ServerProcess) -> None:
    seeds = range(8)
    expected = [text_of(seed) for seed in seeds]
    streams = [two.stream(**options(seed)) for seed in seeds]
    for stream in streams:
        stream.read_events(2)
    killed = [kill_one(app_of(two), PATIENCE) for _ in range(2)]
    with ThreadPoolExecutor(len(streams)) as clients:
        texts = list(clients.map(Stream.read_all, streams))
    assert len(set(killed)) == 2
    assert texts == expected
    metrics = urllib.request.urlopen(f"http://127.0.0.1:{two.port}/metrics").read().decode()
    seen: defaultdict[str, float] = defaultdict(float)  # by name, whatever the labels
    for line in metrics.splitlines():
        if line[0] != "#":
            name, value = line.rsplit(" ", 1)
            seen[name.partition("{")[0]] += float(value)
    assert seen["forerun:engine_restarts_total"] >= 1
    assert "forerun:num_requests_running" in seen
    assert seen["forerun:num_requests_running"] == 0
    assert seen["forerun:generation_tokens_total"] > 8 * 10


def test_a_client_that_leaves_frees_its_row(two: ServerProcess) -> None:
    stream = two.stream(**options(0, ignore_eos=True, max_tokens=400))
    stream.read_events(3)
    stream.leave()
    two.wait_until_idle(PATIENCE)


def test_too_many_requests_are_told_when_to_come_back(two: ServerProcess) -> None:
    """Two replicas with eight rows each, and four places to wait."""
    streams = [two.stream(**options(0, ignore_eos=True, max_tokens=400, n=10)) for _ in range(2)]
    for stream in streams:
        stream.read_events(1)
    status, headers, answer = two.ask(body=chat_body())
    for stream in streams:
        stream.leave()
    assert status == 429
    assert answer["error"]["code"] == "queue_full"
    assert int(headers["retry-after"]) >= 1
    two.wait_until_idle(PATIENCE)


def test_a_replica_that_is_stopped_holds_up_no_stream_for_long(two: ServerProcess) -> None:
    """It is there and does nothing: others write its answers, and deadlines end the rest."""
    streams = [two.stream(**options(seed)) for seed in range(4)]
    for stream in streams:
        stream.read_events(2)
    (stopped, _) = replica_pids(app_of(two))
    os.kill(stopped, signal.SIGSTOP)
    try:
        began = time.monotonic()
        late = two.stream(**options(1, ignore_eos=True, max_tokens=400, timeout=3))
        with ThreadPoolExecutor(5) as clients:
            texts = list(clients.map(Stream.read_all, [*streams, late]))
        assert time.monotonic() - began < 60
        assert texts[:4] == [text_of(seed) for seed in range(4)]
    finally:
        with suppress(ProcessLookupError):  # Ray may have replaced it
            os.kill(stopped, signal.SIGCONT)


@pytest.mark.slow
def test_the_server_ends_in_time_although_ray_is_gone(tiny: str) -> None:
    words = ["--ray", "--replica-cpus", "0.5", "--no-lean", "--drafter", "ngram"]
    with server(tiny, *words, seconds=600) as process:
        theirs = descendants(process.process.pid)
        assert len(theirs) > 3
        for pid in theirs:
            os.kill(pid, signal.SIGSTOP)
        try:
            process.stop(seconds=40)
        finally:
            for pid in theirs:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_an_application_for_ones_own_cluster(tiny: str, tmp_path: Path) -> None:
    """`deployment` behind Ray's own HTTP proxies, as a config file makes it."""
    args = {"model": tiny, "drafters": ["ngram"], "replicas": 2, "num_cpus": 0.5, "name": "tiny"}
    script = tmp_path / "own.py"
    script.write_text(OWN.format(args=args, seeds=[1, 2], length=LENGTH))
    done = run([sys.executable, str(script)])
    assert done.returncode == 0, done.stderr[-3000:]
    (told,) = (line for line in done.stdout.splitlines() if line.startswith('["'))  # Ray logs too
    texts = json.loads(told)
    assert texts == [text_of(seed) for seed in (1, 2)]


OWN = """
import json, socket, urllib.request
import ray
from ray import serve
from forerun.scale.ray import application
from replicas import kill_one

ray.init(include_dashboard=False)
with socket.socket() as taken:
    taken.bind(("127.0.0.1", 0))
    port = taken.getsockname()[1]
serve.start(http_options={{"host": "127.0.0.1", "port": port}})
serve.run(application({args!r}), name="forerun", route_prefix="/")
texts = []
for seed in {seeds}:
    body = {{"messages": [{{"role": "user", "content": "the quick brown fox"}}], "seed": seed,
            "max_tokens": {length}, "temperature": 0.8, "stream": True}}
    request = urllib.request.Request(
        f"http://127.0.0.1:{{port}}/v1/chat/completions", json.dumps(body).encode(),
        {{"Content-Type": "application/json"}})
    text, count = "", 0
    with urllib.request.urlopen(request, timeout=300) as response:
        for line in response:
            if line.startswith(b"data: {{"):
                delta = json.loads(line[6:])["choices"][0]["delta"]
                text += delta.get("content") or ""
                count += 1
                if count == 5 and seed > 1:
                    kill_one("forerun:", 300.0)
    texts.append(text)
print(json.dumps(texts))
serve.shutdown()
"""


def run(command: list[str], seconds: float = 600.0) -> subprocess.CompletedProcess[str]:
    source = str(Path(fr.__file__).parents[1])
    shared = str(Path(__file__).parent)
    path = os.pathsep.join([source, shared])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    environment["RAY_SERVE_MAX_PER_REPLICA_RETRY_COUNT"] = "1"  # one that fails, fails
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["no/such/model"], "could be loaded"),
        (["--replica-gpus", "64"], "too few GPUs"),
        (["--ready-seconds", "1"], "not ready after 1 seconds"),
    ],
)
def test_replicas_that_cannot_be(tiny: str, words: list[str], told: str) -> None:
    model = [] if not words[0].startswith("--") else [tiny]
    command = [sys.executable, "-m", "forerun.cli", "serve", *model, *words, "--port", "0", "--ray"]
    done = run(command)
    assert done.returncode == 2, done.stderr[-3000:]
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("forerun serve: ")
    assert told in last
