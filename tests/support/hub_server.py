"""A Hugging Face Hub on loopback: repositories in memory, faults on demand, requests recorded."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import re
import socket
import struct
import termios
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from ruamel.yaml import YAML

from tests.support.polling import wait_until

# stored in LFS under their SHA-256
_LARGE = (".safetensors", ".bin", ".parquet", ".arrow", ".gguf")
_KINDS = {"models": "model", "datasets": "dataset"}
_DATE = "2026-01-01T00:00:00.000Z"


@dataclass(frozen=True)
class Commit:
    """The complete state of a repository: path to content."""

    sha: str
    message: str
    files: Mapping[str, bytes]


@dataclass
class Repository:
    """A model or a data set; each commit can be read by its sha, branch or tag."""

    name: str
    kind: str = "model"  # or "dataset"
    gated: bool = False  # readable only by users in `readers`
    private: bool = False  # invisible without a token
    readers: set[str] = field(default_factory=set)
    commits: list[Commit] = field(default_factory=list)
    refs: dict[str, str] = field(default_factory=dict)  # branch or tag to sha

    def commit(
        self, files: Mapping[str, bytes | str | None], message: str = "more", branch: str = "main"
    ) -> str:
        """Add, replace and delete (None) files; return the sha of the new commit."""
        parent = self.at(branch)
        now = dict(parent.files) if parent else {}
        for path, content in files.items():
            if content is None:
                now.pop(path, None)
            else:
                now[path] = content.encode() if isinstance(content, str) else content
        story = json.dumps(
            [len(self.commits), message, {path: _sha256(now[path]) for path in sorted(now)}]
        )
        commit = Commit(hashlib.sha1(story.encode()).hexdigest(), message, now)
        self.commits.append(commit)
        self.refs[branch] = commit.sha
        return commit.sha

    def at(self, revision: str) -> Commit | None:
        sha = self.refs.get(revision, revision)
        return next((commit for commit in self.commits if commit.sha == sha), None)


@dataclass
class Fault:
    """A fault of the next `times` requests whose "METHOD /path?query" matches the pattern."""

    pattern: str
    times: int
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = ""
    after: int | None = None  # bytes of the body to send before the connection breaks
    reset: bool = False  # with RST, as a middlebox does; else the server closes it
    seconds: float = 0.0  # before any answer


@dataclass(frozen=True)
class Request:
    """A request and the status of its answer."""

    method: str
    path: str  # with the query, quoted
    headers: Message
    status: int  # 0: broken before a status line


class HubServer:
    """The server; tests add repositories, tokens and faults, and read `requests`.

    `url` is the endpoint.

    ```
    model = hub_server.repository("owner/name", {"config.json": "{}", "model.safetensors": b"..."})
    pinned = model.commit({"config.json": "{...}"})
    data = hub_server.repository("owner/data", {"train.jsonl": "..."}, kind="dataset")
    hub_server.fail("GET /owner/name/resolve", status=429, headers={"Retry-After": "1"}, times=2)
    hub_server.cut("GET .*model.safetensors", after=11_000_000)
    assert len(hub_server.matching("GET .*model.safetensors")) == 2
    ```
    """

    def __init__(self) -> None:
        self.repositories: dict[tuple[str, str], Repository] = {}
        # token to user
        self.tokens: dict[str, str] = {"hf_loopback_write": "cook", "hf_loopback_read": "guest"}
        self.writers = {"cook"}
        self.large: dict[str, bytes] = {}  # by digest; uploaded to LFS, in a commit or not yet
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.page = 1000  # entries of a listing
        self.lists_datasets = False  # answer searches for data sets, as the real hub does
        self.lock = threading.RLock()
        self._connections: set[socket.socket] = set()
        self._port = 0
        self.plug()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def storage(self) -> str:
        """The URL of large files: another origin, as on the real hub, which gets no token."""
        return f"http://localhost:{self._port}/storage"

    def repository(
        self,
        name: str,
        files: Mapping[str, bytes | str] | None = None,
        *,
        kind: str = "model",
        **options: Any,
    ) -> Repository:
        repository = Repository(name, kind, **options)
        self.repositories[kind, name] = repository
        repository.commit(files or {".gitattributes": ""}, "initial commit")
        return repository

    def fail(
        self,
        pattern: str,
        *,
        status: int,
        times: int = 1,
        headers: Mapping[str, str] | None = None,
        body: str = '{"error": "a fault of this test"}',
    ) -> None:
        self.faults.append(Fault(pattern, times, status, headers or {}, body))

    def cut(self, pattern: str, *, after: int, times: int = 1, reset: bool = False) -> None:
        """Break the connection after so many bytes of the body."""
        self.faults.append(Fault(pattern, times, after=after, reset=reset))

    def slow(self, pattern: str, *, seconds: float, times: int = 1) -> None:
        self.faults.append(Fault(pattern, times, seconds=seconds))

    def matching(self, pattern: str) -> list[Request]:
        """Return the requests so far that match the pattern."""
        with self.lock:
            return [
                each for each in self.requests if re.search(pattern, f"{each.method} {each.path}")
            ]

    def plug(self) -> None:
        """Listen at the same port as before."""
        self._http = _Listener(("127.0.0.1", self._port), self)
        self._port = self._http.server_address[1]
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self._thread.start()

    def unplug(self) -> None:
        """Simulate a missing network: refuse connections, and break the open ones."""
        self._http.shutdown()
        self._http.server_close()
        with self.lock:
            for connection in self._connections:
                with _gone():
                    connection.shutdown(socket.SHUT_RDWR)
            self._connections.clear()

    def hold(self, connection: socket.socket) -> None:
        with self.lock:
            self._connections.add(connection)

    def fault(self, line: str) -> Fault | None:
        with self.lock:
            for each in self.faults:
                if each.times > 0 and re.search(each.pattern, line):
                    each.times -= 1
                    return each
        return None


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], hub: HubServer) -> None:
        self.hub = hub
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that hangs up."""


class _gone:
    """Suppresses the OSError of a socket whose other side has closed."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> bool:
        return kind is not None and issubclass(kind, OSError)


class _Rejected(Exception):
    """An error response in the hub's format."""

    def __init__(self, status: int, text: str, code: str = "") -> None:
        super().__init__(text)
        self.status, self.text, self.code = status, text, code


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Listener

    def setup(self) -> None:
        super().setup()
        # headers and body are two writes
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.hub = self.server.hub
        self.hub.hold(self.connection)

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        self._body = self._read()
        self._fault = self.hub.fault(f"{self.command} {self.path}")
        if self._fault and self._fault.seconds:
            time.sleep(self._fault.seconds)  # simulates the latency of a slow Hub
        if self._fault and self._fault.status:
            self._send(self._fault.status, self._fault.body.encode(), self._fault.headers)
            return
        try:
            self._route()
        except _Rejected as rejected:
            headers = {
                "X-Error-Message": rejected.text,
                **({"X-Error-Code": rejected.code} if rejected.code else {}),
            }
            self._json({"error": rejected.text}, rejected.status, headers)

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

    def _read(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "") == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _route(self) -> None:
        path = urlsplit(self.path).path
        for pattern, answer in _ROUTES:
            if match := re.fullmatch(pattern, path):
                getattr(self, answer)(
                    **{name: unquote(part or "") for name, part in match.groupdict().items()}
                )
                return
        raise _Rejected(404, f"the loopback hub does not know {self.command} {path}")

    # --- users and repositories

    def _user(self) -> str | None:
        header = self.headers.get("Authorization", "")
        if not header:
            return None
        token = header.removeprefix("Bearer ")
        if token not in self.hub.tokens:
            raise _Rejected(401, "Invalid credentials in Authorization header")
        return self.hub.tokens[token]

    def _writer(self) -> str:
        user = self._user()
        if user is None:
            raise _Rejected(401, "Invalid username or password.")
        if user not in self.hub.writers:
            raise _Rejected(
                403, "You don't have the rights to write here: this token can only read"
            )
        return user

    def _repository(self, kind: str, name: str) -> Repository:
        user, found = (
            self._user(),
            self.hub.repositories.get((_KINDS.get(kind or "models", kind), name)),
        )
        if found is None or (found.private and user is None):
            if user is None:  # the real hub does not reveal private repositories either
                raise _Rejected(401, "Invalid username or password.")
            raise _Rejected(404, "Repository not found", "RepoNotFound")
        return found

    def _commit(
        self, kind: str, name: str, revision: str, *, content: bool = False
    ) -> tuple[Repository, Commit]:
        repository = self._repository(kind, name)
        user = self._user()
        if content and repository.gated and user not in repository.readers:
            raise _Rejected(
                401 if user is None else 403,
                f"Access to {repository.kind} {name} is restricted: "
                f"visit {self.hub.url}/{name} to ask for access.",
                "GatedRepo",
            )
        commit = repository.at(revision or "main")
        if commit is None:
            raise _Rejected(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return repository, commit

    # --- endpoints

    def about(self, kind: str, name: str, revision: str = "") -> None:
        repository, commit = self._commit(kind, name, revision)
        card = commit.files.get("README.md", b"").decode("utf-8", "replace")
        siblings = [
            {
                "rfilename": path,
                **(_sizes(content) if "blobs=" in self.path else {}),
                **({"lfs": _large(content)} if "blobs=" in self.path and _is_large(path) else {}),
            }
            for path, content in sorted(commit.files.items())
        ]
        self._json(
            {
                "_id": "0" * 24,
                "id": name,
                "modelId": name,
                "author": name.partition("/")[0],
                "sha": commit.sha,
                "private": repository.private,
                "gated": "manual" if repository.gated else False,
                "disabled": False,
                "lastModified": _DATE,
                "createdAt": _DATE,
                "downloads": 0,
                "likes": 0,
                "tags": [],
                "cardData": _card_data(card),
                "siblings": siblings,
                "usedStorage": sum(map(len, commit.files.values())),
            }
        )

    def tree(self, kind: str, name: str, revision: str, folder: str = "") -> None:
        _, commit = self._commit(kind, name, revision, content=True)
        query = parse_qs(urlsplit(self.path).query)
        if folder and not any(
            path == folder or path.startswith(folder + "/") for path in commit.files
        ):
            raise _Rejected(404, f"{folder} does not exist on {revision}", "EntryNotFound")
        entries = list(_entries(commit, folder, _true(query, "recursive"), _true(query, "expand")))
        start = int(query.get("cursor", ["0"])[0])
        headers = {}
        if start + self.hub.page < len(entries):
            flags = "&".join(
                f"{key}={query[key][0]}" for key in ("recursive", "expand") if key in query
            )
            bare = urlsplit(self.path).path
            headers["Link"] = (
                f'<{self.hub.url}{bare}?{flags}&cursor={start + self.hub.page}>; rel="next"'
            )
        self._json(entries[start : start + self.hub.page], headers=headers)

    def paths(self, kind: str, name: str, revision: str) -> None:
        _, commit = self._commit(kind, name, revision, content=True)
        if "json" in self.headers.get("Content-Type", ""):
            requested = json.loads(self._body)["paths"]
        else:
            requested = parse_qs(self._body.decode()).get("paths", [])
        entries = list[Any]()
        for folder in {path.rpartition("/")[0] for path in requested}:
            entries += _entries(commit, folder, recursive=False, expand=False)
        self._json([entry for entry in entries if entry["path"] in requested])

    def branches(self, kind: str, name: str) -> None:
        repository = self._repository(kind, name)
        self._json(
            {
                "branches": [
                    {"name": ref, "ref": f"refs/heads/{ref}", "targetCommit": sha}
                    for ref, sha in repository.refs.items()
                ],
                "converts": [],
                "tags": [],
            }
        )

    def history(self, kind: str, name: str, revision: str) -> None:
        repository, _ = self._commit(kind, name, revision)
        self._json(
            [
                {
                    "id": commit.sha,
                    "title": commit.message,
                    "message": "",
                    "date": _DATE,
                    "authors": [],
                }
                for commit in reversed(repository.commits)
            ]
        )

    def resolve(self, kind: str, name: str, revision: str, path: str) -> None:
        _, commit = self._commit(kind, name, revision, content=True)
        headers = {"X-Repo-Commit": commit.sha, "Accept-Ranges": "bytes"}
        if path not in commit.files:
            self._json(
                {"error": "Entry not found"},
                404,
                {**headers, "X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"},
            )
            return
        content = commit.files[path]
        if not _is_large(path):
            self._content(content, {**headers, "ETag": f'"{_git(content)}"'})
            return
        digest = _sha256(content)
        self.hub.large[digest] = content
        self._send(
            302,
            b"",
            {
                **headers,
                "X-Linked-Size": str(len(content)),
                "X-Linked-ETag": f'"{digest}"',
                "ETag": f'"{digest}"',
                "Location": f"{self.hub.storage}/{digest}/{quote(path)}",
            },
        )

    def stored(self, digest: str, path: str) -> None:
        if "Authorization" in self.headers:
            raise _Rejected(400, "Only one auth mechanism allowed: a token was sent to the storage")
        self._content(self.hub.large[digest], {"ETag": f'"{digest}"', "Accept-Ranges": "bytes"})

    def upload(self, digest: str) -> None:
        if _sha256(self._body) != digest:
            raise _Rejected(400, "BadDigest")
        self.hub.large[digest] = self._body
        self._json({})

    def batch(self, kind: str, name: str) -> None:
        self._writer()
        self._repository(kind, name)
        self._json(
            {
                "transfer": "basic",
                "objects": [
                    {
                        **each,
                        **(
                            {}
                            if each["oid"] in self.hub.large
                            else {
                                "actions": {"upload": {"href": f"{self.hub.storage}/{each['oid']}"}}
                            }
                        ),
                    }
                    for each in json.loads(self._body)["objects"]
                ],
            }
        )

    def create(self) -> None:
        user, order = self._writer(), json.loads(self._body)
        name = f"{order.get('organization') or user}/{order['name']}"
        kind = order.get("type", "model")
        url = f"{self.hub.url}/{'' if kind == 'model' else kind + 's/'}{name}"
        if (kind, name) in self.hub.repositories:
            self._json({"error": "You already created this repo", "url": url}, 409)
            return
        self.hub.repository(name, kind=kind, private=order.get("visibility") == "private")
        self._json({"url": url, "name": name, "id": "0" * 24})

    def preupload(self, kind: str, name: str, revision: str) -> None:
        self._writer()
        _, commit = self._commit(kind, name, revision)
        files = []
        for each in json.loads(self._body)["files"]:
            path = each["path"]
            mode, digest = ("lfs", _sha256) if _is_large(path) else ("regular", _git)
            content = commit.files.get(path)
            files.append(
                {
                    "path": path,
                    "uploadMode": mode,
                    "shouldIgnore": False,
                    "oid": None if content is None else digest(content),
                }
            )
        self._json({"files": files})

    def write(self, kind: str, name: str, revision: str) -> None:
        self._writer()
        repository, commit = self._commit(kind, name, revision)
        lines = [json.loads(line) for line in self._body.splitlines()]
        header, changes = lines[0]["value"], {}
        if header.get("parentCommit", commit.sha) != commit.sha:
            raise _Rejected(412, "The repository has changed since: " + commit.sha)
        for line in lines[1:]:
            value, key = line["value"], line["key"]
            if key == "deletedFolder":
                gone = [path for path in commit.files if path.startswith(value["path"])]
                changes.update(dict.fromkeys(gone))
            elif key == "deletedFile":
                changes[value["path"]] = None
            elif key == "file":
                changes[value["path"]] = base64.b64decode(value["content"])
            elif value["oid"] in self.hub.large:
                changes[value["path"]] = self.hub.large[value["oid"]]
            else:
                raise _Rejected(
                    400, f"LFS object {value['oid']} of {value['path']} was not uploaded"
                )
        sha = repository.commit(changes, header["summary"], revision)
        self._json(
            {
                "success": True,
                "commitOid": sha,
                "commitUrl": f"{self.hub.url}/{name}/commit/{sha}",
                "hookOutput": "",
            }
        )

    def search(self) -> None:
        """List the data sets of an owner."""
        if not self.hub.lists_datasets:
            raise _Rejected(404, "the loopback hub does not list data sets")
        [owner] = parse_qs(urlsplit(self.path).query)["author"]
        names = [name for kind, name in self.hub.repositories if kind == "dataset"]
        self._json([{"id": name} for name in names if name.startswith(owner)])

    def whoami(self) -> None:
        user = self._user()
        if user is None:
            raise _Rejected(401, "Invalid username or password.")
        role = "write" if user in self.hub.writers else "read"
        self._json(
            {
                "type": "user",
                "id": "0" * 24,
                "name": user,
                "fullname": user,
                "orgs": [],
                "auth": {
                    "type": "access_token",
                    "accessToken": {"displayName": "loopback", "role": role},
                },
            }
        )

    def card(self) -> None:
        self._json({"errors": [], "warnings": []})

    # --- bytes on the wire

    def _content(self, content: bytes, headers: Mapping[str, str]) -> None:
        if self.headers.get("If-None-Match") == headers["ETag"]:
            self._send(304, b"", headers)
            return
        span = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if span is None or self.headers.get("If-Range", headers["ETag"]) != headers["ETag"]:
            self._send(200, content, headers)
            return
        first = int(span[1]) if span[1] else max(len(content) - int(span[2]), 0)
        last = min(int(span[2]), len(content) - 1) if span[1] and span[2] else len(content) - 1
        if first > last:
            self._send(416, b"", {**headers, "Content-Range": f"bytes */{len(content)}"})
            return
        self._send(
            206,
            content[first : last + 1],
            {**headers, "Content-Range": f"bytes {first}-{last}/{len(content)}"},
        )

    def _json(
        self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        self._send(
            status,
            json.dumps(value).encode(),
            {"Content-Type": "application/json", **(headers or {})},
        )

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        with self.hub.lock:
            self.hub.requests.append(Request(self.command, self.path, self.headers, status))
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if self._fault is None or self._fault.after is None:
            self.wfile.write(body)
            return
        self.wfile.write(body[: self._fault.after])
        self.wfile.flush()
        self.close_connection = True
        if self._fault.reset:
            # a reset discards what the client has not received yet
            wait_until(lambda: _unsent_bytes(self.connection) == 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()


def _unsent_bytes(connection: socket.socket) -> int:
    """Return the number of bytes written to a socket that its peer has not acknowledged."""
    answer = fcntl.ioctl(connection, termios.TIOCOUTQ, struct.pack("i", 0))
    count: int = struct.unpack("i", answer)[0]
    return count


_REPOSITORY = r"(?P<name>[^/]+(?:/[^/]+)?)"
_API = rf"/api/(?P<kind>models|datasets)/{_REPOSITORY}"
_REVISION = r"/(?P<revision>[^/]+)"
_ROUTES = [
    (r"/api/whoami-v2", "whoami"),
    (r"/api/datasets", "search"),
    (r"/api/repos/create", "create"),
    (r"/api/validate-yaml", "card"),
    (rf"{_API}/revision{_REVISION}", "about"),
    (rf"{_API}/tree{_REVISION}(?:/(?P<folder>.+))?", "tree"),
    (rf"{_API}/paths-info{_REVISION}", "paths"),
    (rf"{_API}/preupload{_REVISION}", "preupload"),
    (rf"{_API}/commits{_REVISION}", "history"),
    (rf"{_API}/commit{_REVISION}", "write"),
    (rf"{_API}/refs", "branches"),
    (_API, "about"),
    (r"/storage/(?P<digest>[0-9a-f]{64})", "upload"),
    (r"/storage/(?P<digest>[0-9a-f]{64})/(?P<path>.+)", "stored"),
    (rf"/(?:(?P<kind>datasets)/)?{_REPOSITORY}\.git/info/lfs/objects/batch", "batch"),
    (rf"/(?:(?P<kind>datasets)/)?{_REPOSITORY}/resolve{_REVISION}/(?P<path>.+)", "resolve"),
]


def _entries(
    commit: Commit, folder: str, recursive: bool, expand: bool
) -> Iterator[dict[str, Any]]:
    """Yield the entries of a folder as the hub lists them; for a file, the file itself."""
    last = {"id": commit.sha, "title": commit.message, "date": _DATE} if expand else None
    seen = set()
    for path, content in sorted(commit.files.items()):
        if folder and path != folder and not path.startswith(folder + "/"):
            continue
        inside = path[len(folder) :].strip("/").split("/")
        for depth in range(1, len(inside)):
            name = "/".join([*([folder] if folder else []), *inside[:depth]])
            if name not in seen and (recursive or depth == 1):
                seen.add(name)
                yield {
                    "type": "directory",
                    "oid": _git(name.encode()),
                    "size": 0,
                    "path": name,
                    "lastCommit": last,
                }
        if recursive or len(inside) == 1:
            entry = {
                "type": "file",
                "oid": _git(content),
                "size": len(content),
                "path": path,
                "lastCommit": last,
            }
            if _is_large(path):
                entry["lfs"] = {"oid": _sha256(content), "size": len(content), "pointerSize": 134}
            yield entry


def _sizes(content: bytes) -> dict[str, Any]:
    return {"size": len(content), "blobId": _git(content)}


def _large(content: bytes) -> dict[str, Any]:
    return {"sha256": _sha256(content), "size": len(content), "pointerSize": 134}


def _card_data(card: str) -> Any:
    """Return the metadata of a card; nothing where aliases or depth would take all memory."""
    head = card.split("---\n")[1] if card.count("---\n") > 1 else ""
    return {} if not head or "*" in head or "[" * 100 in head else YAML(typ="safe").load(head)


def _is_large(path: str) -> bool:
    return path.endswith(_LARGE)


def _true(query: Mapping[str, list[str]], key: str) -> bool:
    return query.get(key, ["false"])[0].lower() in ("true", "1")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _git(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
