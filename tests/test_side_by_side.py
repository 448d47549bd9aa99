"""Questions side by side: every reply comes, an error is raised, and nobody waits for a thread."""

import subprocess
import sys
import threading
import time

import pytest

from schemafill.data_prep.side_by_side import side_by_side


def test_replies_come_when_they_are_ready():
    gate = threading.Event()

    def ask(question: int, _: threading.Event) -> int:
        if question == 0:
            gate.wait(10)
        return question * 2

    replies = side_by_side(ask, range(4), 2)
    first = [next(replies) for _ in range(3)]
    gate.set()
    assert sorted(first) == [2, 4, 6] and list(replies) == [0]


def test_an_error_is_raised_where_replies_are_read_and_ends_the_rest():
    asked = []

    def ask(question: int, _: threading.Event) -> int:
        asked.append(question)
        return 1 // question

    with pytest.raises(ZeroDivisionError):
        list(side_by_side(ask, [0, *range(1, 10_000)], 1))
    time.sleep(0.05)
    count = len(asked)
    time.sleep(0.05)
    assert len(asked) == count < 10_001


def test_without_questions_there_is_nothing():
    assert list(side_by_side(lambda *_: 1, [], 3)) == []


def test_a_process_ends_although_a_thread_waits():
    """Threads of a pool are waited for when the interpreter ends."""
    script = (
        "import time; from schemafill.data_prep.side_by_side import side_by_side\n"
        "replies = side_by_side(lambda one, _: time.sleep(30 * one), [0, 1], 2); next(replies); replies.close()"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=10)
