"""SamplingClient of servers with OpenAI's API: hosted models, vLLM, SGLang, `kitchen serve`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from adapters.openai.sampler import TextSampler
from kitchen.backend.text_tokens import TextTokenizer
from kitchen.errors import BackendError, ConfigError
from kitchen.ports.sampling import Sampler, Tokenizer
from kitchen.types import Checkpoint

CONCURRENT_REQUESTS = 16
PREFIX = "openai:"


class OpenAISampling:
    """Samples from models behind OpenAI's API, named as in openai:gpt-5-mini."""

    lazily = ("openai",)

    def __init__(self, base_url: str | None = None) -> None:
        """`base_url` is by default $OPENAI_BASE_URL; the key is always $OPENAI_API_KEY."""
        self._base_url = base_url
        self._client: Any = None
        self._threads = ThreadPoolExecutor(CONCURRENT_REQUESTS, "openai")

    @property
    def capabilities(self) -> frozenset[str]:
        return frozenset()

    def find(self, name: str) -> None:
        """Raise BackendError if no request could be sent: without the package or a key."""
        self._open()

    def tokenizer(self, name: str) -> Tokenizer:
        return TextTokenizer()

    def sampler(self, weights: str | Checkpoint) -> Sampler:
        if not isinstance(weights, str):
            raise ConfigError("a checkpoint is opened by the training adapter that saved it")
        return TextSampler(self._open(), weights.removeprefix(PREFIX), self._threads)

    def _open(self) -> Any:
        """Return the SDK's client; raises BackendError."""
        if self._client is None:
            try:
                from openai import OpenAI, OpenAIError
            except ImportError as error:
                raise BackendError(
                    f"the package {error.name or 'openai'} is missing: pip install "
                    "'crucible-kitchen[openai]'"
                ) from error
            try:
                self._client = OpenAI(base_url=self._base_url)
            except OpenAIError as error:
                raise BackendError(
                    "there is no key of OpenAI's API: set the environment variable OPENAI_API_KEY"
                ) from error
        return self._client
