"""The features that a run needs, tried when its session opens rather than after its rollouts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import structlog
import tinker

from adapters.tinker.errors import says_unsupported
from adapters.tinker.probe import may_be_about_inputs, reason
from adapters.tinker.probe_requests import LOSS, Check, ProbeRequests
from adapters.tinker.service import Service
from kitchen.errors import ConfigError

log = structlog.get_logger("kitchen.tinker")


class NeededFeatures:
    """The features that a run needs of a server; each is tried with one request."""

    def __init__(self, service: Service, needed: Iterable[str], losses: Iterable[str]) -> None:
        """Prepare the checks; `losses` are those that the server is believed to have."""
        self._service = service
        self._needed = frozenset(needed)
        self._losses = sorted(losses)

    def check(self, client: Any, training: Any, model: str) -> None:
        """Try the features with the SDK's clients, without a change of the weights in training.

        Raises ConfigError for a feature that the server refuses, and other errors as they come.
        """
        requests = ProbeRequests(self._service, client, model, rank=0, timeout=None)
        for check in requests.checks_of_needs(training, self._needed):
            try:
                check.run()
            except Exception as error:
                if not says_unsupported(error):
                    raise
                why = reason(error, self._service.name)
                if not may_be_about_inputs(check, error, why):
                    raise self._refusal(check, why) from error
                if not isinstance(error, tinker.RequestFailedError):
                    raise  # the server may wait for the number of a request that it did not take
                log.warning("a loss could not be tried before the run", loss=check.feature, why=why)

    def _refusal(self, check: Check, why: str) -> ConfigError:
        others = [loss for loss in self._losses if f"{LOSS}{loss}" != check.feature]
        advice = ""
        if check.feature.startswith(LOSS) and others:
            advice = f"; choose another one (it may have {', '.join(others)})"
        server = self._service.name
        return ConfigError(
            f"{server} lacks {check.feature!r}, which this run needs: {why}{advice}; "
            "`kitchen check --online` lists all that it lacks"
        )
