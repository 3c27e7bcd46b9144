"""The pages over runs: what they show, what they refuse, and that texts of runs are inert."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from adapters.fake.blobs import FakeBlobs
from adapters.view.chart import MAX_POINTS, chart
from adapters.view.serve import ViewServer
from kitchen.errors import ConfigError
from kitchen.ports import BlobStore
from kitchen.runs.lock import lease
from tests.support.evaluated_runs import scored_rows, write_evaluated_run

LOCAL = "http://127.0.0.1:8001"
KEY = "a-key-of-the-team"
ODD = "</pre><script>alert(1)</script><img src=x onerror=alert(1)> \x1b[2J\u202e"


class Elements(HTMLParser):
    """Collects the elements of a page, and the text between them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def browser(blobs: BlobStore, key: str | None = None, url: str = LOCAL) -> TestClient:
    return TestClient(ViewServer(blobs).app(key), base_url=url)


def write_run(blobs: BlobStore, name: str, steps: int = 0, **changes: Any) -> None:
    """Write an evaluated run, and the metrics of so many steps."""
    write_evaluated_run(blobs, name, scored_rows([1.0, 0.0, 1.0]), **changes)
    rows = [
        {"n": at, "stage": "ReportStep", "step": at, "loss": 3.0 - at / steps, "seconds": 0.1 * at}
        for at in range(steps)
    ]
    blobs.write(f"{name}/metrics.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows).encode())


def shown_runs(response: httpx.Response) -> list[str | None]:
    elements = Elements(response.text).found
    return [of["value"] for tag, of in elements if tag == "input" and of.get("name") == "name"]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", ["basil", "burnt"]),
        ("?q=BAS", ["basil"]),
        ("?q=disk", ["burnt"]),
        ("?state=failed", ["burnt"]),
        ("?state=failed&q=basil", []),
    ],
)
def test_runs_are_filtered(query: str, names: list[str]) -> None:
    blobs = FakeBlobs()
    write_run(blobs, "basil")
    write_run(blobs, "burnt", status="failed", reason="the disk is full")
    response = browser(blobs).get(f"/{query}")
    assert response.status_code == 200
    assert shown_runs(response) == names


def test_many_runs_have_pages() -> None:
    blobs = FakeBlobs()
    for at in range(60):
        write_run(blobs, f"run-{at:02d}")
    client = browser(blobs)
    first, second = shown_runs(client.get("/")), shown_runs(client.get("/?page=2"))
    assert (len(first), len(second)) == (50, 10)
    assert not set(first) & set(second)
    assert shown_runs(client.get("/?page=99")) == second


def test_a_run_in_progress_has_a_live_part() -> None:
    blobs = FakeBlobs()
    write_run(blobs, "basil", 5_000, status="running")
    client = browser(blobs)
    with lease(blobs, "basil"):
        page = Elements(client.get("/runs/basil").text).found
        live = Elements(client.get("/runs/basil/live").text).found
    assert ("script", {"src": "/view.js", "defer": None}) in page
    place = {"id": "live", "data-from": "/runs/basil/live", "data-reload": None}
    assert ("div", place) in page
    assert not [of for _, of in live if "data-over" in of]
    [points] = [of["points"] for tag, of in live if tag == "polyline"]
    assert points is not None
    assert 100 < len(points.split()) <= MAX_POINTS
    killed = Elements(client.get("/runs/basil/live").text).found
    assert [of for _, of in killed if "data-over" in of]


def test_the_list_has_a_live_part_while_a_run_is_in_progress() -> None:
    blobs = FakeBlobs()
    write_run(blobs, "basil", status="running")
    write_run(blobs, "thyme")
    client = browser(blobs)
    with lease(blobs, "basil"):
        page = Elements(client.get("/?q=bas").text).found
        others = Elements(client.get("/?q=thyme").text).found
        going = client.get("/live?q=bas")
    place = {"id": "live", "data-from": "/live?q=bas&state=&page=1"}
    script = ("script", {"src": "/view.js", "defer": None})
    assert ("div", place) in page
    assert script in page
    assert script not in others
    assert shown_runs(going) == ["basil"]
    assert "data-over" not in going.text
    killed = client.get("/live?q=bas")
    assert "data-over" in killed.text
    assert "killed" in Elements(killed.text).text


@pytest.mark.parametrize(
    "path",
    ["/", "/live", "/runs/basil", "/runs/basil/live", "/runs/basil/samples", "/report?name=basil"],
)
def test_texts_of_runs_are_inert(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOUP_API_KEY", "s3cr3t-s3cr3t")
    blobs = FakeBlobs()
    odd = f"{ODD} s3cr3t-s3cr3t"
    write_run(blobs, "basil", 3, status="failed", reason=odd, settings={odd: odd})
    row = {"n": 1, "stage": odd, "step": 0, "prompt": odd, "text": odd, odd: odd}
    blobs.write("basil/samples.jsonl", f"{json.dumps(row)}\n".encode())
    blobs.write("basil/log.jsonl", f"{json.dumps({'event': odd, odd: odd})}\n".encode())
    page = browser(blobs).get(path).text
    assert not {"script", "img"} & {tag for tag, _ in Elements(page).found}
    assert not re.search("[\x1b\u202e]|s3cr3t", page)
    if path.startswith("/runs"):
        assert "</pre><script>alert(1)</script>" in Elements(page).text


def test_samples_are_filtered_and_paged() -> None:
    blobs = FakeBlobs()
    write_run(blobs, "basil")
    rows = [
        {"n": at, "stage": f"Stage{at % 2}", "step": at, "text": f"answer {at}", "reward": at / 10}
        for at in range(50)
    ]
    blobs.write("basil/samples.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows).encode())
    client = browser(blobs)

    def texts(query: str) -> list[str]:
        page = client.get(f"/runs/basil/samples{query}").text
        return re.findall("<pre>(.*?)</pre>", page)

    assert texts("")[:2] == ["answer 49", "answer 48"]
    assert len(texts("")) == 20
    assert texts("?page=3")[-1] == "answer 0"
    assert texts("?q=answer+7") == ["answer 7"]
    assert texts("?stage=Stage0")[0] == "answer 48"


def test_a_sample_has_its_step_and_long_values() -> None:
    blobs = FakeBlobs()
    write_run(blobs, "basil")
    rows = [
        {"n": 1, "stage": "Rank", "step": 0, "when": "ranked", "better": "yes " * 20},
        {"n": 2, "stage": "Roll", "step": 0, "when": "rollout", "text": "hm", "reward": None},
        {"n": 3, "stage": "Roll", "step": 4, "when": "rollout", "text": "so", "reward": 0.25},
    ]
    blobs.write("basil/samples.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows).encode())
    page = browser(blobs).get("/runs/basil/samples").text
    heads = re.findall("<h3>(.*?)</h3>", page)
    assert heads == ["Roll, step 5: reward 0.25", "Roll, step 1", "Rank"]
    assert f"<h4>better</h4><pre>{'yes ' * 20}</pre>" in page


@pytest.mark.parametrize(
    "path",
    [
        "/runs/nope",
        "/runs/%2e%2e",
        "/runs/..%2f..%2fetc%2fpasswd",
        "/runs/%2e%2e/samples",
        "/runs/a%00b",
        "/sweeps/basil",
        "/report?name=../basil",
        "/report",
        "/view.py",
    ],
)
def test_other_paths_are_not_found(path: str) -> None:
    blobs = FakeBlobs()
    write_run(blobs, "basil")
    response = browser(blobs).get(path)
    assert response.status_code == 404
    assert "root:" not in response.text


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_only_reading_is_allowed(method: str) -> None:
    client = browser(FakeBlobs())
    assert client.request(method, "/").status_code == 405
    assert client.head("/").status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "127.0.0.1:8001"}, 200),
        ({"host": "localhost:8001"}, 200),
        ({"host": "[::1]:8001"}, 200),
        ({"host": "evil.example:8001"}, 403),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"host": "192.168.0.7:8001"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"}, 403),
        (
            {
                "sec-fetch-site": "cross-site",
                "sec-fetch-mode": "navigate",
                "sec-fetch-dest": "document",
            },
            200,
        ),
    ],
)
def test_without_a_key_only_loopback_is_answered(headers: dict[str, str], status: int) -> None:
    assert browser(FakeBlobs()).get("/", headers=headers).status_code == status


def basic(password: str) -> dict[str, str]:
    return {"authorization": f"Basic {base64.b64encode(f'me:{password}'.encode()).decode()}"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        (basic(KEY), 200),
        (basic(f"{KEY}x"), 401),
        ({"authorization": "Basic ###"}, 401),
        ({"authorization": "Basic \xff"}, 401),
        ({"authorization": "Basic /w=="}, 401),
        ({"authorization": f"Bearer {KEY}"}, 401),
        ({"x-api-key": KEY}, 200),
        ({"x-api-key": ""}, 401),
    ],
)
def test_a_key_is_asked_for(headers: Mapping[str, str], status: int) -> None:
    blobs = FakeBlobs()
    client = browser(blobs, KEY, "http://kitchen.example")
    for path in ("/", "/view.css", "/nope"):
        encoded = {name.encode(): value.encode("latin-1") for name, value in headers.items()}
        response = client.get(path, headers=encoded)
        assert response.status_code == (404 if (status, path) == (200, "/nope") else status)
        assert ("www-authenticate" in response.headers) == (status == 401)


@pytest.mark.parametrize(("host", "key"), [("0.0.0.0", ""), ("::", ""), ("127.0.0.1", "short")])
def test_an_unsafe_server_is_refused(host: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KITCHEN_UI_KEY", key)
    with pytest.raises(ConfigError, match="KITCHEN_UI_KEY"):
        next(ViewServer(FakeBlobs()).serve(host, 0))


@pytest.mark.parametrize("path", ["/", "/nope", "/view.js"])
def test_a_page_may_load_nothing_from_elsewhere(path: str) -> None:
    response = browser(FakeBlobs()).get(path)
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "frame-ancestors 'none'" in policy
    assert response.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"https?://|style=|\son\w+=", response.text)


def test_two_runs_are_compared() -> None:
    blobs = FakeBlobs()
    write_evaluated_run(blobs, "old", scored_rows([0.0] * 40))
    write_evaluated_run(blobs, "new", scored_rows([1.0] * 40))
    page = browser(blobs).get("/report?name=old&name=new").text
    assert "new is better than old on exact_match" in Elements(page).text
    assert "/report?name=new&amp;name=old" in page


def test_a_damaged_run_is_listed_and_explained() -> None:
    blobs = FakeBlobs()
    write_run(blobs, "basil")
    blobs.write("basil/run.json", b"{")
    client = browser(blobs)
    assert "unreadable" in Elements(client.get("/").text).text
    response = client.get("/runs/basil")
    assert response.status_code == 404
    assert "is not JSON" in Elements(response.text).text


@pytest.mark.parametrize(
    "values", [[1.0], [2.0, 2.0, 2.0], [0.0, 0.0], [-1e308, 1e308], [1e-12, 3e-12], [-5.0, 5.0]]
)
def test_any_curve_is_drawn(values: list[float]) -> None:
    drawn = chart("Loss", {"loss": list(enumerate(values, 1))})
    [points] = [of["points"] for tag, of in Elements(drawn).found if tag == "polyline"]
    assert points is not None
    places = [tuple(map(float, place.split(","))) for place in points.split()]
    assert len(places) == len(values)
    assert all(0 <= x <= 360 and 0 <= y <= 182 for x, y in places)
