"""A stand-in for the Hugging Face Hub: the endpoints that its client calls to make, fill and read a repository.

Small files travel inside the commit, safetensors through the large-file protocol, as on the Hub.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote

import yaml

TOKEN = "hf_secretsecretsecret"
COMMIT = "c" * 40
RELATIONS = (None, "adapter", "finetune", "merge", "quantized")
"""What the Hub knows of how a model stands to its base."""


class HubServer(ThreadingHTTPServer):
    """Repositories in memory. status: what every call is answered instead, where it is not 200."""

    daemon_threads = True

    def __init__(self, status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status = status
        self.repositories: dict[str, dict[str, Any]] = {}
        """Name -> `private`, and `files` by their path."""
        self.stored: dict[str, bytes] = {}
        """What came through the large-file protocol, by its sha256."""
        self.calls: list[str] = []
        self.without_token: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: HubServer

    def handle_one(self) -> None:
        """Every method: look the call up, refuse it where the server is told to or the token is not the right one."""
        path = unquote(self.path.split("?")[0])
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.calls.append(f"{self.command} {path}")
        is_upload = path.startswith("/upload/")  # as on the Hub, a signed address that takes no token
        if not is_upload and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.server.without_token.append(path)
            return self.answer(401, {"error": "Invalid credentials in Authorization header"})
        if self.server.status != 200:
            # The Hub itself does not repeat tokens; a proxy in between may.
            return self.answer(self.server.status, {"error": f"refused for {TOKEN}"})
        return self.dispatch(path, body)

    do_GET = do_HEAD = do_POST = do_PUT = handle_one

    def dispatch(self, path: str, body: bytes) -> None:
        hub, parts = self.server, path.strip("/").split("/")
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            if name in hub.repositories:
                return self.answer(409, {"error": "You already created this model repo", "url": f"{hub.url}/{name}"})
            hub.repositories[name] = {"private": asked.get("visibility") == "private", "files": {}}
            return self.answer(200, {"url": f"{hub.url}/{name}", "name": name})
        if path == "/api/validate-yaml":
            head = yaml.safe_load(json.loads(body)["content"].split("---\n")[1])
            relation = head.get("base_model_relation")
            errors = [] if relation in RELATIONS else [{"message": f"base_model_relation: {relation} is unknown"}]
            return self.answer(400 if errors else 200, {"errors": errors, "warnings": []})
        if path.startswith("/upload/"):
            if hashlib.sha256(body).hexdigest() != parts[1]:
                return self.answer(400, {"error": "another content"})
            hub.stored[parts[1]] = body
            return self.answer(200, {})
        if path.endswith("/info/lfs/objects/batch"):
            return self.answer(200, {"transfer": "basic", "objects": [
                one | {"actions": {"upload": {"href": f"{hub.url}/upload/{one['oid']}"}}}
                for one in json.loads(body)["objects"]
            ]})  # fmt: skip
        if parts[:2] == ["api", "models"]:
            return self.dispatch_model("/".join(parts[2:4]), parts[4:], body)
        if parts[2:3] == ["resolve"]:
            return self.send_file("/".join(parts[:2]), "/".join(parts[4:]))
        return self.answer(404, {"error": f"no such endpoint: {path}"})

    def dispatch_model(self, name: str, rest: list[str], body: bytes) -> None:
        repository = self.server.repositories.get(name)
        if repository is None:
            return self.answer(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        if rest[:1] == ["preupload"]:
            return self.answer(200, {"files": [
                {
                    "path": one["path"], "shouldIgnore": False,
                    "uploadMode": "lfs" if one["path"].endswith(".safetensors") else "regular",
                }
                for one in json.loads(body)["files"]
            ]})  # fmt: skip
        if rest[:1] == ["commit"]:
            for line in map(json.loads, body.decode().splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    repository["files"][value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    repository["files"][value["path"]] = self.server.stored[value["oid"]]
            return self.answer(200, {
                "success": True, "commitOid": COMMIT, "commitUrl": f"{self.server.url}/{name}/commit/{COMMIT}",
            })  # fmt: skip
        if rest[:1] == ["tree"]:
            return self.answer(200, [
                {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for path, data in repository["files"].items()
            ])  # fmt: skip
        siblings = [{"rfilename": path} for path in repository["files"]]
        return self.answer(200, {"id": name, "sha": COMMIT, "private": repository["private"], "siblings": siblings})

    def send_file(self, name: str, path: str) -> None:
        data = self.server.repositories.get(name, {"files": {}})["files"].get(path)
        if data is None:
            return self.answer(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha1(data).hexdigest()}"', "Accept-Ranges": "bytes"}
        return self.send(200, data, headers)

    def answer(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        message = value["error"] if isinstance(value, dict) and "error" in value else ""
        told = {"X-Error-Message": message} if message else {}
        self.send(status, json.dumps(value).encode(), {"Content-Type": "application/json"} | told | (headers or {}))

    def send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(status: int = 200) -> Iterator[HubServer]:
    server = HubServer(status)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
