"""Limits of a server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The resources that clients may use, and how long the server waits for them."""

    request_bytes: int = 32 * 2**20  # the SDK splits its own requests at 5 MB
    # seconds that a poll for a result is held open; the SDK polls again after 45
    long_poll: float = 20.0
    sweep_interval: float = 10.0  # seconds
    # seconds without a request after which a client's session ends; the SDK sends one every 10 s
    session_timeout: float = 300.0
    models_per_session: int = 64  # in training at the same time
    samplers_per_session: int = 10_000
    snapshots_per_session: int = 64  # saved for sampling; the least recently used is deleted first

    fetched_result_ttl: float = 300.0  # seconds, in case the response was lost
    # seconds for a result that nobody fetches: a client that gave up does not report it
    unclaimed_result_ttl: float = 3600.0
    unfetched_results: int = 10_000  # per queue; further requests get status 429
    pending_bytes: int = 2**30  # of pending requests, per queue; further requests get status 429

    open_samplers: int = (
        4  # in memory at the same time; the others are reopened when their turn comes
    )
    batch_rows: int = 256  # completions submitted to a sampler at once, if no request wants more
    # seconds that requests wait for others, to be submitted together in order of their numbers
    gather_delay: float = 0.005
    idle_sampler_timeout: float = 60.0  # seconds
