"""Which replica stores the beginning of a prompt.

The next turn of a conversation begins with the last prompt and the answer to it.  So answers are
remembered, by digests of the text from its first token to places inside the answer.  A
prompt that goes past such a place belongs to the conversation; one that only has the same system
prompt does not, and may go anywhere.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import blake2b

BLOCK = 8
"""Tokens between two places; an answer shorter than this may have none."""

MOST_PLACES = 100_000
"""Places that are remembered, in about 20 MB; those not met for longest are forgotten."""


class Conversations:
    """Where texts were written last."""

    def __init__(self, most_places: int = MOST_PLACES) -> None:
        self._most_places = most_places
        self._replicas: OrderedDict[bytes, str] = OrderedDict()  # by the digest of a beginning

    def find(self, owner: str, prompt: Sequence[int]) -> str:
        """The replica that wrote the longest known beginning of a prompt, or ""."""
        replica = ""
        for _, digest in _digests(owner, prompt):
            if digest in self._replicas:
                self._replicas.move_to_end(digest)
                replica = self._replicas[digest]
        return replica

    def note(self, owner: str, prompt: Sequence[int], answer: Sequence[int], replica: str) -> None:
        """A replica wrote an answer, or the end of one."""
        for end, digest in _digests(owner, [*prompt, *answer]):
            if end > len(prompt):
                self._replicas[digest] = replica
                self._replicas.move_to_end(digest)
        while len(self._replicas) > self._most_places:
            self._replicas.popitem(last=False)

    def __len__(self) -> int:
        return len(self._replicas)


def _digests(owner: str, tokens: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """Lengths of beginnings, whole blocks each, and their digests."""
    digest = blake2b(owner.encode(), digest_size=16)
    for end in range(BLOCK, len(tokens) + 1, BLOCK):
        block = tokens[end - BLOCK : end]
        digest.update(b"".join(token.to_bytes(4, "little") for token in block))
        yield end, digest.copy().digest()
