"""Many questions asked at a time by threads that nobody waits for.

A thread that waits for a server cannot be interrupted. These are daemons, and whoever leaves early goes on at once, so
that Ctrl-C ends a command although a server says nothing for minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import TypeVar

Question, Reply = TypeVar("Question"), TypeVar("Reply")


def side_by_side(
    ask: Callable[[Question, Event], Reply], questions: Sequence[Question], num_threads: int
) -> Iterator[Reply]:
    """What `ask` returns for each question, in the order in which it does; what it raises is raised here.

    ask: called with a question and an event that is set when nobody waits for its reply any more.
    """
    waiting: SimpleQueue[Question] = SimpleQueue()
    replies: SimpleQueue[tuple[Reply | None, BaseException | None]] = SimpleQueue()
    is_over = Event()
    for question in questions:
        waiting.put(question)

    def work() -> None:
        while not is_over.is_set():
            try:
                question = waiting.get_nowait()
            except Empty:
                return
            try:
                replies.put((ask(question, is_over), None))
            except BaseException as error:  # whatever it is, it is raised where the replies are read
                replies.put((None, error))

    for _ in range(min(num_threads, len(questions))):
        Thread(target=work, daemon=True).start()
    try:
        for _ in questions:
            reply, error = replies.get()
            if error is not None:
                raise error
            yield reply
    finally:
        is_over.set()
