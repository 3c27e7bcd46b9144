"""Answers of servers, and of proxies before them, as errors of the kitchen."""

from __future__ import annotations

import pytest

pytest.importorskip("tinker")

import httpx
import tinker

from adapters.tinker.errors import (
    is_missing_endpoint,
    is_not_found,
    says_unsupported,
    translate_error,
)
from kitchen.errors import ApiError, BackendError, KitchenError, RunFailed, SessionLost

SERVER = "http://127.0.0.1:8000"


def status_error(status: int, body: object) -> tinker.APIStatusError:
    request = httpx.Request("POST", f"{SERVER}/api/v1/load_weights")
    response = httpx.Response(status, request=request)
    return tinker.APIStatusError(f"Error code: {status}", response=response, body=body)


@pytest.mark.parametrize(
    "status, body, missing, not_found",
    [
        (404, {"detail": "Not Found"}, True, False),  # of FastAPI and Starlette
        (404, {"detail": "POST /api/v1/x is not served here"}, True, False),  # of our server
        (404, "<html>404 Not Found</html>", True, False),  # of a proxy
        (404, None, True, False),
        (405, {"detail": "Method Not Allowed"}, True, False),
        (501, {"detail": "later"}, True, False),
        (404, {"detail": "there are no weights at 'tinker://a/weights/b'"}, False, True),
        (404, {"error": "Checkpoint not found: tinker://a/weights/b"}, False, True),
        (410, {"detail": "Not Found"}, False, True),
        (400, {"detail": "there are no weights at 'tinker://a/weights/b'"}, False, False),
        (401, {"detail": "Not Found"}, False, False),
        (403, {"detail": "not yours"}, False, False),
        (422, {"detail": "path: too long"}, False, False),
        (429, {"detail": "busy"}, False, False),
        (500, {"detail": "broken"}, False, False),
    ],
)
def test_absent_things_differ_from_absent_endpoints(
    status: int, body: object, missing: bool, not_found: bool
) -> None:
    error = status_error(status, body)
    assert is_missing_endpoint(error) == missing
    assert is_not_found(error) == not_found
    translated = translate_error(error, SERVER)
    assert SERVER in str(translated)
    assert isinstance(translated, SessionLost if not_found else ApiError)


@pytest.mark.parametrize(
    "statuses, unsupported",
    [
        ((400, 405, 422, 501), True),
        ((401, 402, 403, 404, 408, 409, 410, 429, 500, 503), False),
    ],
)
def test_few_statuses_mean_that_a_feature_is_absent(
    statuses: tuple[int, ...], unsupported: bool
) -> None:
    for status in statuses:
        error = status_error(status, {"detail": "no session 'a', or another problem"})
        assert says_unsupported(error) == unsupported, status
        assert says_unsupported(translate_error(error)) == unsupported, status
    assert says_unsupported(status_error(404, {"detail": "Not Found"}))


@pytest.mark.parametrize("category", tinker.types.RequestErrorCategory)
def test_only_a_refused_request_means_absence(
    category: tinker.types.RequestErrorCategory,
) -> None:
    error = tinker.RequestFailedError("no such loss", request_id="a", category=category)
    assert says_unsupported(error) == (category.value == "user")
    for kind in ("RunFailed", "BackendError", "SessionLost"):
        text = f"Request failed: {kind}: no memory"
        fault = tinker.RequestFailedError(text, request_id="a", category=category)
        assert not says_unsupported(fault)


@pytest.mark.parametrize(
    "error, kind",
    [
        (tinker.APIConnectionError(request=httpx.Request("POST", SERVER)), SessionLost),
        (RuntimeError("A previous request failed; this client is poisoned"), SessionLost),
        (
            ValueError("Error retrieving result: (status 400) for self.request_id='a'"),
            ApiError,
        ),
        (ValueError("Error retrieving result: with status 401 for self.request_id='a'"), ApiError),
        (ValueError("of our own code"), RunFailed),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_name_the_server(error: Exception, kind: type[KitchenError]) -> None:
    translated = translate_error(error, SERVER)
    assert type(translated) is kind
    assert SERVER in str(translated)
    assert "request_id" not in str(translated)


def test_error_inside_the_sdk_is_of_the_server() -> None:
    from tinker.lib.chunked_fwdbwd_helpers import combine_fwd_bwd_output_results
    from tinker.types import ForwardBackwardOutput

    result = ForwardBackwardOutput(
        loss_fn_output_type="x", loss_fn_outputs=[], metrics={"speed": 1.0}
    )
    with pytest.raises(ValueError, match="unpack") as raised:
        combine_fwd_bwd_output_results([result])
    translated = translate_error(raised.value, SERVER)
    assert isinstance(translated, BackendError)
    assert "_metrics_reduction" in str(translated)
