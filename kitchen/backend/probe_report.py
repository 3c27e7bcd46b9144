"""Reports of probes: which features a server has, found out by trying each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """The outcome of a probe for one feature."""

    feature: str  # name of a capability, such as "loss ppo", or of another feature
    present: bool | None  # None: the probe could not find out
    needed_for: str = ""  # settings, recipes or commands that need the feature
    detail: str = ""  # reason why it is absent or not known, such as the server's message
    seconds: float = 0.0


@dataclass(frozen=True)
class ProbeReport:
    """The findings about one server, in the order of the requests."""

    address: str
    model: str  # base model with which the server was probed
    date: str  # ISO 8601, UTC
    seconds: float
    findings: Sequence[Finding]

    @property
    def when(self) -> str:
        """The date for people: 2026-11-28 15:43 UTC."""
        return f"{self.date[:16].replace('T', ' ')} UTC"

    @property
    def lacking(self) -> Sequence[Finding]:
        return [finding for finding in self.findings if finding.present is False]

    @property
    def unknown(self) -> Sequence[Finding]:
        return [finding for finding in self.findings if finding.present is None]

    @property
    def present(self) -> Sequence[str]:
        return [finding.feature for finding in self.findings if finding.present]
