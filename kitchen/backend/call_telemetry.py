"""OpenTelemetry of port calls, through the API alone: spans and metrics, if there is an SDK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from opentelemetry import metrics, trace

from kitchen.backend.port_call import PortCall
from kitchen.secrets import error_attributes, mask
from kitchen.types import Sampled

_NAME = "crucible-kitchen"
# settings of `Sampler.sample`, and their names in the semantic conventions for generative AI
_SAMPLING: Mapping[str, str] = {
    "max_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "seed": "gen_ai.request.seed",
    "count": "gen_ai.request.choice.count",
}


def tracer_or_none() -> trace.Tracer | None:
    """Return a tracer; None if no SDK has replaced the default provider of the API."""
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    return trace.get_tracer(_NAME)


class CallSpan:
    """The span of one call, from its start until its result arrives."""

    def __init__(self, tracer: trace.Tracer, call: PortCall) -> None:
        self._span = tracer.start_span(f"{call.port}.{call.verb}", attributes=dict(call.caller))

    def active(self) -> AbstractContextManager[Any]:
        """Make this the current span in a block, without ending it."""
        return trace.use_span(self._span, record_exception=False, set_status_on_exception=False)

    def describe_sampling(self, call: PortCall, settings: Mapping[str, Any], module: str) -> None:
        """Add the `gen_ai` attributes of a call of `Sampler.sample`; `module` is the sampler's."""
        attributes = {_SAMPLING[name]: settings[name] for name in _SAMPLING if name in settings}
        stop = settings.get("stop", ())
        stops = [text for text in stop if isinstance(text, str)] if stop is not None else []
        attributes["gen_ai.operation.name"] = "text_completion"
        # the adapter, such as "tinker", or the package of one that is installed
        attributes["gen_ai.provider.name"] = module.removeprefix("adapters.").partition(".")[0]
        attributes |= {"gen_ai.request.model": call.model} if call.model else {}
        attributes |= {"gen_ai.request.stop_sequences": stops} if stops else {}
        self._span.set_attributes(attributes)

    def describe_samples(self, call: PortCall, samples: Sequence[Sampled]) -> None:
        """Add the `gen_ai` attributes of the completions."""
        self._span.set_attributes(
            {
                "gen_ai.usage.input_tokens": call.input_tokens or 0,
                "gen_ai.usage.output_tokens": call.output_tokens or 0,
                "gen_ai.response.finish_reasons": [each.stop_reason for each in samples],
            }
        )

    def end(self, call: PortCall, error: BaseException | None) -> None:
        if error is not None:
            self._span.record_exception(error, attributes=error_attributes(error))
            self._span.set_status(trace.StatusCode.ERROR, mask(str(error)))
        if call.error_type:
            self._span.set_attribute("error.type", call.error_type)
        if call.hedge:
            self._span.set_attribute("kitchen.hedge", call.hedge)
        self._span.end()


class CallMetrics:
    """A histogram of durations; counters of tokens, errors, retries and hedges, over all calls."""

    def __init__(self, meter: metrics.Meter) -> None:
        self._duration = meter.create_histogram(
            "kitchen.port.call.duration", "s", "Duration of calls of a port."
        )
        self._tokens = meter.create_counter(
            "kitchen.port.call.tokens", "{token}", "Tokens that calls of a port read and wrote."
        )
        self._errors = meter.create_counter(
            "kitchen.port.call.errors", "{error}", "Calls of a port that failed."
        )
        self._retries = meter.create_counter(
            "kitchen.port.call.retries", "{request}", "HTTP requests that were sent again."
        )
        self._hedges = meter.create_counter(
            "kitchen.port.call.hedges", "{request}", "Extra requests for late ones."
        )

    def add(self, call: PortCall) -> None:
        attributes = {
            "kitchen.recipe": call.caller.get("kitchen.recipe", ""),
            "kitchen.port": call.port,
            "kitchen.verb": call.verb,
        }
        failed = {**attributes, "error.type": call.error_type} if call.error_type else attributes
        self._duration.record(call.duration_ms / 1000, failed)
        if call.error_type:
            self._errors.add(1, failed)
        if call.retries:
            self._retries.add(call.retries, attributes)
        if call.hedge:
            self._hedges.add(1, {**attributes, "kitchen.hedge": call.hedge})
        for kind, tokens in (("input", call.input_tokens), ("output", call.output_tokens)):
            if tokens is not None:
                self._tokens.add(tokens, {**attributes, "kitchen.token.type": kind})


def metrics_or_none() -> CallMetrics | None:
    """Return the instruments; None if no SDK has replaced the default provider of the API."""
    provider = metrics.get_meter_provider()
    # unlike for spans, the API has no public name for its default provider
    if type(provider).__module__.partition(".")[2].startswith("metrics"):
        return None
    return _instruments(provider)


@cache
def _instruments(provider: metrics.MeterProvider) -> CallMetrics:
    """Create the instruments of a provider once: an SDK warns of the second of the same name."""
    return CallMetrics(provider.get_meter(_NAME))
