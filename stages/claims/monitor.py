"""The monitor of claim extraction: its measures on the first claims of a held-out set."""

from __future__ import annotations

from collections.abc import Mapping

from kitchen.ports import Future, Sampler, Tokenizer, TrainingSession, start
from kitchen.stage import Stage
from kitchen.statistics.intervals import Interval, interval
from kitchen.workflow import Step
from stages.chat.render import RenderDataset
from stages.claims.evaluation import ClaimEvalConfig, evaluate_claims, scores_by_measure
from stages.claims.loading import HeldOutClaims
from stages.evaluate.monitor import (
    MonitorConfig,
    Monitored,
    check_measures,
    first_set,
    limited_measures,
    measured,
    monitor_steps,
)


class MonitorClaims(Stage):
    """Submit the first claims of the first held-out set for evaluation, without waiting."""

    config: ClaimEvalConfig
    render: RenderDataset
    seed: int = 0  # of sampled answers
    rows: int = 32
    names: tuple[str, ...] = ()  # of the measures that have limits

    def run(
        self, session: TrainingSession, tokenizer: Tokenizer, held_out: HeldOutClaims
    ) -> Future[Monitored]:
        name, rows = first_set(held_out.sets)
        sample = HeldOutClaims({name: rows[: self.rows]})

        async def measure(sampler: Sampler) -> Mapping[str, Interval]:
            evaluation, _ = await evaluate_claims(
                sampler, tokenizer, sample, self.config, self.render, self.seed
            )
            scores = scores_by_measure(evaluation.sets[name])
            return {measure: interval(values) for measure, values in scores.items()}

        return start(measured(session.snapshot(), measure))

    def verify(self) -> None:
        self.config.check_sampled("monitor", self.names)
        check_measures(self.names, self.config.measures)


def monitor_claims(
    config: MonitorConfig, evaluation: ClaimEvalConfig, render: RenderDataset, seed: int
) -> tuple[Step, ...]:
    """Return the steps of a monitor of the first held-out set of claims."""
    names = limited_measures(config)
    return monitor_steps(config, MonitorClaims(evaluation, render, seed, config.rows, names))
