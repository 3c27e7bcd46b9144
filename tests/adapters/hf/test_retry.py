"""How long the client may wait, whatever happens, and what is left behind of that."""

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
from tests.adapters.hf.server import HubServer

SMALL = {"config.json": "{}", "model.safetensors": b"weights"}


@pytest.fixture
def said() -> Iterator[StringIO]:
    """What `huggingface_hub` logs."""
    logger, handler = (
        logging.getLogger("huggingface_hub"),
        logging.StreamHandler(said := StringIO()),
    )
    logger.addHandler(handler)
    yield said
    logger.removeHandler(handler)


def test_a_refused_connection_does_not_end_it(hub_server: HubServer, said: StringIO) -> None:
    from huggingface_hub import get_session

    session = get_session()
    hub_server.repository("owner/cups", {"train.jsonl": '{"a": "b"}\n'}, kind="dataset")
    store = HfDatasets(timeout=1.5)
    store.splits("owner/cups")
    hub_server.fail("HEAD .*train.jsonl", status=503, headers={"Retry-After": "3600"})
    hub_server.unplug()
    threading.Timer(0.3, hub_server.plug).start()
    with pytest.raises(ApiError, match=r"owner/cups.*503") as told:
        store.load("owner/cups")
    assert told.value.status == 503
    assert get_session() is session, "the client of all others, too"
    assert len(hub_server.asked("HEAD")) == 1
    assert said.getvalue() == "", "the client tells of each time that it tries again"
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
def test_what_a_server_says_to_wait(headers: dict[str, str], seconds: float) -> None:
    assert retry_after(httpx2.Response(429, headers=headers)) == seconds


def test_of_what_the_client_says_all_else_is_shown(said: StringIO) -> None:
    from huggingface_hub.utils import _http

    with limited_waiting(1):
        _http.logger.warning("A note of the server")
    _http.logger.warning("Retrying in 1s, of another program")
    assert said.getvalue() == "A note of the server\nRetrying in 1s, of another program\n"


@pytest.mark.slow
def test_a_server_that_refuses_every_connection(hub_server: HubServer) -> None:
    hub_server.repository("owner/cups", {"train.jsonl": '{"a": "b"}\n'}, kind="dataset")
    store = HfDatasets(timeout=0.5)
    store.splits("owner/cups")
    hub_server.unplug()
    with pytest.raises(BackendError, match=r"cannot be reached.*no answer for 0\.5 s: .*refused"):
        store.load("owner/cups")


def test_nothing_of_it_stays_behind(hub_server: HubServer) -> None:
    from huggingface_hub import get_session
    from huggingface_hub.utils import _http

    session, factory = get_session(), _http._GLOBAL_CLIENT_FACTORY
    hooks = {kind: list(each) for kind, each in session.event_hooks.items()}
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
