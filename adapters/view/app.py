"""The application: paths and queries, and the runs behind them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import wraps
from http import HTTPStatus
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from adapters.view import pages
from adapters.view.gate import Gate
from adapters.view.markup import Html
from kitchen.config.adapter_choice import check_run_name
from kitchen.errors import ConfigError, KitchenError
from kitchen.experiments.ledger import Ledger
from kitchen.experiments.reports.build import build_report
from kitchen.ports.blobs import BlobStore
from kitchen.runs.follow import RunFollower, RunView
from kitchen.runs.store import RunSummary, list_runs, read_journal, run_summary, top_folders

_FOLLOWED = 8  # runs whose rows are kept in memory
_MOST_COMPARED = 20  # runs of a comparison
_FILES = {"view.css": "text/css", "view.js": "text/javascript"}
Page = Callable[[Request], Html]


def create_app(blobs: BlobStore, key: str | None) -> Starlette:
    """Return the application; with a key, every request must send it."""
    view = View(blobs)
    routes = [
        Route("/", _page(view.runs)),
        Route("/live", _page(view.live_runs)),
        Route("/runs/{name}", _page(view.run)),
        Route("/runs/{name}/live", _page(view.live)),
        Route("/runs/{name}/samples", _page(view.samples)),
        Route("/sweeps/{name}", _page(view.sweep)),
        Route("/report", _page(view.report)),
        *(Route(f"/{name}", _file(name, kind)) for name, kind in _FILES.items()),
    ]
    handlers = {HTTPException: _http_error}
    return Starlette(
        routes=routes,
        middleware=[Middleware(Gate, key=key)],
        exception_handlers=handlers,  # type: ignore[arg-type]
    )


class View:
    """The pages over one store of runs; each request reads the store."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._runs = FollowedRuns(blobs)
        self._drawing = threading.Lock()  # matplotlib draws on one thread at a time

    def runs(self, request: Request) -> Html:
        newest_first = self._newest_first()
        others = set(top_folders(self._blobs)) - {run.id for run in newest_first}
        sweeps = [name for name in sorted(others) if self._blobs.read(f"{name}/sweep.json")]
        return pages.runs(newest_first, sweeps, _query(request, "state"))

    def live_runs(self, request: Request) -> Html:
        return pages.live_runs(self._newest_first(), _query(request, "state"))

    def _newest_first(self) -> Sequence[RunSummary]:
        return sorted(list_runs(self._blobs), key=lambda run: run.started, reverse=True)

    def run(self, request: Request) -> Html:
        name = _name(request)
        view = self._runs.read(name)
        return pages.run(name, view, read_journal(self._blobs, name, "tables"))

    def live(self, request: Request) -> Html:
        return pages.live(self._runs.read(_name(request)))

    def samples(self, request: Request) -> Html:
        name = _name(request)
        return pages.samples(name, self._runs.read(name).samples, _query(request, "stage"))

    def sweep(self, request: Request) -> Html:
        ledger = Ledger(self._blobs, _name(request))
        return pages.sweep(ledger.sweep(), ledger.statuses())

    def report(self, request: Request) -> Html:
        names = [check_run_name(name) for name in request.query_params.getlist("name")]
        if not names or len(names) > _MOST_COMPARED:
            raise ConfigError(
                f"choose 1 to {_MOST_COMPARED} runs or sweeps in the list; the first is the "
                "baseline"
            )
        if request.query_params.get("by") == "start":  # chosen in the list, the newest first
            names.sort(key=lambda name: run_summary(self._blobs, name).started)
        with self._drawing:
            return pages.report(build_report(self._blobs, names), names)


class FollowedRuns:
    """The runs that were looked at last, of which only new rows are parsed."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._followers: OrderedDict[str, tuple[RunFollower, threading.Lock]] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, name: str) -> RunView:
        """Read a run; raises ConfigError if it cannot be read."""
        with self._lock:
            new = (RunFollower(self._blobs, name), threading.Lock())
            follower, reading = self._followers.setdefault(name, new)
            self._followers.move_to_end(name)
            while len(self._followers) > _FOLLOWED:
                self._followers.popitem(last=False)
        with reading:
            return follower.read()


def _page(page: Page) -> Callable[[Request], Response]:
    """Return an endpoint, which Starlette calls on a thread, with errors as pages."""

    @wraps(page)
    def endpoint(request: Request) -> Response:
        try:
            return HTMLResponse(page(request))
        except ConfigError as error:
            return HTMLResponse(pages.failure("Not found", str(error)), HTTPStatus.NOT_FOUND)
        except KitchenError as error:
            text = pages.failure("This cannot be shown", str(error))
            return HTMLResponse(text, HTTPStatus.INTERNAL_SERVER_ERROR)

    return endpoint


def _file(name: str, kind: str) -> Callable[[Request], Response]:
    content = Path(__file__).with_name(name).read_bytes()

    def endpoint(request: Request) -> Response:
        return Response(content, media_type=kind)

    return endpoint


async def _http_error(request: Request, error: HTTPException) -> Response:
    return HTMLResponse(pages.failure(error.detail, f"{request.url.path}"), error.status_code)


def _name(request: Request) -> str:
    return check_run_name(request.path_params["name"])


def _query(request: Request, kind: str) -> pages.Query:
    """Return what a list is asked for; `kind` is the parameter by which it is filtered."""
    asked = request.query_params
    return pages.Query(asked.get("q", ""), asked.get(kind, ""), _page_number(request))


def _page_number(request: Request) -> int:
    """Return the page that is asked for, from 1."""
    text = request.query_params.get("page", "1")
    return max(1, int(text)) if text.isdecimal() and len(text) < 10 else 1
