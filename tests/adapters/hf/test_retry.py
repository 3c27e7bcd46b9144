"""The client waits no longer than allowed, and the limit leaves nothing behind."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import StringIO

import httpx2
import pytest

from adapters.fake.hub import FakeHub
from adapters.hf.datasets import HfDatasets
from adapters.hf.errors import retry_after
from adapters.hf.hub import HfHub
from adapters.hf.retry import limited_waiting
from kitchen.errors import ApiError, BackendError
from tests.support.hub_server import HubServer

SMALL = {"config.json": "{}", "model.safetensors": b"weights"}


@pytest.fixture
def client_log() -> Iterator[StringIO]:
    """Yield the log of `huggingface_hub`."""
    logger, handler = (
        logging.getLogger("huggingface_hub"),
        logging.StreamHandler(client_log := StringIO()),
    )
    logger.addHandler(handler)
    yield client_log
    logger.removeHandler(handler)


def test_retries_survive_a_refused_connection(hub_server: HubServer, client_log: StringIO) -> None:
    from huggingface_hub import get_session

    session = get_session()
    hub_server.repository("owner/cups", {"train.jsonl": '{"a": "b"}\n'}, kind="dataset")
    store = HfDatasets(timeout=10)
    store.splits("owner/cups")
    hub_server.fail("HEAD .*train.jsonl", status=503, headers={"Retry-After": "3600"})
    hub_server.unplug()
    threading.Timer(0.3, hub_server.plug).start()
    with pytest.raises(ApiError, match=r"owner/cups.*503") as raised:
        store.load("owner/cups")
    assert raised.value.status == 503
    assert get_session() is session, "other users of the client are not affected"
    assert len(hub_server.matching("HEAD")) == 1
    assert client_log.getvalue() == "", "the client would log each retry"
    assert len(store.load("owner/cups")) == 1


@pytest.mark.parametrize(
    "headers, seconds",
    [
        ({}, 0),
        ({"Retry-After": "3600"}, 3600),
        ({"Retry-After": "Fri, 31 Dec 2027 23:59:59 GMT"}, 0),
        ({"ratelimit": '"api";r=0;t=55'}, 55),
        ({"ratelimit": '"api";r=7;t=55'}, 0),
        ({"ratelimit": '"api";r=0;t=55', "Retry-After": "3600"}, 3600),
    ],
)
def test_retry_after_headers(headers: dict[str, str], seconds: float) -> None:
    assert retry_after(httpx2.Response(429, headers=headers)) == seconds


def test_only_retry_messages_are_filtered(client_log: StringIO) -> None:
    from huggingface_hub.utils import _http

    with limited_waiting(1):
        _http.logger.warning("A note of the server")
    _http.logger.warning("Retrying in 1s, of another program")
    assert client_log.getvalue() == "A note of the server\nRetrying in 1s, of another program\n"


@pytest.mark.slow
def test_refused_connections_are_given_up(hub_server: HubServer) -> None:
    hub_server.repository("owner/cups", {"train.jsonl": '{"a": "b"}\n'}, kind="dataset")
    store = HfDatasets(timeout=0.5)
    store.splits("owner/cups")
    hub_server.unplug()
    with pytest.raises(BackendError, match=r"cannot be reached.*no answer for 0\.5 s: .*refused"):
        store.load("owner/cups")


def test_limits_leave_nothing_behind(hub_server: HubServer) -> None:
    from huggingface_hub import get_session
    from huggingface_hub.utils import _http

    session, factory = get_session(), _http._GLOBAL_CLIENT_FACTORY
    hooks = {kind: list(callbacks) for kind, callbacks in session.event_hooks.items()}
    handlers = logging.getLogger("huggingface_hub").handlers
    filters = [list(handler.filters) for handler in handlers]
    for number in range(6):
        hub_server.repository(f"owner/tiny-{number}", SMALL)

    def fetched(number: int) -> bool:
        return HfHub(FakeHub(), timeout=5).fetch(f"owner/tiny-{number}").is_dir()

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(fetched, range(6)))
    hub_server.unplug()
    with pytest.raises(BackendError, match="cannot be reached"):
        HfHub(FakeHub(), timeout=0.5).fetch(f"owner/tiny-0@{'0' * 40}")
    assert get_session() is session
    assert _http._GLOBAL_CLIENT_FACTORY is factory
    assert session.event_hooks == hooks
    assert [handler.filters for handler in handlers] == filters
