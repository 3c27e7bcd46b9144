"""Middleware that answers only permitted requests, and sets the headers of every response."""

from __future__ import annotations

import base64
import hmac
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from kitchen.backend.serving import is_local_request

# the report has styles in its SVG elements; scripts come from this server only
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Gate:
    """Rejects requests that would change something, lack the key or come from other pages."""

    def __init__(self, app: ASGIApp, key: str | None) -> None:
        self._app = app
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        rejection = self._rejection(Request(scope))
        await (rejection or self._app)(scope, receive, send_with_headers)

    def _rejection(self, request: Request) -> Response | None:
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("only GET and HEAD\n", 405, {"Allow": "GET, HEAD"})
        if self._key is not None:
            if not hmac.compare_digest(_sent_key(request).encode(), self._key.encode()):
                headers = {"WWW-Authenticate": 'Basic realm="crucible-kitchen", charset="UTF-8"'}
                return PlainTextResponse("the key is missing or wrong\n", 401, headers)
        elif not _is_local(request):
            return PlainTextResponse(
                "without a key this server answers only at a loopback address; set KITCHEN_UI_KEY "
                "for others\n",
                403,
            )
        return None


def _is_local(request: Request) -> bool:
    """Return False for requests of other sites' pages, except for a link that a user follows."""
    headers = dict(request.headers)
    if (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == ("navigate", "document"):
        headers.pop("sec-fetch-site", None)
    return is_local_request(headers)


def _sent_key(request: Request) -> str:
    """Return the key in X-API-Key, or the password of HTTP Basic, which browsers ask for."""
    if "x-api-key" in request.headers:
        return request.headers["x-api-key"]
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        decoded = base64.b64decode(credentials, validate=True).decode()
    except ValueError:  # neither Base64 nor UTF-8
        return ""
    return decoded.partition(":")[2]
