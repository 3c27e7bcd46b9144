"""A hub on loopback, and clients that use no other."""

from __future__ import annotations

import pytest

from tests.support.hub_fixtures import go_offline, hub_server, no_default_hub

__all__ = ["go_offline", "hub_server", "no_default_hub"]


def pytest_configure(config: pytest.Config) -> None:
    """Ignore a deprecated way in which `huggingface_hub` itself sends a commit through httpx2."""
    config.addinivalue_line(
        "filterwarnings", "ignore:Use 'content=<...>':DeprecationWarning:httpx2._models"
    )
