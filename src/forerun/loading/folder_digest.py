"""A digest of what is in a model folder; files that were not touched since are not read again."""

from __future__ import annotations

import json
import time
from hashlib import file_digest, sha256
from pathlib import Path

from forerun.loading.cache import cache_folder, is_ours, make_in_cache
from forerun.loading.folders import TOKENIZERS

PATTERNS = ("*.json", "*.safetensors", "*.jinja", "additional_chat_templates/*", *TOKENIZERS)
"""Files that decide on logits, tokens or prompts."""

JUST_NOW = 2.0  # seconds: a file this new may change again without another time stamp


def known_contents(folder: Path) -> str | None:
    """The digest, if it was noted and no file has been touched since."""
    try:
        place = _note_of(folder)
        note = json.loads(place.read_text(encoding="utf-8")) if is_ours(place) else {}
        is_current = note["files"] == _stamps(folder)
        return str(note["digest"]) if is_current else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def contents(folder: Path) -> str:
    """The digest, noted for the next time."""
    if (known := known_contents(folder)) is not None:
        return known
    stamps = _stamps(folder)
    whole = sha256()
    for name in stamps:
        with (folder / name).open("rb") as stream:
            whole.update(f"{name} {file_digest(stream, 'sha256').hexdigest()}\n".encode())
    digest = whole.hexdigest()
    newest = max((max(stamp[1:3]) for stamp in stamps.values()), default=0) / 1e9
    if stamps == _stamps(folder) and time.time() - newest > JUST_NOW:
        note = _note_of(folder)
        make_in_cache(note.parent)
        unfinished = note.with_suffix(f".{time.time_ns()}")
        unfinished.touch(0o644, exist_ok=False)  # as far as the umask allows, and no more
        unfinished.write_text(json.dumps({"files": stamps, "digest": digest}), encoding="utf-8")
        unfinished.replace(note)
    return digest


def _note_of(folder: Path) -> Path:
    name = sha256(str(folder.resolve()).encode()).hexdigest()[:32]
    return cache_folder() / "contents" / f"{name}.json"


def _stamps(folder: Path) -> dict[str, list[int]]:
    """Size, times and number of each file that makes the model, in the order of their names."""
    stamps = {}
    for file in sorted({file for pattern in PATTERNS for file in folder.glob(pattern)}):
        if file.is_file():
            seen, name = file.stat(), file.relative_to(folder).as_posix()
            stamps[name] = [seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino]
    return stamps
