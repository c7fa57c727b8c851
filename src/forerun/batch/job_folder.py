"""The folder of a batch job: its settings, which lines are done, and its output.

`job.json` holds the settings; a folder with another job's is refused. Every finished line is
appended to `journal.jsonl` at once. When all lines are done, `output.jsonl` is written in the order
of the input, under a temporary name first. So the job can be killed at any byte: an incomplete last
line of the journal is removed and its request done again, and no line is lost or repeated. If
Ctrl-C stops the job, `begun.json` keeps the tokens of unfinished answers, which continue from
there. Every line has a checksum; a line that was changed is reported, and its request is done
again.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any
from zlib import crc32

from forerun.base.errors import InputError, explain, notice
from forerun.batch.lines import Begun, OutputLine, may_be_retried, why_failed
from forerun.batch.parquet import write_parquet

JOB, JOURNAL, BEGUN = "job.json", "journal.jsonl", "begun.json"
SYNC_SECONDS = 2.0  # what a power failure can undo; a killed process loses nothing
OTHER_JOB = "Choose another folder, or run the job of this one with the input and options it had."


class JobFolder:
    """The folder of one job, created if needed. Only one process at a time can open it.

    identity: the settings that must not change within a job, by readable names.
    retries_failures: repeat lines whose failure was not their own fault.
    """

    def __init__(
        self, path: Path, identity: Mapping[str, Any], *, retries_failures: bool = False
    ) -> None:
        self.path = path
        self._offsets: dict[int, int] = {}  # of finished lines in the journal, by index
        self._failures: set[int] = set()
        self._retries_failures = retries_failures
        self._synced = 0.0
        try:
            path.mkdir(parents=True, exist_ok=True)
            _check_contents(path)
            self._journal = (path / JOURNAL).open("a+b", buffering=0)
        except OSError as error:
            raise _not_written(path, error) from error
        try:
            _lock(self._journal, path)
            self.job = self._read_job(identity)
            self._read_journal()
            self.begun = self._read_begun()
        except BaseException as error:
            self._journal.close()
            if isinstance(error, OSError):
                raise _not_written(path, error) from error
            raise

    @property
    def done(self) -> Container[int]:
        """The indices of the lines that are finished."""
        return self._offsets

    @property
    def num_done(self) -> int:
        """The number of lines that are finished."""
        return len(self._offsets)

    def num_failed(self, count: int) -> int:
        """The number of failures among the first `count` lines."""
        return sum(index < count for index in self._failures)

    def settle(self, name: str, value: str) -> None:
        """Record a setting of the job; raises if it differs from the recorded one."""
        known = self.job.setdefault(name, value)
        if known != value:
            wrong = f"The output folder belongs to a job that differs in {name}."
            raise InputError(explain(wrong, f"{value!r} instead of {known!r}", OTHER_JOB))
        self._write_job()

    def add(self, index: int, line: OutputLine) -> None:
        """Write a finished line."""
        assert index not in self._offsets
        entry = {"index": index, "line": line, "crc": _checksum(index, line)}
        offset = self._journal.seek(0, os.SEEK_END)
        data = (json.dumps(entry, ensure_ascii=False) + "\n").encode()
        try:
            _write_all(self._journal, data)
            if time.monotonic() - self._synced > SYNC_SECONDS:
                os.fsync(self._journal.fileno())
                self._synced = time.monotonic()
        except OSError as error:
            with suppress(OSError):  # half a line would spoil the next one
                os.ftruncate(self._journal.fileno(), offset)
            raise _not_written(self.path / JOURNAL, error) from error
        self._note(index, offset, line)

    def keep(self, begun: Mapping[int, Begun]) -> None:
        """Save the tokens of unfinished answers, by index."""
        self.begun = {**self.begun, **begun}
        kept = [[index, tokens] for index, tokens in self.begun.items() if index not in self.done]
        text = json.dumps({"begun": kept, "crc": _checksum(len(kept), kept)})
        self._replaced(BEGUN, lambda path: path.write_text(text, encoding="utf-8"))

    def lines(self, count: int) -> Iterator[OutputLine]:
        """The first lines of the output, in the order of the input; all must be finished."""
        with (self.path / JOURNAL).open("rb") as journal:
            for index in range(count):
                journal.seek(self._offsets[index])
                yield json.loads(journal.readline())["line"]

    def write_output(self, count: int, *, as_parquet: bool = False) -> Path:
        """Write the output file; it is never left incomplete."""

        def write_json(path: Path) -> None:
            with path.open("w", encoding="utf-8") as file:
                for line in self.lines(count):
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")

        with suppress(OSError):  # it is of no use any more, and does no harm
            (self.path / BEGUN).unlink()
        if as_parquet:
            lines = self.lines(count)
            return self._replaced("output.parquet", lambda path: write_parquet(path, lines))
        return self._replaced("output.jsonl", write_json)

    def close(self) -> None:
        """Write the journal to disk and close it; raises if the disk fails."""
        try:
            os.fsync(self._journal.fileno())
        except OSError as error:
            raise _not_written(self.path / JOURNAL, error) from error
        finally:
            self._journal.close()

    def __enter__(self) -> JobFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _note(self, index: int, offset: int, line: OutputLine) -> None:
        self._offsets[index] = offset
        if why_failed(line) is not None:
            self._failures.add(index)

    def _read_job(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        """Read the settings of the folder's job; if there is none, start a new job."""
        path = self.path / JOB
        if not path.exists():
            self.job = {**identity, "created": int(time.time())}
            self._write_job()
            return self.job
        try:
            known = json.loads(path.read_bytes())
            if not isinstance(known, dict) or type(known.get("created")) is not int:
                raise ValueError("it is no object with the time of its creation")
        except (OSError, ValueError, RecursionError) as error:
            wrong = f"{JOB} of the output folder is damaged ({error})."
            cure = "Choose another folder: without it nobody knows which job its answers are of."
            raise InputError(explain(wrong, repr(str(path)), cure)) from error
        differing = [name for name in identity if known.get(name) != identity[name]]
        if differing:
            received = "; ".join(
                f"{name} {identity[name]!r} instead of {known.get(name)!r}" for name in differing
            )
            wrong = f"The output folder belongs to a job that differs in {' and '.join(differing)}."
            raise InputError(explain(wrong, received, OTHER_JOB))
        return known

    def _write_job(self) -> None:
        text = json.dumps(self.job, indent=2, ensure_ascii=False) + "\n"
        self._replaced(JOB, lambda path: path.write_text(text, encoding="utf-8"))

    def _read_journal(self) -> None:
        """Read which lines are finished; lines that are incomplete or unreadable are ignored."""
        offset = end = num_damaged = 0
        self._journal.seek(0)
        with open(self._journal.fileno(), "rb", closefd=False) as journal:
            for raw in journal:
                if raw.endswith(b"\n"):
                    num_damaged += not self._recall(offset, raw)
                    end = offset + len(raw)
                offset += len(raw)
        if end < offset:
            os.ftruncate(self._journal.fileno(), end)
        if num_damaged:
            lines = f"{num_damaged} line{'s' * (num_damaged > 1)}"
            notice(f"{lines} of {self.path / JOURNAL} cannot be read: they are answered again")

    def _recall(self, offset: int, raw: bytes) -> bool:
        """Read the journal line at `offset`; returns False if it is damaged."""
        try:
            entry = json.loads(raw)
            index, line = entry["index"], entry["line"]
            crc = _checksum(index, line)
            if type(index) is not int or index < 0 or entry.get("crc", crc) != crc:
                return False  # earlier versions wrote no checksum
            is_retried = self._retries_failures and may_be_retried(line)
            why_failed(line)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return False
        self._failures.discard(index)
        self._offsets.pop(index, None)
        if not is_retried:
            self._note(index, offset, line)
        return True

    def _read_begun(self) -> dict[int, Begun]:
        """The tokens of unfinished answers; empty if that file is damaged."""
        try:
            told = json.loads((self.path / BEGUN).read_bytes())
            if told["crc"] != _checksum(len(told["begun"]), told["begun"]):
                raise ValueError
            return dict(told["begun"])
        except FileNotFoundError:
            return {}
        except (ValueError, LookupError, TypeError, RecursionError):
            notice(f"{self.path / BEGUN} cannot be read: its answers are begun again")
            return {}

    def _replaced(self, name: str, write: Callable[[Path], object]) -> Path:
        """Replace a file in one step, so that no incomplete file can be seen."""
        path, partial = self.path / name, self.path / f"{name}.partial"
        try:
            write(partial)
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            partial.replace(path)
        except OSError as error:
            raise _not_written(path, error) from error
        return path


def _check_contents(path: Path) -> None:
    """Refuse a folder that contains files of something other than a job."""
    strangers = [entry.name for entry in path.iterdir() if entry.name != f"{JOB}.partial"]
    if strangers and JOURNAL not in strangers:
        wrong = "The output folder holds files and no batch job."
        received = f"{path}, with {', '.join(sorted(strangers)[:3])}"
        raise InputError(explain(wrong, received, "Choose an empty folder or a new name."))


def _checksum(index: int, line: Any) -> int:
    """A checksum of a line's contents, independent of the order of its fields."""
    return crc32(json.dumps([index, line], sort_keys=True).encode())


def _not_written(path: Path, error: OSError) -> InputError:
    wrong = f"The output folder cannot be written ({error.strerror or error})."
    cure = "Make room, or choose a folder that you may write to with --out; what is done is kept."
    return InputError(explain(wrong, repr(str(path)), cure))


def _lock(journal: IO[bytes], path: Path) -> None:
    """Lock the folder for as long as this process lives."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    try:
        fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        wrong = "Another process works on this job."
        cure = "Wait for it, stop it, or choose another folder."
        raise InputError(explain(wrong, repr(str(path)), cure)) from error


def _write_all(file: IO[bytes], data: bytes) -> None:
    """Write all of the data, even if single writes take only a part of it."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]
