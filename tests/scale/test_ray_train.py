"""Collecting from workers that may die, without Ray; `test_ray_jobs.py` has it with."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pretended_ray import PretendedRay
from tiny_heads import tiny_llama
from tiny_training import save_prompts, save_target, tiny_tokenizer

from forerun.base.errors import InputError, UnsupportedError
from forerun.cli import main
from forerun.drafters.heads.fingerprint import Fingerprint
from forerun.scale import ray_cluster, ray_train
from forerun.scale.ray_cluster import Share, share_of_cluster
from forerun.scale.ray_train import MOST_DEATHS, NoWorkersError, TrainingOnRay, Workers
from forerun.train.chat import Chat
from forerun.train.collection import Collection, collect
from forerun.train.shards import list_shards, read
from forerun.train.stages import Assignment, Scale

PROMPTS = [f"w{i} w{i * 7 % 57}" for i in range(1, 11)]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def tiny_target(seed: int = 1) -> Any:
    model = tiny_llama(seed=seed, num_hidden_layers=1)
    return SimpleNamespace(model=model, name="tiny", tokenizer=tiny_tokenizer())


def workers_on(
    ray: PretendedRay,
    folder: Path,
    notes: list[str],
    prompts: list[str] = PROMPTS,
    num_workers: int = 2,
) -> tuple[Workers, Collection]:
    target = tiny_target()
    chat = Chat.of(target.tokenizer)
    collection = Collection(folder, [chat.ask(prompt) for prompt in prompts])
    scales = [Scale(3, 48, 0.6), Scale(1, 60, 0.4)]
    seed = 1000 * collection.num_shards
    work = Assignment(prompts, collection.asked, [2], scales, 20, seed)
    spread = TrainingOnRay(tiny_target, num_workers, Share(1, 0), notes.append)
    fingerprint = Fingerprint.of(target.model, "tiny")
    return Workers(ray, spread, work, collection, fingerprint), collection


def gathered(
    ray: PretendedRay, folder: Path, num_answer_tokens: int = 300, **options: Any
) -> list[str]:
    """Collect; returns what was told."""
    notes: list[str] = []
    source, collection = workers_on(ray, folder, notes, **options)
    with source:
        collect(
            source,
            collection,
            num_answer_tokens=num_answer_tokens,
            seconds=float("inf"),
            report=lambda gained: None,
        )
    assert not any(actor.is_alive for actor in ray.actors)
    return notes


def texts_in(folder: Path) -> list[tuple[int, ...]]:
    return [tuple(text.tokens.tolist()) for file in list_shards(folder) for text in read(file)]


def assignments(ray: PretendedRay) -> list[Assignment]:
    return [actor.arguments[1] for actor in ray.actors]


def test_workers_share_the_prompts_and_no_seed(tmp_path: Path) -> None:
    ray = PretendedRay(2)
    assert gathered(ray, tmp_path) == []
    first, second = assignments(ray)
    assert sorted([*first.prompts, *second.prompts]) == sorted(PROMPTS)
    assert first.seed != second.seed
    assert all(actor.num_calls > 1 for actor in ray.actors)
    assert ray.most_calls == 2  # what has not been taken is bounded: a call for each worker
    texts = texts_in(tmp_path)
    assert len(set(texts)) == len(texts) > 8


def test_a_worker_that_dies_is_replaced_and_nothing_comes_twice(tmp_path: Path) -> None:
    ray = PretendedRay(2)
    ray.deaths = {0: 4, 2: 6}
    notes = gathered(ray, tmp_path, 900)
    assert notes == ["note: a worker was lost (Its process was killed)"] * 2
    first, other, second, third = assignments(ray)
    assert first.prompts == second.prompts == third.prompts != other.prompts
    assert sum(first.asked) == 0 < sum(second.asked) < sum(third.asked)
    assert len({work.seed for work in assignments(ray)}) == 4
    texts = texts_in(tmp_path)
    assert len(set(texts)) == len(texts)


def test_a_resumed_run_has_other_seeds_and_knows_what_was_asked(tmp_path: Path) -> None:
    seeds = set()
    for run, num_workers in enumerate((2, 3, 1)):
        ray = PretendedRay(3)
        gathered(ray, tmp_path, 150 * (run + 1), num_workers=num_workers)
        seeds |= {work.seed for work in assignments(ray)}
        assert (sum(sum(work.asked) for work in assignments(ray)) > 0) == (run > 0)
    assert len(seeds) == 2 + 3 + 1
    assert len(list_shards(tmp_path)) == 3
    texts = texts_in(tmp_path)
    assert len(set(texts)) == len(texts)


def test_long_and_short_prompts_go_to_every_worker(tmp_path: Path) -> None:
    """Six that do not fit beside six that do: every worker has one that does."""
    prompts = [text for i in range(1, 7) for text in (f"w{i}", " ".join([f"w{i}"] * 70))]
    ray = PretendedRay(6)
    gathered(ray, tmp_path, 200, prompts=prompts, num_workers=6)
    assert all(min(map(len, work.prompts)) == 2 for work in assignments(ray))


class Shrinking(PretendedRay):
    """A machine that has fewer cores after each death."""

    def get(self, call: Any) -> Any:
        if call.actor.num_calls == call.actor.die_at:
            self.num_cores -= 1
        return super().get(call)


def test_without_room_for_another_the_others_go_on(tmp_path: Path) -> None:
    ray = Shrinking(2)
    ray.deaths = {0: 1}
    assert len(gathered(ray, tmp_path)) == 1
    assert len(ray.actors) == 2
    assert ray.actors[1].num_calls > ray.actors[0].num_calls


def test_when_none_is_left_it_ends_and_goes_on_later(tmp_path: Path) -> None:
    ray = Shrinking(2)
    ray.deaths = {0: 5, 1: 7}
    with pytest.raises(NoWorkersError, match=r"was killed.*goes on where it was"):
        gathered(ray, tmp_path, 10_000)
    before = texts_in(tmp_path)
    assert before
    gathered(PretendedRay(2), tmp_path, 600)
    after = texts_in(tmp_path)
    assert after[: len(before)] == before
    assert len(set(after)) == len(after) > len(before)


def test_workers_that_cannot_start_do_not_hang_it(tmp_path: Path) -> None:
    """Their machine goes away while they wait for it."""
    ray = PretendedRay(2)
    source, _ = workers_on(ray, tmp_path, [])
    source._fill()
    ray.num_cores = 0
    with pytest.raises(NoWorkersError, match="no machine with room"):
        source.play()


def test_workers_that_die_whatever_they_do_are_given_up(tmp_path: Path) -> None:
    ray = PretendedRay(2)
    ray.deaths = dict.fromkeys(range(100), 0)
    with pytest.raises(NoWorkersError, match="was killed"):
        gathered(ray, tmp_path)
    assert len(ray.actors) == 2 * MOST_DEATHS
    one = PretendedRay(2)
    one.deaths = {number: 0 for number in range(100) if number != 1}
    gathered(one, tmp_path)
    assert len(one.actors) == 1 + MOST_DEATHS


def test_deaths_far_apart_are_not_held_against_a_place(tmp_path: Path) -> None:
    ray = PretendedRay(1)
    ray.deaths = dict.fromkeys(range(2 * MOST_DEATHS), 2)
    gathered(ray, tmp_path, num_workers=1)
    assert len(ray.actors) == 2 * MOST_DEATHS + 1


def test_an_error_of_a_worker_is_the_error_it_would_be_here(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"fits the 48 tokens") as caught:
        gathered(PretendedRay(1), tmp_path, prompts=[" ".join(["w1"] * 70)], num_workers=1)
    assert "Traceback" not in str(caught.value)


def test_a_worker_with_another_model_is_refused(tmp_path: Path) -> None:
    ray = PretendedRay(1)
    source, _ = workers_on(ray, tmp_path, [], num_workers=1)
    source._spread = TrainingOnRay(partial(tiny_target, 8), 1, Share(1, 0), print)
    with pytest.raises(UnsupportedError, match="another model than the one here"):
        source.play()


def test_more_workers_than_prompts(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="3 workers, 2 prompts"):
        gathered(PretendedRay(3), tmp_path, prompts=PROMPTS[:2], num_workers=3)


def test_workers_that_fit() -> None:
    ray = PretendedRay(9, 2)
    assert Share(2, 0).count_in(ray.nodes()) == 4
    assert Share(2, 1).count_in(ray.nodes()) == 2
    assert Share(5, 1).count_in(ray.nodes()) == 1
    assert share_of_cluster(ray, 2, None) == Share(4, 1)
    assert share_of_cluster(ray, 3, "cpu") == Share(3, 0)
    with pytest.raises(InputError, match=r"too small.*3 workers for 2 GPUs"):
        share_of_cluster(ray, 3, None)
    with pytest.raises(InputError, match=r"too small.*10 workers for 9 cores"):
        share_of_cluster(ray, 10, "cpu")
    with pytest.raises(InputError, match="too few workers"):
        share_of_cluster(ray, 0, None)


@pytest.mark.slow
def test_the_command_ends_when_none_is_left_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    prompts, out = save_prompts(tmp_path / "prompts.jsonl", 12), tmp_path / "out"
    words = ["train", save_target(tmp_path / "target"), "--prompts", prompts, "--out", str(out)]
    words += ["--device", "cpu", "--rows", "4", "--draft-vocab", "48", "--ray", "--workers", "2"]
    words += ["--answer-tokens", "200", "--data-only"]

    def on(ray: PretendedRay) -> int:
        for module in (ray_cluster, ray_train):
            monkeypatch.setattr(module, "start_ray", lambda: ray)
        return main(words)

    dying = Shrinking(2)
    dying.deaths = {0: 2, 1: 4}
    assert on(dying) != 0
    assert "No worker is left on Ray" in capfd.readouterr().err
    before = texts_in(out / "data")
    assert before
    assert on(PretendedRay(2)) == 0
    after = texts_in(out / "data")
    assert len(set(after)) == len(after) > len(before)
    nobody = PretendedRay(2)
    assert on(nobody) == 0
    assert nobody.actors == []  # there is enough


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--workers", "2"], "--workers are those of a Ray cluster"),
        (["--ray"], 'pip install "forerun[ray]"'),
    ],
)
def test_bad_options_are_told_before_a_model_is_loaded(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    options: list[str],
    told: str,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "pandas", None)
    prompts = save_prompts(tmp_path / "prompts.jsonl")
    words = ["train", "no/such/model", "--prompts", prompts, "--out", str(tmp_path / "out")]
    assert main([*words, *options]) == 2
    assert told in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


def test_answers_that_are_there_are_not_collected_on_ray(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    target = save_target(tmp_path / "target")
    words = ["train", target, "--from-data", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main([*words, "--ray"]) == 2
    assert "--ray is for collecting answers" in capfd.readouterr().err
