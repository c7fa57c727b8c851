"""The file of a sweep: opened before any model is loaded, appended to, and resumed from."""

from __future__ import annotations

import os
from pathlib import Path

from forerun.base.errors import InputError, explain
from forerun.measure.records import FILE, PACKED, Header, Record, Records, parse, to_line


class Log:
    """`sweep.jsonl` in a folder: the records it holds, and `add` to append one.

    If a sweep was killed while writing a line, that line is dropped and its run is done again.
    Any other unreadable line is an error, unless `skip_corrupt` is set.
    """

    def __init__(self, folder: str | Path, *, skip_corrupt: bool = False) -> None:
        self.path = Path(folder) / FILE
        packed = Path(folder) / PACKED
        if packed.exists() and not self.path.exists():
            cure = f"Unpack it with `gunzip {packed}` to go on with it, or choose another --out."
            wrong = "The folder holds a compressed sweep, which cannot be appended to."
            raise InputError(explain(wrong, repr(str(packed)), cure))
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
        """Append a record; it is on disk when this returns."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(to_line(record))
            file.flush()
            os.fsync(file.fileno())
        self.records.add(record)

    def begin(self, header: Header) -> None:
        """Write the header; refuse one whose settings differ from those of the file's sweep."""
        for known in self.records.headers:
            was, asked = _identity(known), _identity(header)
            for name in was:
                if was[name] != asked[name]:
                    cure = "Sweep into another folder, or with the options this one began with."
                    wrong = f"The folder holds a sweep with another {name}."
                    received = f"{asked[name]} instead of {was[name]}"
                    raise InputError(explain(wrong, received, cure))
        self.add(header)


def _identity(header: Header) -> dict[str, object]:
    """The settings that must not change within one file."""
    return {
        "target": header.target,
        "prompt set (--prompts, --per-group)": (
            f"{len(header.prompts)} prompts with the digest {header.prompts_digest}"
        ),
        "number of new tokens (--max-tokens)": header.max_new_tokens,
        "--seed": header.seed,
        "--device": header.machine.device,
        "--dtype": header.machine.dtype,
    }
