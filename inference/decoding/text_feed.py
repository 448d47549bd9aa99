"""Output bytes as text while they are decoded: only what later tokens cannot take back."""

from __future__ import annotations

import codecs


class TextFeed:
    """Output bytes -> text that is sure to stay: no half characters, nothing that may become a stop text."""

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._stop = [text.encode() for text in stop]
        self._sent = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, data: bytes, *, is_over: bool) -> str:
        """What is sure now and was not given out before. data: the output so far, from its start."""
        held = 0 if is_over else max((_overlap(data, stop) for stop in self._stop), default=0)
        new = data[self._sent : len(data) - held]
        self._sent += len(new)
        return self._decoder.decode(new, final=is_over)


def _overlap(data: bytes, stop: bytes) -> int:
    """Length of the longest end of `data` that is a beginning of `stop`."""
    return next((size for size in range(min(len(stop) - 1, len(data)), 0, -1) if data.endswith(stop[:size])), 0)
