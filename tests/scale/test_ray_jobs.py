"""On a real Ray of this machine: a job, a pipeline and a sweep, equal to those without; answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from processes import save_tiny
from replicas import kill_descendant
from tiny_training import save_prompts, save_target

from forerun.batch.answerer import WorkerSettings
from forerun.batch.batch import batch
from forerun.batch.batch_input import Input
from forerun.cli import main
from forerun.train.collection import Collection, count_answers
from forerun.train.shards import Spoken, list_shards
from forerun.train.shards import read as read_shard

pytestmark = pytest.mark.ray
DEFAULTS = {"max_tokens": 8, "temperature": 0.8}


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    import ray
    import ray.data

    ray.init(num_cpus=2, include_dashboard=False)
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


def read(path: Path) -> list[Any]:
    lines = [json.loads(line) for line in path.open()]
    for line in lines:
        if line["response"] is not None:
            del line["response"]["body"]["created"]
    return lines


def test_a_job_on_ray_is_the_job_without(ray: Any, tmp_path: Path, tiny_model: str) -> None:
    from forerun.scale.ray_data import answers_on_ray

    path = tmp_path / "in.jsonl"
    texts = [json.dumps({"prompt": f"the cat sat on mat {i}"}) for i in range(40)]
    path.write_text("\n".join([*texts[:20], "{", *texts[20:]]))
    source = Input(path, defaults=DEFAULTS)
    settings = WorkerSettings(model=tiny_model, name="tiny", drafter="ngram", max_batch=4)
    here = batch(source, tmp_path / "here", settings)
    there = batch(
        source, tmp_path / "there", settings, answers=partial(answers_on_ray, num_workers=2)
    )
    assert (here.num_failed, there.num_failed) == (1, 1)
    assert there.counts.new_tokens == here.counts.new_tokens
    assert read(there.output) == read(here.output)


@pytest.mark.slow
def test_a_pipeline_adds_texts_to_rows(ray: Any, tiny_model: str) -> None:
    from forerun.scale.ray_data import map_batches

    rows = [{"prompt": f"the cat {i}", "mine": i} for i in range(20)]
    rows.append({"prompt": "", "mine": 20})
    tables = []
    for workers in (1, 2):
        dataset = ray.data.from_items(rows, override_num_blocks=4)
        answered = map_batches(dataset, tiny_model, workers=workers, **DEFAULTS).take_all()
        tables.append({row["mine"]: (row["text"], row["error"]) for row in answered})
    assert tables[0] == tables[1]
    assert sorted(tables[0]) == list(range(21))
    assert all(text for text, error in list(tables[0].values())[:20] if error is None)


def test_more_workers_than_there_are_cores(
    ray: Any, tmp_path: Path, tiny_model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "a"}\n')
    words = ["batch", str(source), "--out", str(tmp_path / "out"), "--model", tiny_model]
    assert main([*words, "--ray", "--workers", "99"]) == 2
    assert "99 workers for 2 cores" in capsys.readouterr().err


def test_a_sweep_on_ray_measures_every_cell(ray: Any, tmp_path: Path, tiny_model: str) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"the cat sat {i}"}) + "\n" for i in range(6)))
    words = ["sweep", tiny_model, "--drafter", "ngram", "--draft-length", "0,2", "--per-group", "6"]
    words += ["--prompts", str(prompts), "--max-new-tokens", "8", "--no-predict", "--out"]
    assert main([*words, str(tmp_path / "ray"), "--ray"]) == 0
    assert main([*words, str(tmp_path / "here")]) == 0

    def digests(name: str) -> set[tuple[Any, ...]]:
        lines = [json.loads(line) for line in (tmp_path / name / "sweep.jsonl").open()]
        runs = [line for line in lines if line["kind"] == "run"]
        assert len(runs) == 12
        return {
            (run["cell"]["draft_length"], answer["prompt"], answer["digest"])
            for run in runs
            for answer in run["answers"]
        }

    assert digests("ray") == digests("here")


def test_answers_are_collected_though_a_worker_dies(
    ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Killed with -9 once answers have come; later one worker goes on, and there is training."""
    prompts, out = save_prompts(tmp_path / "prompts.jsonl"), tmp_path / "out"
    words = ["train", save_target(tmp_path / "target"), "--prompts", prompts, "--out", str(out)]
    words += ["--device", "cpu", "--rows", "4", "--draft-vocab", "48", "--ray"]
    killed: list[int] = []
    add = Collection.add

    def add_and_kill(self: Collection, spoken: list[Spoken]) -> int:
        gained = add(self, spoken)
        if not killed and self.num_answer_tokens > 300:
            killed.append(kill_descendant("ray::_Worker"))
        return gained

    with monkeypatch.context() as patched:
        patched.setattr(Collection, "add", add_and_kill)
        assert main([*words, "--workers", "2", "--answer-tokens", "3000", "--data-only"]) == 0
    assert len(killed) == 1
    assert "a worker was lost" in capfd.readouterr().err
    assert main([*words, "--answer-tokens", "3500", "--steps", "2"]) == 0
    assert (out / "heads.json").exists()
    shards = [read_shard(file) for file in list_shards(out / "data")]
    assert [count_answers(shard) > 0 for shard in shards] == [True, True]
    assert count_answers(shards[0]) >= 3000
    assert sum(map(count_answers, shards)) >= 3500
    texts = [tuple(text.tokens.tolist()) for shard in shards for text in shard]
    assert len(set(texts)) == len(texts)


def test_more_workers_to_collect_than_there_are_cores(
    ray: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    prompts = save_prompts(tmp_path / "prompts.jsonl")
    words = ["train", "no/such/model", "--prompts", prompts, "--out", str(tmp_path / "out")]
    for workers, told in (("99", "99 workers for 2 cores"), ("0", "too few workers")):
        assert main([*words, "--device", "cpu", "--ray", "--workers", workers]) == 2
        assert told in capfd.readouterr().err
    assert not (tmp_path / "out").exists()
