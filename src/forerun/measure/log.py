"""The file of a sweep: opened before anything is loaded, appended to, and gone on with."""

from __future__ import annotations

import os
from pathlib import Path

from forerun.errors import InputError, explain
from forerun.measure.records import FILE, Header, Record, Records, parse, to_line


class Log:
    """`sweep.jsonl` in a folder: what is in it already, and a way to add to it.

    A line that was cut when a sweep was killed is dropped: its run is run again.  Any other line
    that cannot be read is an error, unless it may be skipped.
    """

    def __init__(self, folder: str | Path, *, skip_corrupt: bool = False) -> None:
        self.path = Path(folder) / FILE
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.open("ab").close()
            data = self.path.read_bytes()
        except OSError as error:
            wrong = f"The folder of the sweep cannot be written ({error.strerror})."
            cure = "Choose a folder that you may write to with --out."
            raise InputError(explain(wrong, repr(str(folder)), cure)) from error
        self.records: Records = parse(data, str(self.path), skip_corrupt=skip_corrupt)
        os.truncate(self.path, data.rfind(b"\n") + 1)

    def add(self, record: Record) -> None:
        """Append a record; when this returns it is on the disk."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(to_line(record))
            file.flush()
            os.fsync(file.fileno())
        self.records.add(record)

    def begin(self, header: Header) -> None:
        """Say what follows; another sweep in the same file would spoil both."""
        for known in self.records.headers:
            was, asked = _identity(known), _identity(header)
            for name in was:
                if was[name] != asked[name]:
                    cure = "Sweep into another folder, or with the options this one began with."
                    wrong = f"The folder holds a sweep with another {name}."
                    received = f"{asked[name]!r} instead of {was[name]!r}"
                    raise InputError(explain(wrong, received, cure))
        self.add(header)


def _identity(header: Header) -> dict[str, object]:
    """What must stay the same for figures to be comparable."""
    return {
        "target": header.target,
        "prompt set": header.prompts_digest,
        "number of new tokens": header.max_new_tokens,
        "seed": header.seed,
        "device": header.machine.device,
        "dtype": header.machine.dtype,
    }
