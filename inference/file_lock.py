"""Keeps two processes from writing into the same folder."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive_lock(path: Path, on_busy: Callable[[], None]) -> Iterator[None]:
    """Hold the file `path` against other processes. The system frees it when a process dies, so it never goes stale.

    on_busy: called when another process holds it; it may raise, else its return means to wait.
    """
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_busy()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
