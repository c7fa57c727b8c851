"""A file of options is read as a command line is, and the command line counts instead of it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from forerun.base.errors import InputError
from forerun.cli import main
from forerun.cli.commands import make_parser
from forerun.cli.flags.shared import settle
from forerun.cli.serve import sections_of

Capture = pytest.CaptureFixture[str]
FILE = """
port = 9000
drafter = ["ngram", "suffix"]
log-json = true
max-batch = 4
memory-gib = 1.5
host = "0.0.0.0"
"""
SECTIONS = """
max-batch = 4
drafter = "ngram"

[models.small]
model = "./small"
needs-gib = 0.5

[models."org/large"]
model = "org/large"
name = ["large", "gpt"]
max-batch = 2
drafter = []
"""


def read(text: str, folder: Path, *words: str) -> Any:
    file = folder / "forerun.toml"
    file.write_text(text)
    args, extra = make_parser().parse_known_args(["serve", *words, "--config", str(file)])
    assert settle(args, extra) == []
    return args


def test_keys_are_options(tmp_path: Path) -> None:
    args = read(FILE, tmp_path)
    assert (args.port, args.max_batch, args.memory_gib) == (9000, 4, 1.5)
    assert (args.drafter, args.log_json, args.host) == (["ngram", "suffix"], True, "0.0.0.0")
    assert (args.max_queue, args.models, args.model) == (64, {}, None)


def test_the_command_line_counts_instead(tmp_path: Path) -> None:
    args = read(FILE, tmp_path, "--port", "8000", "--drafter", "none", "--max-batch=8", "a/b")
    assert (args.port, args.drafter, args.max_batch, args.model) == (8000, ["none"], 8, "a/b")
    assert read('model = "c/d"', tmp_path).model == "c/d"
    assert read('model = "c/d"', tmp_path, "a/b").model == "a/b"


def test_a_section_is_a_command_line_of_its_own(tmp_path: Path) -> None:
    args = read(SECTIONS, tmp_path)
    small, large = args.models["small"], args.models["org/large"]
    assert (small.model, small.max_batch, small.needs_gib) == ("./small", 4, 0.5)
    assert (small.drafter, large.drafter) == (["ngram"], ["ngram"])
    assert (large.model, large.max_batch, large.name) == ("org/large", 2, ["large", "gpt"])
    assert list(sections_of(args)) == ["small", "org/large"]
    both = read(SECTIONS, tmp_path, "--max-batch", "6", "--drafter", "suffix").models.values()
    assert {(one.max_batch, *one.drafter) for one in both} == {(6, "suffix")}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("max-bacth = 4", "There is no such option in"),
        ("max-bacth = 4", "Did you mean max-batch?"),
        ("max_batch = 4", "Did you mean max-batch?"),
        ('config = "other.toml"', "There is no such option"),
        ('max-batch = "many"', "argument --max-batch: invalid int value: 'many'"),
        ("max-batch = 1.5", "argument --max-batch: invalid int value: '1.5'"),
        ("max-batch = true", "max-batch in"),
        ("max-batch = [1]", "has a wrong type. Received list [1]. Use a text or a number."),
        ("log-json = 1", "Use true or false."),
        ("drafter = [true]", "Use a text or a number, or a list of them."),
        ("host = {}", "has a wrong type"),
        ('dtype = "float8"', "invalid choice: 'float8'"),
        ("max-batch = 0", "--max-batch is too small. Received 0. Use 1 or more."),
        ("port =", "is no TOML"),
        ("port = 1\nport = 2", "is no TOML"),
        ("models = 3", "models in"),
        ("[models]\na = 3", "Write a section for each model"),
        ("[models.a]\nport = 9", "Write it above all sections"),
        ('[models.a]\nmodle = "x"', "Did you mean model?"),
        ('[models.a]\nmax-batch = "x"', "invalid int value: 'x'"),
        ("[models.a]\nmax-batch = 0", "--max-batch is too small"),
        ('[models.a]\nrule = "mach"', "no rule of that name"),
        ("[models.a]\nneeds-gib = -1", "--needs-gib is no amount of memory"),
        ('[models.a]\n[models.b]\nname = "a"', "Two models have one name. Received a."),
        ('name = ""', "A name of a model is empty."),
        ('[models.a]\nname = ["b", " "]', "A name of a model is empty."),
        ('[models.""]\nmodel = "x"', "A section has no id."),
        ('model = "x"\n[models.a]\n[models.b]', "MODEL is about one model."),
        ('name = "x"\n[models.a]\n[models.b]', "--name is about one model."),
        ("ray = true\n[models.a]\n[models.b]", "Replicas and ranks serve one model."),
        ('[models.a]\nmodel = "/nowhere/at/all"\n[models.b]', "not known how much memory"),
        ("memory-gib = 1\n[models.a]\nneeds-gib = 2\n[models.b]\nneeds-gib = 1", "does not fit"),
    ],
)
def test_mistakes_are_named(text: str, told: str, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "forerun.toml"
    file.write_text(f"port = 0\n{text}" if "port" not in text else text)
    with suppress(SystemExit):  # argparse's own way to end
        assert main(["serve", "--config", str(file)]) == 2
    message = capsys.readouterr().err
    assert told in message
    assert "Traceback" not in message


def test_a_file_that_is_not_there(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--config", "/nowhere/forerun.toml"])
    told = "The configuration cannot be read. Received /nowhere/forerun.toml (No such file"
    assert told in capsys.readouterr().err


def test_what_is_wrong_in_a_file_names_the_file(tmp_path: Path, capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        read('max-batch = "many"', tmp_path)
    assert f"in {tmp_path / 'forerun.toml'}" in capsys.readouterr().err


def test_one_model_needs_no_section(tmp_path: Path) -> None:
    assert list(sections_of(read(FILE, tmp_path))) == [None]
    with pytest.raises(InputError, match="one name"):
        sections_of(read('[models.a]\nname = ["a"]', tmp_path))


def test_the_example_of_the_docs_is_read(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    example = page.split("```toml")[1].split("```")[0]
    args = read(example, tmp_path)
    large, small = args.models.values()
    assert (args.uds, args.memory_gib) == ("/run/forerun/forerun.sock", 24)
    assert (large.name, large.needs_gib, large.max_batch) == (["gpt-4o", "gpt-4o-mini"], 17.5, 16)
    assert (small.model, small.max_queue, small.max_batch) == ("/srv/models/small", 128, 8)
    assert list(sections_of(args)) == ["qwen3-8b", "small"]
