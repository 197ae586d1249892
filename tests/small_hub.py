"""A hub of the tests' own: speaks what huggingface_hub asks of Hugging Face, over real HTTP."""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
API = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)(?:/revision/(?P<revision>.+))?$")
RESOLVE = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<name>.+)$")
STORED = "/stored"


@dataclass
class Repo:
    """What a repository holds, and who may have it."""

    files: dict[str, bytes]
    commit: str = COMMIT
    revisions: tuple[str, ...] = ("main",)
    # Names of the files that are kept by the store for large ones, with a SHA-256.
    large: tuple[str, ...] = ()
    architecture: str = ""
    gated: bool = False
    token: str = ""  # who may have a private or gated one
    sizes: dict[str, int] = field(
        default_factory=dict
    )  # told of large files, in place of their own


@dataclass
class SmallHub:
    """Repositories, faults to come, and what was asked."""

    url: str = ""
    repos: dict[str, Repo] = field(default_factory=dict)
    # Content that is sent in place of a file's own.
    damaged: dict[str, bytes] = field(default_factory=dict)
    # After so many bytes the connection is cut, as often as there are numbers.
    cuts: list[int] = field(default_factory=list)
    # Whether files, after a cut, get 503 until this is taken back.
    down_after_cut: bool = False
    down: bool = False
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)

    def fetched(self, name: str) -> list[str]:
        """Return the ranges that were asked of a file's content; empty for all of it."""
        return [
            headers.get("range", "")
            for method, path, headers in self.requests
            if method == "GET" and path.endswith(f"/{name}")
        ]


def _handler(hub: SmallHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            pass

        def do_HEAD(self):
            self._answer()

        def do_GET(self):
            self._answer()

        def _answer(self):
            parts = urlsplit(self.path)
            path = unquote(parts.path)
            headers = {name.lower(): value for name, value in self.headers.items()}
            hub.requests.append((self.command, path, headers))
            if path.startswith(STORED):
                self._stored(path)
            elif found := API.match(path):
                self._info(found, parse_qs(parts.query))
            elif found := RESOLVE.match(path):
                self._file(found)
            else:
                self._refuse(404, "RepoNotFound")

        def _repo(self, found):
            """Return the repository, or refuse."""
            repo = hub.repos.get(found["repo"])
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            if token == "wrong":
                return self._refuse(401, "", message="Invalid credentials in Authorization header")
            if repo is None:
                return self._refuse(404, "RepoNotFound")
            if repo.token and token != repo.token:
                if repo.gated:
                    return self._refuse(403 if token else 401, "GatedRepo")
                return self._refuse(401, "RepoNotFound")
            revision = found["revision"] or "main"
            if revision not in (*repo.revisions, repo.commit):
                return self._refuse(404, "RevisionNotFound")
            return repo

        def _info(self, found, query):
            if (repo := self._repo(found)) is None:
                return
            told = {"id": found["repo"], "sha": repo.commit}
            if "expand" in query:
                told["gguf"] = {"architecture": repo.architecture}
            else:
                told["siblings"] = [
                    {
                        "rfilename": name,
                        "size": len(content),
                        "blobId": hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest(),
                        **self._lfs(repo, name),
                    }
                    for name, content in repo.files.items()
                ]
            self._send(200, json.dumps(told).encode(), {"Content-Type": "application/json"})

        def _lfs(self, repo, name):
            if name not in repo.large:
                return {}
            content = repo.files[name]
            digest = hashlib.sha256(content).hexdigest()
            size = repo.sizes.get(name, len(content))
            return {"lfs": {"size": size, "sha256": digest, "pointerSize": 130}}

        def _file(self, found):
            if (repo := self._repo(found)) is None:
                return
            name = found["name"]
            if name not in repo.files:
                self._refuse(404, "EntryNotFound")
                return
            content = repo.files[name]
            headers = {"X-Repo-Commit": repo.commit, "ETag": '"e"'}
            if name in repo.large:
                # As Hugging Face does: elsewhere, by an address that needs no token.
                elsewhere = hub.url.replace("127.0.0.1", "localhost")
                headers |= {
                    "Location": f"{elsewhere}{STORED}/{found['repo']}/{name}",
                    "X-Linked-Size": str(len(content)),
                    "X-Linked-ETag": f'"{hashlib.sha256(content).hexdigest()}"',
                }
                self._send(302, b"", headers)
            else:
                self._content(name, content, headers)

        def _stored(self, path):
            owner, repo, name = path.removeprefix(f"{STORED}/").split("/", 2)
            self._content(name, hub.repos[f"{owner}/{repo}"].files[name], {})

        def _content(self, name, content, headers):
            if hub.down:
                self._send(503, b"", {})
                return
            content = hub.damaged.get(name, content)
            status, begin = 200, 0
            if wanted := re.match(r"bytes=(\d+)-", self.headers.get("Range", "")):
                status, begin = 206, int(wanted[1])
                headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
            body = content[begin:]
            if self.command == "GET" and hub.cuts and len(body) > hub.cuts[0]:
                cut = hub.cuts.pop(0)
                hub.down = hub.down_after_cut
                self._send(status, body[:cut], headers, length=len(body))
                self.close_connection = True
                return
            self._send(status, body, headers)

        def _refuse(self, status, code, message=""):
            headers = {"X-Error-Code": code} if code else {}
            self._send(status, b"{}", headers | ({"X-Error-Message": message} if message else {}))

        def _send(self, status, body, headers, length=None):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body) if length is None else length))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

    return Handler


@contextmanager
def small_hub() -> Iterator[SmallHub]:
    """Run one on a free port."""
    hub = SmallHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
