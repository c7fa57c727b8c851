"""What the server counts: from the calls of a desk to the text that Prometheus reads."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open
from prometheus_client.parser import text_string_to_metric_families as read_text

from clocks import StillClock
from forerun.engine.results import Fate, Generation, Piece, Stats
from forerun.serve.watching.metrics import LAST_POSITION, MAX_LABELS, MODEL, Metrics

PROMETHEUS = "application/openmetrics-text;version=1.0.0;escaping=underscores;q=0.5,*/*;q=0.1"


@dataclass
class Desk:
    num_running: int = 3
    num_waiting: int = 2
    num_rows: int = 4


def stats_of(*rounds: tuple[int, int]) -> Stats:
    """Rounds of (drafted, accepted), each of ten seconds: 1 drafting, 4 + 3 + 2 of the rest."""
    stats = Stats()
    for drafted, accepted in rounds:
        stats.count_round(drafted, drafted, accepted, accepted < drafted, accepted + 1)
        stats.count_seconds(1.0, 4.0, 3.0, 2.0)
    return stats


def piece_of(num_tokens: int) -> Piece:
    return Piece([], [7] * num_tokens, [Fate.BONUS] * num_tokens)


def answer_of(stats: Stats, reason: str = "stop") -> Generation:
    return Generation([1, 2, 3], [7] * stats.emitted, None, reason, 0, stats, [])


def values(metrics: Metrics) -> dict[str, float]:
    """Samples by name and labels, without the prefix and the model."""
    text = metrics.exposition()[0].decode()
    return {
        "".join([sample.name.removeprefix("forerun:"), *labels]): sample.value
        for family in read_text(text)
        for sample in family.samples
        for labels in [[f"[{value}]" for name, value in sample.labels.items() if name != MODEL]]
    }


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def metrics(clock: StillClock) -> Metrics:
    return Metrics(model="tiny", clock=clock)


def test_speculation_is_counted_as_in_vllm(metrics: Metrics) -> None:
    metrics.received("a", "/v1/completions")
    metrics.ended("a", [answer_of(stats_of((0, 0), (4, 2), (3, 3)))])
    seen = values(metrics)
    assert seen["spec_decode_num_drafts_total"] == 2
    assert seen["spec_decode_num_draft_tokens_total"] == 7
    assert seen["spec_decode_num_accepted_tokens_total"] == 5
    by_position = [
        seen[f"spec_decode_num_accepted_tokens_per_pos_total[{place}]"] for place in "012"
    ]
    assert by_position == [2, 2, 1]
    assert seen["draft_length_count"] == 3
    assert seen["draft_length_sum"] == 7
    assert seen["stage_seconds_total[score]"] == 12


def test_rounds_are_counted_once_while_an_answer_goes_on(metrics: Metrics) -> None:
    """With stats at each piece the counters move before the end, and the end adds the rest."""
    stats = stats_of((4, 2))
    metrics.received("a", "/v1/completions")
    metrics.piece("a", 0, piece_of(3), stats)
    assert values(metrics)["spec_decode_num_draft_tokens_total"] == 4
    for _ in range(2):
        stats.count_round(3, 3, 1, True, 2)
        stats.count_seconds(1.0, 4.0, 3.0, 2.0)
    metrics.piece("a", 0, piece_of(4), stats)
    metrics.ended("a", [answer_of(stats)])
    seen = values(metrics)
    assert seen["spec_decode_num_draft_tokens_total"] == 10
    assert seen["generation_tokens_total[]"] == 7


def test_an_answer_that_went_on_in_another_engine_counts_both(metrics: Metrics) -> None:
    """Its last stats are of both, and have a round more."""
    metrics.received("a", "/v1/completions")
    metrics.piece("a", 0, piece_of(3), stats_of((4, 2)))
    metrics.piece("a", 0, piece_of(6), stats_of((5, 5)))
    metrics.ended("a", [answer_of(stats_of((4, 2), (5, 5), (3, 0)))])
    seen = values(metrics)
    assert seen["spec_decode_num_draft_tokens_total"] == 12
    assert seen["spec_decode_num_accepted_tokens_total"] == 7


def test_an_aborted_answer_keeps_what_was_counted(metrics: Metrics) -> None:
    """One that no engine ended has empty stats and no tokens."""
    metrics.received("a", "/v1/completions")
    metrics.piece("a", 0, piece_of(3), stats_of((4, 2)))
    metrics.ended("a", [answer_of(Stats(), "aborted")])
    seen = values(metrics)
    assert seen["spec_decode_num_draft_tokens_total"] == 4
    assert seen["generation_tokens_total[]"] == 3


def test_latencies(metrics: Metrics, clock: StillClock) -> None:
    clock.pass_by(10.0)
    metrics.received("a", "/v1/completions", seconds=0.25)  # since its headers arrived
    clock.pass_by(0.25)
    metrics.started("a")
    clock.pass_by(1.5)
    metrics.piece("a", 0, piece_of(1))
    clock.pass_by(0.25)
    metrics.piece("a", 0, piece_of(0))  # text that was held back, or a prompt being read
    clock.pass_by(0.25)
    metrics.piece("a", 0, piece_of(5))
    clock.pass_by(1.0)
    metrics.ended("a", [answer_of(stats_of((5, 5)))])
    seen = values(metrics)
    assert seen["request_queue_time_seconds_sum"] == 0.5
    assert seen["time_to_first_token_seconds_sum"] == 2.0
    assert seen["inter_piece_latency_seconds_sum"] == 0.5
    assert seen["inter_piece_latency_seconds_count"] == 1
    assert seen["inter_token_latency_seconds_sum"] == pytest.approx(0.5)
    assert seen["inter_token_latency_seconds_count"] == 5
    assert seen["inter_token_latency_seconds_bucket[0.1]"] == 5
    assert seen["e2e_request_latency_seconds_sum"] == 3.5


def test_two_choices_have_pauses_of_their_own(metrics: Metrics, clock: StillClock) -> None:
    metrics.received("a", "/v1/completions")
    metrics.piece("a", 0, piece_of(1))
    clock.pass_by(1.0)
    metrics.piece("a", 1, piece_of(1))
    clock.pass_by(1.0)
    metrics.piece("a", 0, piece_of(1))
    seen = values(metrics)
    assert seen["inter_piece_latency_seconds_sum"] == 2
    assert seen["inter_piece_latency_seconds_count"] == 1
    assert seen["time_to_first_token_seconds_count"] == 1


def test_ends_refusals_failures_and_restarts(metrics: Metrics) -> None:
    for request_id, reason in (("a", "stop"), ("b", "aborted"), ("c", "stop")):
        metrics.received(request_id, "/v1/responses", "team-x")
        metrics.ended(request_id, [answer_of(stats_of((0, 0)), reason)])
    metrics.received("d", "/v1/responses", "team-x")
    metrics.failed("d", "model")
    metrics.received("e", "/v1/responses", "team-x")
    metrics.refused("queue_full", "e")
    metrics.refused("key")
    metrics.engine_restarted()
    seen = values(metrics)
    assert seen["requests_total[team-x][/v1/responses]"] == 5
    assert seen["request_success_total[stop]"] == 2
    assert seen["request_success_total[aborted]"] == 1
    assert seen["request_failure_total[model]"] == 1
    assert seen["request_refused_total[queue_full]"] == 1
    assert seen["request_refused_total[key]"] == 1
    assert seen["engine_restarts_total"] == 1
    assert seen["prompt_tokens_total[team-x]"] == 9
    assert metrics.num_open == 0


def test_what_was_not_received_is_not_counted(metrics: Metrics) -> None:
    """A piece that comes after the end, for instance, opens nothing."""
    metrics.piece("a", 0, piece_of(2))
    metrics.ended("a", [answer_of(stats_of((4, 2)))])
    assert "generation_tokens_total[]" not in values(metrics)
    assert metrics.num_open == 0


def test_gauges_are_read_when_asked_for(metrics: Metrics) -> None:
    assert values(metrics)["num_requests_running"] == 0
    desk = Desk()
    metrics.watch(desk)
    desk.num_running = 5
    seen = values(metrics)
    assert seen["num_requests_running"] == 5
    assert seen["num_requests_waiting"] == 2
    assert seen["num_batch_rows"] == 4


def test_labels_are_bounded(metrics: Metrics) -> None:
    for number in range(MAX_LABELS + 50):
        metrics.received(f"request-{number}", "/v1/completions", f"owner-{number}")
        metrics.ended(f"request-{number}", [answer_of(stats_of((60, 50)))])
    seen = values(metrics)
    assert sum(name.startswith("generation_tokens_total") for name in seen) == MAX_LABELS + 1
    assert seen["requests_total[other][/v1/completions]"] == 50
    positions = [name for name in seen if "per_pos_total" in name]
    assert len(positions) == LAST_POSITION + 1
    assert not any("request-" in name for name in seen)


def test_stats_of_the_last_seconds(metrics: Metrics, clock: StillClock) -> None:
    metrics.watch(Desk())
    idle = {"tokens_per_second": 0, "acceptance_rate": None, "mean_draft_length": None}
    busy = {"running": 3, "waiting": 2, "batch_rows": 4, "acceptance_alarm": None}
    assert metrics.summary() == idle | busy
    metrics.received("a", "/v1/completions")
    stats = stats_of((0, 0))
    metrics.piece("a", 0, piece_of(1), stats)
    for _ in range(4):  # two seconds
        clock.pass_by(0.5)
        stats.count_round(4, 4, 2, True, 3)
        stats.count_seconds(1.0, 4.0, 3.0, 2.0)
        metrics.piece("a", 0, piece_of(3), stats)
    shown = {"tokens_per_second": 13 / 2, "acceptance_rate": 0.5, "mean_draft_length": 16 / 5}
    assert metrics.summary() == pytest.approx(shown | busy)
    clock.pass_by(10)
    assert metrics.summary() == idle | busy


@pytest.mark.parametrize("accept", ["", "text/plain", PROMETHEUS])
def test_both_formats_can_be_read(metrics: Metrics, accept: str) -> None:
    metrics.received("a", "/v1/completions", 'a "quoted" name\n')
    metrics.ended("a", [answer_of(stats_of((4, 2)))])
    body, content_type = metrics.exposition(accept)
    is_open = "openmetrics" in accept
    assert content_type.startswith("application/openmetrics-text" if is_open else "text/plain")
    families = {
        family.name: family for family in (read_open if is_open else read_text)(body.decode())
    }
    drafts = families["forerun:spec_decode_num_drafts"]
    assert drafts.type == "counter"
    assert drafts.samples[0].name == "forerun:spec_decode_num_drafts_total"
    assert families["forerun:time_to_first_token_seconds"].type == "histogram"
    assert any(name.startswith("process_") for name in families)
    info = next(
        sample
        for family in families.values()
        for sample in family.samples
        if sample.name == "forerun:server_info"
    )
    assert info.labels["model"] == "tiny"


def test_servers_in_one_process_do_not_share_counts(metrics: Metrics) -> None:
    metrics.refused("key")
    assert "request_refused_total[key]" not in values(Metrics())


def test_acceptance_far_from_the_usual_is_told_everywhere(
    metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    usual, garbled = [stats_of(*pairs) for pairs in ([(4, 2)] * 20, [(4, 0)] * 60)]
    caplog.set_level("INFO", logger="forerun.serve")
    for number in range(80):
        metrics.judged(f"usual-{number}", "suffix, match, sampled", [answer_of(usual)])
    assert metrics.summary()["acceptance_alarm"] is None
    assert caplog.records == []
    odd = answer_of(garbled)
    for number in range(3):
        metrics.judged(f"odd-{number}", "suffix, match, sampled", [odd])
    assert odd.stats.unusual_acceptance == odd.stats.to_dict()["unusual_acceptance"] == "low"
    assert usual.unusual_acceptance is None
    assert metrics.summary()["acceptance_alarm"] == "low"
    told = values(metrics)
    assert told["acceptance_unusual_total[low]"] == 3
    assert (told["acceptance_alarm[low]"], told["acceptance_alarm[high]"]) == (1, 0)
    events = [record.getMessage() for record in caplog.records]
    assert events == ["unusual acceptance"] * 3 + ["acceptance alarm"]
    for number in range(20):
        metrics.judged(f"usual-{number}", "suffix, match, sampled", [answer_of(usual)])
    assert metrics.summary()["acceptance_alarm"] is None
    assert values(metrics)["acceptance_alarm[low]"] == 0
    assert caplog.records[-1].getMessage() == "acceptance is usual again"
