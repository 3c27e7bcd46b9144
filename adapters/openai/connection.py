"""A connection to a server of the OpenAI API: concurrent requests, and cached answers."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import json
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

import structlog

from adapters.openai.answer_cache import AnswerCache, request_key
from adapters.openai.checked_answers import Check, checked, without_key
from adapters.openai.chunks import json_chunks
from adapters.openai.errors import MalformedAnswer, fault_of
from adapters.openai.futures import RequestFuture
from adapters.openai.retries import Limits, Retries
from kitchen.backend.port_call import PortCall, current_call
from kitchen.errors import ApiError, BackendError, ConfigError, RunFailed, did_you_mean
from kitchen.secrets import mask

T = TypeVar("T")

log = structlog.get_logger("kitchen.openai")
HOSTED = "https://api.openai.com/v1"
NO_KEY = "none"  # sent to servers without a key, as the SDK needs one
EXIT_GRACE = 30.0  # seconds that the process waits at exit for answers that may be paid for
NOT_FOUND, TOO_MANY, FAILING = 404, 429, 500  # status codes
NO_ACCESS = (401, 403)
OWNER = "crucible-kitchen"  # of the models of `kitchen serve`
_KNOWN_TO_SDK = ("model", "messages", "prompt", "stream")


@dataclass(eq=False)
class Requester:
    """A user of a connection, such as a sampler; what it has not sent when it closes is dropped."""

    is_closed: bool = False
    weights: asyncio.Task[str] | None = None  # finds out which weights answer it


@dataclass(frozen=True)
class Request:
    """A request: its endpoint and body, for whom it is, and the call of a port that it serves."""

    endpoint: str
    body: Mapping[str, Any]
    requester: Requester
    call: PortCall | None = field(default_factory=current_call)
    is_kept: bool = True  # whether its answer may come from the cache, and is kept there
    weights: str | None = None  # digest of those that answer; None to ask the server for it
    asked_seed: int | None = None  # the caller's, if the body has another one or none
    # set when the cache does not have an answer, also by another request for the same call
    sent: threading.Event = field(default_factory=threading.Event, compare=False)

    @property
    def identity(self) -> Mapping[str, Any]:
        """The fields that tell it from other requests, of which each has its own answer."""
        if self.asked_seed is None:
            return self.body
        return {**self.body, "asked_seed": self.asked_seed}


@dataclass
class _UnderWay:
    """A request that is under way, and those who wait for its answer."""

    waiting: list[Requester]
    task: asyncio.Task[Any] | None = None
    is_sent: bool = False

    def check_wanted(self) -> None:
        if all(requester.is_closed for requester in self.waiting):
            raise RunFailed("the sampler was closed before its request was sent")


class Connection:
    """The requests with one address and key, on a thread of their own.

    Equal requests that are under way together are sent once. The key is read from the environment
    when the first request goes out.
    """

    def __init__(self, base_url: str, key: str, limits: Limits, cache: AnswerCache) -> None:
        self._base_url = base_url
        self._key_variable = key
        self._limits = limits
        self._cache = cache
        self._retries = Retries(limits, lambda: self.name, key)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Any = None
        self._room = asyncio.Semaphore(limits.concurrency)
        self._under_way: dict[str, _UnderWay] = {}
        self._has_warned = False

    @property
    def address(self) -> str:
        """The URL of the server: `base_url`, else OPENAI_BASE_URL, else OpenAI's."""
        return (self._base_url or os.environ.get("OPENAI_BASE_URL") or HOSTED).rstrip("/")

    @property
    def name(self) -> str:
        """The address without secrets, for messages."""
        return mask(self.address)

    @property
    def seconds_held_back(self) -> float:
        """The seconds for which the server wants no requests; 0 if it takes them."""
        return self._retries.hold_back.seconds

    def check_address(self) -> None:
        """Raise ConfigError for an address that is no URL."""
        setting = f"sampling.base_url (or OPENAI_BASE_URL) is {self.name!r}"
        if not self.address.startswith(("http://", "https://")):
            raise ConfigError(f"{setting}, and must begin with http:// or https://")
        try:
            url = urlsplit(self.address)
            if not url.hostname or url.port == 0:
                raise ValueError("no host, or port 0")
        except ValueError as error:
            raise ConfigError(
                f"{setting}, whose host or port cannot be used: write http://HOST:PORT/v1, with a "
                "port up to 65535"
            ) from error

    def read_key(self) -> str:
        """Return the API key; errors name the variable, but not its value.

        Raises BackendError if it is missing, and ConfigError for characters that no key has.
        Only OpenAI's own address needs one: other servers may have none, and say so if they do.
        """
        key = os.environ.get(self._key_variable, "").strip()
        if not key and self.address == HOSTED:
            raise BackendError(
                f"the environment variable {self._key_variable} is missing: set it to your API "
                "key, or set sampling.base_url (or OPENAI_BASE_URL) to the address of another "
                "server"
            )
        if not all("!" <= character <= "~" for character in key):
            raise ConfigError(
                f"the environment variable {self._key_variable} has characters that no API key "
                "has, such as a space or a letter outside ASCII: copy the key again"
            )
        return key or NO_KEY

    def submit(
        self, work: Callable[[], Coroutine[Any, Any, T]], sent: threading.Event | None = None
    ) -> RequestFuture[T]:
        """Start a coroutine on the thread of this connection; never blocks.

        `sent` is that of its request.
        """
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()  # a caller that is cancelled leaves it running
        loop = self._running_loop()
        tasks: list[asyncio.Task[T]] = []

        def start() -> None:
            tasks.append(loop.create_task(work()))
            tasks[0].add_done_callback(lambda task: _resolve(future, task))

        def stop() -> None:
            for task in tasks:
                task.cancel()

        loop.call_soon_threadsafe(start)
        on_cancel = partial(loop.call_soon_threadsafe, stop)
        return RequestFuture(future, on_cancel, sent or threading.Event())

    async def post(self, request: Request, check: Check[T]) -> T:
        """Return the content of an answer: a cached one, or else the server's.

        `check` reads it, and raises MalformedAnswer if it lacks something.
        """
        check = checked(check)
        failed = _has_failed(request.requester.weights)
        if failed and (last := self._last_kept(request, check)) is not None:
            return last
        try:
            weights = await self._weights_behind(request)
        except BackendError as error:
            last = self._last_kept(request, check) if _is_out_of_reach(error) else None
            if last is None:
                raise
            return last
        key = request_key(self.address, request.endpoint, request.identity, weights)
        if request.is_kept and (cached := self._cache.read(key)) is not None:
            with suppress(MalformedAnswer):
                return check(cached)
        request.sent.set()
        state = self._under_way.get(key)
        if state is None:
            state = self._under_way[key] = _UnderWay([])
            state.task = asyncio.create_task(self._ask(key, request, check, state))
            state.task.add_done_callback(lambda task: self._end(key, state, task))
        assert state.task is not None
        state.waiting.append(request.requester)
        try:
            return check(await asyncio.shield(state.task))
        except asyncio.CancelledError:
            if len(state.waiting) == 1:
                self._forget(key, state)  # an equal request is sent anew
                state.task.cancel()
            raise
        finally:
            state.waiting.remove(request.requester)

    async def stream(
        self, request: Request, on_chunk: Callable[[Any], object], finish: Callable[[], T]
    ) -> T:
        """Send a request whose answer arrives in chunks, and return what `finish` makes of them.

        It is sent again until the first chunk. The timeout is that of each chunk. Both functions
        raise MalformedAnswer for an answer that cannot be used.
        """

        async def start() -> AsyncGenerator[Any, None]:
            chunks = json_chunks(self.resource(request.endpoint), as_arguments(request.body))
            try:
                async for chunk in chunks:
                    on_chunk(chunk)
                    return chunks
            except Exception:
                await chunks.aclose()
                raise
            raise MalformedAnswer("it has no chunks")

        request.sent.set()
        async with self._room:
            started = self._retries.result(start, request.call)
            async with aclosing(await self._translated(request, started)) as chunks:
                try:
                    while (chunk := await self._next(chunks)) is not None:
                        on_chunk(chunk)
                    return finish()
                except Exception as error:
                    raise self._broken_off(error) from error

    async def _next(self, chunks: AsyncGenerator[Any, None]) -> Any:
        async with asyncio.timeout(self._limits.timeout):
            return await anext(chunks, None)

    def _broken_off(self, error: Exception) -> Exception:
        """Return the error of an answer of which a part has arrived."""
        fault = fault_of(error, self.name, self._key_variable)
        if fault is None:
            return error
        if isinstance(error, MalformedAnswer | TimeoutError):
            return fault.error
        return BackendError(f"{self.name} broke off in the middle of an answer; try again")

    def _forget(self, key: str, state: _UnderWay) -> None:
        if self._under_way.get(key) is state:
            del self._under_way[key]

    def _end(self, key: str, state: _UnderWay, task: asyncio.Task[Any]) -> None:
        self._forget(key, state)
        if not task.cancelled():
            task.exception()  # whoever waited for it has it, or has been cancelled

    async def _ask(self, key: str, request: Request, check: Check[Any], state: _UnderWay) -> Any:
        async def send() -> Any:
            state.is_sent = True
            try:
                answer = await self._sent(request.endpoint, request.body)
            finally:
                state.is_sent = False
            check(answer)
            return answer

        async with self._room:
            sending = self._retries.result(send, request.call, state.check_wanted)
            answer = await self._translated(request, sending)
        return self._kept(key, answer, check) if request.is_kept else answer

    def _kept(self, key: str, answer: Any, check: Check[Any]) -> Any:
        """Cache an answer and return it, or one that was cached while this one was under way.

        So two equal requests, of which one was sent because the other was late, have one answer.
        """
        with self._cache.lock:
            if (earlier := self._cache.read(key)) is not None:
                with suppress(MalformedAnswer):
                    check(earlier)
                    return earlier
            self._cache.write(key, answer)
        return answer

    async def _translated(self, request: Request, sending: Awaitable[T]) -> T:
        """Return a result; raises BackendError with a suggestion for an unknown model."""
        try:
            return await sending
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            raise await self._unknown_model(str(request.body["model"]), error) from error

    async def _sent(self, endpoint: str, body: Mapping[str, Any]) -> Any:
        """Send a request once, and return its answer without the API key, should it repeat it.

        Raises MalformedAnswer if it is no JSON.
        """
        resource = self.resource(endpoint).with_raw_response
        response = await resource.create(**as_arguments(body))
        try:
            text = response.content.decode()
            return without_key(json.loads(text), text, self._key_variable, self.read_key())
        except (ValueError, RecursionError) as error:
            raise MalformedAnswer(f"it is no JSON that can be read: {error}") from error

    def resource(self, endpoint: str) -> Any:
        """Return the SDK's resource of an endpoint; raises BackendError."""
        client = self._opened()
        return client.completions if endpoint == "completions" else client.chat.completions

    async def models(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the server's descriptions of its models, by name; raises BackendError."""

        async def send() -> bytes:
            response = await self._opened().models.with_raw_response.list()
            return bytes(response.content)

        content = await self._retries.result(send)
        try:
            return checked(_models_by_name)(content)
        except MalformedAnswer as error:
            text = f"{self.name} gave a list of models that cannot be read; {error}"
            raise ApiError(text, status=200) from error

    async def weights_sha256(self, model: str, owner: str) -> str | None:
        """Return the digest of a model's weights; None if its server, as most, tells none."""
        if owner != OWNER:
            return None

        async def send() -> str | None:
            response = await self._opened().models.with_raw_response.retrieve(model)
            return checked(_sha256)(response.content)

        try:
            return await self._retries.result(send)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            raise await self._unknown_model(model, error) from error

    async def _weights_behind(self, request: Request) -> str:
        """Return the digest of the weights that answer, asked for once for each requester."""
        if request.weights is not None:
            return request.weights
        if not (request.is_kept and self._cache.keeps) or self.address == HOSTED:
            return ""
        asked = request.requester.weights
        if asked is None or (asked.done() and asked.exception()):
            asked = asyncio.create_task(self._listed_weights(str(request.body["model"])))
            request.requester.weights = asked
        return await asyncio.shield(asked)

    async def _listed_weights(self, model: str) -> str:
        try:
            listed = await self.models()
        except ApiError as error:
            if _is_out_of_reach(error):
                raise
            weights = ""  # the server has no list of models
            if error.status in NO_ACCESS:
                return weights
        else:
            weights = await self.weights_sha256(model, owner_of(model, listed)) or ""
        self._cache.note_weights(self.address, model, weights)
        return weights

    def _last_kept(self, request: Request, check: Check[T]) -> T | None:
        """Return a kept answer of the weights that the server had last, or None."""
        weights = self._cache.last_weights(self.address, str(request.body["model"]))
        if weights is None:
            return None
        key = request_key(self.address, request.endpoint, request.identity, weights)
        with suppress(MalformedAnswer):
            if (cached := self._cache.read(key)) is not None:
                answer = check(cached)
                self._warn_of_last_weights()
                return answer
        return None

    def _warn_of_last_weights(self) -> None:
        if not self._has_warned:
            log.warning(
                "the server does not tell which weights it has, so kept answers of those that it "
                "had last are used",
                server=self.name,
            )
        self._has_warned = True

    async def _unknown_model(self, model: str, error: ApiError) -> ApiError:
        """Return the error for a model that the server does not have, with those that it has."""
        try:
            listed = await self.models()
        except BackendError:
            text = (
                f"{error}; it lists no models either: sampling.base_url (or OPENAI_BASE_URL) "
                "usually ends with /v1"
            )
        else:
            text = _unknown(model, listed, self.name)
        return ApiError(text, status=error.status, body=error.body)

    def _opened(self) -> Any:
        if self._client is None:
            self.check_address()
            try:
                from openai import AsyncOpenAI
            except ImportError as error:
                raise BackendError(
                    "the package openai is missing: pip install 'crucible-kitchen[openai]'"
                ) from error
            self._client = AsyncOpenAI(
                base_url=self.address,
                api_key=self.read_key(),
                max_retries=0,  # ours know of the other requests
                timeout=self._limits.timeout,
            )
        return self._client

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=self._loop.run_forever, name="requests to a server", daemon=True
                ).start()
                atexit.register(self.finish)
            return self._loop

    def finish(self) -> None:
        """Wait at exit for answers under way, which may be paid for, so that they are cached."""
        if not self._cache.keeps or self._loop is None:
            return
        finished = asyncio.run_coroutine_threadsafe(self._sent_answers(), self._loop)
        with suppress(TimeoutError, KeyboardInterrupt):
            finished.result(EXIT_GRACE)

    async def _sent_answers(self) -> None:
        sent = [state.task for state in self._under_way.values() if state.task and state.is_sent]
        for state in self._under_way.values():
            for requester in state.waiting:
                requester.is_closed = True
        if sent:
            log.info("waiting for answers under way, so that they are cached", answers=len(sent))
            await asyncio.wait(sent)


def description_of(model: str, listed: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the description of a model, or of another one on a server that does not list it."""
    return listed.get(model) or next(iter(listed.values()), {})


def owner_of(model: str, listed: Mapping[str, Mapping[str, Any]]) -> str:
    """Return "owned_by" of a model, which tells the kind of its server, such as "vllm"."""
    return str(description_of(model, listed).get("owned_by", ""))


def _is_out_of_reach(error: BaseException | None) -> bool:
    """Return whether a server that raised an error may answer later."""
    if isinstance(error, ApiError):
        return error.status == TOO_MANY or error.status >= FAILING
    return isinstance(error, BackendError)


def _has_failed(task: asyncio.Task[str] | None) -> bool:
    """Return whether a task has asked a server that is out of reach."""
    is_over = task is not None and task.done() and not task.cancelled()
    return task is not None and is_over and _is_out_of_reach(task.exception())


def _models_by_name(content: bytes) -> Mapping[str, Mapping[str, Any]]:
    return {str(model["id"]): dict(model) for model in json.loads(content)["data"]}


def _sha256(content: bytes) -> str | None:
    sha256 = json.loads(content).get("sha256")
    return str(sha256) if sha256 else None


def check_listed(model: str, listed: Iterable[str], server: str) -> None:
    """Raise BackendError for a model that is not among those that a server lists."""
    if model not in (names := list(listed)):
        raise BackendError(_unknown(model, names, server))


def _unknown(model: str, listed: Iterable[str], server: str) -> str:
    return f"{server} has no model {model!r}; {did_you_mean(model, listed)}"


def as_arguments(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body as arguments of the SDK, which knows only the fields of OpenAI's own API."""
    known = {name: body[name] for name in _KNOWN_TO_SDK if name in body}
    return {**known, "extra_body": {k: v for k, v in body.items() if k not in known}}


def _resolve(future: concurrent.futures.Future[T], task: asyncio.Task[T]) -> None:
    if task.cancelled():
        future.set_exception(RunFailed("the request was cancelled"))
    elif (error := task.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(task.result())
