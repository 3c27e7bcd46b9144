"""A benchmark of the local adapter against other libraries, and the values that must agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.bench.agreement import AgreementCheck
from tests.bench.interleave import interleave, one_after_another
from tests.bench.outcome import Outcome, ReportedMetric, Target, with_targets
from tests.bench.results import Options, Result
from tests.bench.turns import Side, Step

COLUMNS = (
    "side",
    "s/step, median [quartiles]",
    "tokens/s",
    "MB above weights",
    "useful GFLOP/s",
    "share of GEMM rate",
)


@dataclass(frozen=True)
class Benchmark:
    """One benchmark and its sides.

    Our side reports "tokens" and, if it trains, "flops" and "flops_shared".
    """

    name: str
    title: str
    ours: Side
    # targets compare with the fastest of these; the first is the plain configuration
    rivals: tuple[Side, ...]
    checks: tuple[AgreementCheck, ...]
    speed: Target | None = None
    memory: Target | None = None  # relative to the fastest rival
    share: Target | None = None  # of the GEMM rate, with shared prefixes counted once
    others: tuple[Side, ...] = ()  # measured too, without targets
    gauge: Side | None = None  # measures the machine's GEMM rate
    part: str = ""  # a part of the step that all sides time, to compare separately
    exact: Side | None = None  # our side in float32, if rounding makes the sides drift apart
    notes: tuple[str, ...] = ()
    # the steps of the sides alternate; False: sides that do not fit into memory together
    together: bool = True


def run_benchmark(benchmark: Benchmark, options: Options, steps: int) -> Result:
    """Measure the steps of all sides in turn; return tables, notes and records."""
    rivals = [side.name for side in benchmark.rivals]
    others = [side.name for side in benchmark.others]
    auxiliary = [side for side in (benchmark.gauge, benchmark.exact) if side]
    sides = [benchmark.ours, *benchmark.rivals, *benchmark.others, *auxiliary]
    measure = interleave if benchmark.together else one_after_another
    measurements = measure(sides, options.folder, steps, rivals)
    gauge = benchmark.gauge.name if benchmark.gauge else ""
    outcome = Outcome(measurements.steps, benchmark.ours.name, gauge)
    differences = {
        check: _differences(benchmark, measurements.steps, check, [*rivals, *others])
        for check in benchmark.checks
    }
    sound = all(max(by_side.values()) <= check.tolerance for check, by_side in differences.items())
    metrics = _metrics(benchmark, outcome, measurements.fastest)
    record = {
        "work": benchmark.name,
        "figures": {metric.name: metric.value for metric in metrics},
        "sound": sound,
        "differences": {check.value: by_side for check, by_side in differences.items()},
    }
    agreement = "; ".join(
        check.describe(max(by_side.values()), benchmark.exact is not None)
        for check, by_side in differences.items()
    )
    return Result(
        benchmark.name,
        benchmark.title,
        COLUMNS,
        tuple(outcome.row(name) for name in (outcome.ours, *rivals, *others)),
        (
            *(metric.note for metric in metrics),
            f"agreement over all steps: {agreement}",
            *benchmark.notes,
        ),
        (*outcome.records(benchmark.name), record),
        sound,
        with_targets(metrics),
    )


def _differences(
    benchmark: Benchmark,
    steps: Mapping[str, Sequence[Step]],
    check: AgreementCheck,
    names: Sequence[str],
) -> dict[str, float]:
    """Return the difference between each named side and ours."""
    ours = steps[benchmark.ours.name]
    exact = steps[benchmark.exact.name] if benchmark.exact else ()
    return {name: check.difference(ours, steps[name], exact) for name in names}


def _metrics(benchmark: Benchmark, outcome: Outcome, fastest: str) -> list[ReportedMetric]:
    """Return the metrics of a benchmark; its targets refer to the fastest rival."""
    plain = benchmark.rivals[0].name
    others = [side.name for side in benchmark.others]
    metrics = [outcome.speed(fastest, benchmark.speed), *(outcome.speed(name) for name in others)]
    for name in dict.fromkeys((plain, fastest, *others)):
        metrics.append(outcome.memory(name, benchmark.memory if name == fastest else None))
    if benchmark.share:
        metrics.append(outcome.share(benchmark.share))
    if benchmark.part:
        metrics += [outcome.part(benchmark.part, name) for name in (plain, *others)]
    return metrics
