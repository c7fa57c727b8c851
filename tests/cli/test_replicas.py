"""`forerun simulate --replicas`: a table, JSON, and flags that make no sense together."""

from __future__ import annotations

import json

import pytest

from forerun.cli import main
from forerun.cli.replicas import token_seconds

Capture = pytest.CaptureFixture[str]
FEW = ("--requests", "300")


def test_a_table_by_size_and_what_breaks_first(capsys: Capture) -> None:
    assert main(["simulate", "--replicas", "1,4", *FEW]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["1", "4"]
    limits = [line for line in lines if " replicas: " in line]
    sizes = [float(line.split()[0].replace(",", "")) for line in limits]
    assert len(sizes) == 3
    assert sizes == sorted(sizes)
    assert max(map(len, lines)) <= 120


def test_json_repeats_with_the_seed(capsys: Capture) -> None:
    words = ["simulate", "--replicas", "2", *FEW, "--json", "--failover", "again"]
    outputs = []
    for seed in ("1", "1", "2"):
        assert main([*words, "--seed", seed, "--mtbf-hours", "0.01"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] != outputs[2]
    (size,) = json.loads(outputs[0])["sizes"]
    assert size["answered"] == 300
    assert size["broken"] > 0


def test_a_fleet_that_grows_with_its_load(capsys: Capture) -> None:
    words = ["simulate", "--replicas", "--autoscale", "1:8", "--surge", "6", "--json"]
    assert main([*words, "--requests", "5000"]) == 0
    (size,) = json.loads(capsys.readouterr().out)["sizes"]
    assert 1 < size["most_replicas"] <= 8


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rows", "4"], "Some flags are for a fleet of replicas. Received --rows"),
        (["--replicas", "2", "--acceptance", "0.5"], "Received --acceptance"),
        (["--replicas", "0"], "--replicas is too small"),
        (["--replicas", "1,2", "--rate", "3"], "One rate does not fit several sizes"),
        (["--replicas", "2", "--failover", "no"], "no such failover"),
        (["--replicas", "2", "--autoscale", "8:1"], "--autoscale is no range"),
        (["--replicas", "2", "--target-ongoing", "3"], "is for autoscaling"),
        (["--replicas", "2", "--token-ms", "4:5"], "--token-ms is no table"),
        (["--replicas", "2", "--load", "-1"], "rate has no meaning"),
    ],
)
def test_nonsense(capsys: Capture, words: list[str], message: str) -> None:
    assert main(["simulate", *words]) == 2
    assert message in capsys.readouterr().err


def test_times_between_measured_ones_lie_on_lines() -> None:
    assert token_seconds("1:10,3:30,4:34") == pytest.approx([0.010, 0.020, 0.030, 0.034])
