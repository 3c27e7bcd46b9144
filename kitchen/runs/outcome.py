"""Outcome of a completed run: its metrics, its curves, and its weights to try and compare."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from kitchen.errors import ConfigError
from kitchen.ports.blobs import BlobStore
from kitchen.runs import history
from kitchen.runs.store import read_journal, run_summary
from kitchen.runs.wording import clock
from kitchen.secrets import printable
from kitchen.statistics.report import ComparisonReport
from kitchen.types import Checkpoint

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

_MAX_SHOWN = 12  # metrics in the HTML of an outcome


@dataclass(frozen=True)
class RunAccess:
    """Access to a recorded run: its store, its headline metrics, and the API's functions on it."""

    blobs: BlobStore
    headline: tuple[str, ...]  # names of metrics
    sample: Callable[..., list[str]]  # of the name of weights, the prompt and keywords
    compare: Callable[..., ComparisonReport]  # of the names of runs and keywords


@dataclass(frozen=True)
class Outcome:
    """The outcome of a completed run."""

    run: str
    loss: float | None  # the last one published
    seconds: float  # over all attempts
    metrics: Mapping[str, float]  # the last value of each
    checkpoint: Checkpoint | None  # the weights exported last, a blob of the run's store
    where: str  # the run's folder
    _access: RunAccess = field(repr=False, compare=False)

    @property
    def history(self) -> DataFrame:
        """The metrics of the run as a pandas DataFrame: the rows of metrics.jsonl, in order.

        Raises BackendError if pandas is not installed.
        """
        return history.data_frame(read_journal(self._access.blobs, self.run, "metrics"))

    def plot(self, *metrics: str) -> Figure:
        """Return a matplotlib figure of metrics by step; by default of loss, reward and held-out.

        Losses share a panel, and every other metric has its own. Raises ConfigError for an unknown
        metric, and BackendError if matplotlib is not installed.
        """
        rows = read_journal(self._access.blobs, self.run, "metrics")
        return history.plot(rows, metrics, self._access.headline, self.run)

    def sample(
        self,
        prompt: str,
        *,
        at: str | int = "final",
        count: int = 1,
        max_tokens: int = 256,
        temperature: float = 0.7,
        top_p: float = 1.0,
        seed: int = 0,
        stop: Sequence[str] = (),
        system: str = "",
        raw: bool = False,
    ) -> list[str]:
        """Return completions of a prompt by the weights of the run, as `kitchen sample` does.

        `at` is a step, `"best"` or `"final"`. Temperature 0 is greedy decoding. A completion ends
        with a text of `stop`. `raw` completes the text without the chat template. Raises
        ConfigError if the run has no such weights.
        """
        return self._access.sample(
            f"run:{self.run}@{at}",
            prompt,
            count=count,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            stop=tuple(stop),
            system=system,
            raw=raw,
        )

    def compare(self, *others: Outcome | str, **options: Any) -> ComparisonReport:
        """Compare the held-out scores of this run, the baseline, with those of other runs.

        Other runs are outcomes or names. `options` are those of `kitchen.compare`.
        """
        for other in others:
            if isinstance(other, Outcome) and other._folder() != self._folder():
                raise ConfigError(
                    f"run {self.run!r} is stored in {self._folder()}, and run {other.run!r} in "
                    f"{other._folder()}: only runs of one store can be compared"
                )
        names = [other.run if isinstance(other, Outcome) else other for other in others]
        return self._access.compare(self.run, *names, **options)

    def _folder(self) -> str:
        return self.where.removesuffix(f"/{self.run}")

    def _repr_html_(self) -> str:
        """Return the outcome as a table, which notebooks show."""
        facts = [("status", f"completed in {clock(self.seconds)}")]
        if self.checkpoint is not None:
            path = self._access.blobs.locate(self.checkpoint.path)
            facts.append(("weights", f"{path}, step {self.checkpoint.step}"))
        facts.append(("record", self.where))
        shown = list(self._shown_metrics())
        facts += [(name, f"{value:.4g}") for name, value in shown]
        if len(shown) < len(self.metrics):
            facts.append(("", f"all {len(self.metrics)} metrics: outcome.metrics"))
        rows = "".join(f"<tr>{_cell(name)}{_cell(value)}</tr>" for name, value in facts)
        return f"<table><caption>Run {_escaped(self.run)}</caption><tbody>{rows}</tbody></table>"

    def _shown_metrics(self) -> Iterable[tuple[str, float]]:
        """Return the headline metrics, then those of evaluations, which have the set's name."""
        names = [name for name in self._access.headline if name in self.metrics]
        names += [name for name in self.metrics if "/" in name and not name.startswith("data/")]
        return [(name, self.metrics[name]) for name in names[:_MAX_SHOWN]]


def read_outcome(access: RunAccess, run: str) -> Outcome:
    """Read the outcome of a completed run from its record."""
    blobs = access.blobs
    summary = run_summary(blobs, run)
    exported = read_journal(blobs, run, "checkpoints")
    checkpoint = None
    if exported:
        checkpoint = Checkpoint(
            **{key: exported[-1][key] for key in ("path", "step", "kind", "sha256")}
        )
    where = blobs.locate(f"{run}/run.json").removesuffix("/run.json")
    loss = summary.metrics.get("loss")
    return Outcome(run, loss, summary.seconds, summary.metrics, checkpoint, where, access)


def _cell(text: str) -> str:
    return f'<td style="text-align: left">{_escaped(text)}</td>'


def _escaped(text: str) -> str:
    return escape(printable(text))
