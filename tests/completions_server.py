"""A small server that speaks the completions protocol, in a thread: what it answers is decided by the test."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Reply:
    """An answer piece by piece: text and, of a server that returns them, ids."""

    pieces: Sequence[tuple[str, list[int] | None]]
    finish_reason: str = "stop"
    stop_reason: int | None = None
    prompt_ids: list[int] | None = None
    breaks_off: bool = False
    """The connection is closed behind the pieces, without an end."""
    pause_s: float = 0.0
    """Before each piece."""


@dataclass
class Refusal:
    """An error instead of an answer."""

    status: int
    message: str = "no"


Respond = Callable[[dict[str, Any]], Reply | Refusal]


@dataclass
class CompletionsServer:
    """Where it listens and what it was asked."""

    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    most_at_once: int = 0
    num_sent: int = 0
    """Pieces that went out."""
    _active: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def serving(respond: Respond) -> Iterator[CompletionsServer]:
    """A server for the time of the block."""
    state = CompletionsServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with state._lock:
                state.requests.append(body)
                state._active += 1
                state.most_at_once = max(state.most_at_once, state._active)
            try:
                _answer(self, state, respond(body))
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True
            finally:
                with state._lock:
                    state._active -= 1

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _answer(handler: BaseHTTPRequestHandler, state: CompletionsServer, reply: Reply | Refusal) -> None:
    if isinstance(reply, Refusal):
        body = json.dumps({"error": {"message": reply.message, "type": "x"}}).encode()
        handler.send_response(reply.status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
        return
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream")
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    for number, (text, ids) in enumerate(reply.pieces):
        time.sleep(reply.pause_s)
        is_last = number == len(reply.pieces) - 1 and not reply.breaks_off
        _send(handler, _chunk(text, ids, reply if is_last else None, reply.prompt_ids if number == 0 else None))
        state.num_sent += 1
    if reply.breaks_off:
        handler.close_connection = True
        handler.connection.close()
        return
    _send(handler, None)
    handler.wfile.write(b"0\r\n\r\n")


def _chunk(text: str, ids: list[int] | None, last: Reply | None, prompt_ids: list[int] | None) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "text": text, "logprobs": None, "finish_reason": None}
    if ids is not None:
        choice["token_ids"] = ids
    if prompt_ids is not None:
        choice["prompt_token_ids"] = prompt_ids
    if last is not None:
        choice |= {"finish_reason": last.finish_reason, "stop_reason": last.stop_reason}
    return {"id": "c", "object": "text_completion", "created": 0, "model": "m", "choices": [choice]}


def _send(handler: BaseHTTPRequestHandler, event: dict[str, Any] | None) -> None:
    data = f"data: {'[DONE]' if event is None else json.dumps(event)}\n\n".encode()
    handler.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    handler.wfile.flush()
