"""Trackers: the base class of adapters that send a run to W&B, MLflow and the like."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class TrackedRun:
    """The run that is sent to a tracker; its texts contain no secrets."""

    name: str
    key: str  # 32 hexadecimal digits, the same in each attempt, and of no other run
    recipe: str  # "recipes.sl_basic:SlBasic"
    settings: Mapping[str, Any]  # of the recipe, nested, as JSON
    adapters: Mapping[str, str]  # port -> name
    folder: str  # where the run is stored: a path, or a URL with "://"


@dataclass(frozen=True)
class Position:
    """The place of a value in its run."""

    number: int  # counts all values that the run published; larger for later ones
    step: int  # of the loop around the stage; after a loop, the last step of that loop
    stage: str


class Tracker(ABC):
    """Sends one run to a tracker.

    Its constructor has the settings as keyword arguments, and does nothing. All methods but
    `prepare` are called on one thread, which is not that of the run, in the order: `open`, then
    values in the order of their numbers with a `flush` about once a second, then `close`. An error
    that any of them raises ends the tracking and never the run. `state` is the last one that an
    earlier attempt of the run returned from the method `state`; empty if there was none.

    A process can be killed between a value and the next `flush`. The resumed run then sends each
    value after the last confirmed `flush` again, to a tracker that may have it already, so the
    adapter must recognise values that it has.
    """

    packages: ClassVar[Sequence[str]] = ()  # imports beyond the core, for `pip install`
    # a process of the tracker's own completes the upload if this one ends
    hands_over: ClassVar[bool] = False

    def prepare(self, state: Mapping[str, Any]) -> None:  # noqa: B027 the default does nothing
        """Import packages and check logins, on the thread of the run and before it starts.

        Raises KitchenError, which refuses the run. It must not wait for a network.
        """

    @abstractmethod
    def open(self, run: TrackedRun, state: Mapping[str, Any]) -> None:
        """Start the tracked run, or continue the one with this key if an earlier attempt did."""

    @abstractmethod
    def metrics(self, at: Position, values: Mapping[str, float]) -> None:
        """Send numbers by name; they may be NaN or infinite."""

    @abstractmethod
    def table(
        self, at: Position, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> None:
        """Send a table of texts and numbers: a published one, or samples."""

    @abstractmethod
    def flush(self) -> bool:
        """Send values that are held back; return whether all of them are stored durably."""

    @abstractmethod
    def close(self, status: str) -> None:
        """Send the final status of this attempt: "completed", "failed" or "interrupted"."""

    def state(self) -> Mapping[str, Any]:
        """Return what a later process needs in order to continue from here, as JSON.

        "Here" is after the last value that this process received, even if the tracker has later
        ones of an earlier process: those are still sent again.
        """
        return {}
