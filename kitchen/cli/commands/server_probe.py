"""`kitchen check --online`: requests for models, and probes of the features of servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from itertools import chain
from typing import Any, Protocol, runtime_checkable

from rich.console import Console

from kitchen.artifacts.weights import find_weights, parse_weights_name
from kitchen.backend.probe_report import Finding, ProbeReport
from kitchen.backend.sampling_router import is_sampled_elsewhere
from kitchen.cli.console import table
from kitchen.config.adapters import Kitchen
from kitchen.config.needs import required_capabilities
from kitchen.config.request import ResolvedRequest
from kitchen.ports.training import TrainingClient
from kitchen.stage import Stage
from kitchen.types import Lora, Table
from kitchen.workflow import walk

_WORDS = {True: "yes", False: "no", None: "not known"}


@runtime_checkable
class Asked(Protocol):
    """An adapter of a server that can be asked for a model."""

    def online(self, model: str) -> str:
        """Return what the server reports of a model; raises BackendError."""
        ...


@runtime_checkable
class Probed(Protocol):
    """An adapter of a server whose features can be probed."""

    def probe(self, model: str, lora: Lora, needs: Sequence[str], on_finding: Any) -> ProbeReport:
        """Try the features of the server, keep the report for `capabilities`, and return it.

        `needs` are the capabilities that a recipe needs; `on_finding` gets each finding as it
        arrives. Raises BackendError.
        """
        ...

    def capabilities_source(self) -> str:
        """Return how the capabilities of the adapter are known: from a probe, or assumed."""
        ...


def models_of_servers(resolved: ResolvedRequest) -> Mapping[str, Asked]:
    """Return the models of the stages that a server has, each with the adapter that can ask it."""
    if resolved.kitchen is None or resolved.step is None:
        return {}
    adapters: list[Any] = [resolved.kitchen.training, resolved.kitchen.hub]
    asked: dict[str, Asked] = {}
    if (server := next((one for one in adapters if isinstance(one, Asked)), None)) is not None:
        names = dict.fromkeys(str(stage.model) for stage in _stages(resolved) if _has_model(stage))
        models = (_model_on_server(name, resolved.kitchen, server) for name in names)
        asked = {model: server for model in models if model}
    sampling: Any = resolved.kitchen.sampling
    if isinstance(sampling, Asked):
        asked |= dict.fromkeys(models_elsewhere(resolved), sampling)
    return asked


def models_elsewhere(resolved: ResolvedRequest) -> list[str]:
    """Return the models in the options of stages that are sampled from other services."""
    texts = chain.from_iterable(map(_texts, _stages(resolved)))
    return list(filter(is_sampled_elsewhere, texts))


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in the options of a stage."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from chain.from_iterable(map(_texts, value.values()))
    elif isinstance(value, list | tuple):
        yield from chain.from_iterable(map(_texts, value))
    elif is_dataclass(value):
        yield from chain.from_iterable(_texts(getattr(value, one.name)) for one in fields(value))


def _model_on_server(name: str, kitchen: Kitchen, server: Asked) -> str:
    """Return the base model that a server has for a name of weights; empty if it has none.

    A server that trains has the base model of a run; a hub has only models with a name alone.
    """
    kind = parse_weights_name(name).kind
    if not isinstance(server, Probed):
        return name if kind == "hub" else ""
    training: Any = kitchen.training
    if kind in ("run", "model"):
        return find_weights(name, training, kitchen.blobs).model
    return name if kind in ("hub", "packaged", "path") else ""


def capabilities_source(resolved: ResolvedRequest) -> str:
    """Return how the capabilities of the training adapter's server are known; empty without one."""
    training = resolved.kitchen.training if resolved.kitchen else None
    return training.capabilities_source() if isinstance(training, Probed) else ""


def ask_servers(out: Console, resolved: ResolvedRequest) -> list[ProbeReport]:
    """Ask the server of each model for it, and probe a server of the training adapter.

    Problems are added to the request.
    """
    asked = models_of_servers(resolved)
    if not asked:
        text = f"there is no server to ask: the training adapter {resolved.names['training']!r} and"
        out.print(f"{text} the weights are local", soft_wrap=True)
    problems = len(resolved.problems)
    for model, server in asked.items():
        with resolved.collecting():
            out.print(server.online(model), soft_wrap=True)
    if not asked or len(resolved.problems) > problems:
        return []
    reports = []
    with resolved.collecting():
        reports += _probe(out, resolved, asked)
    return reports


def _probe(
    out: Console, resolved: ResolvedRequest, asked: Mapping[str, Asked]
) -> list[ProbeReport]:
    """Probe the server of the training adapter with the model that is trained, or the first one."""
    training = resolved.kitchen.training if resolved.kitchen else None
    if not isinstance(training, Probed):
        return []
    sessions = [stage for stage in _stages(resolved) if isinstance(_lora(stage), Lora)]
    trained = [model for model in asked if not is_sampled_elsewhere(model)]
    if not trained:
        return []
    model, lora = trained[0], Lora()
    if sessions and resolved.kitchen:
        lora = sessions[0].lora
        model = _model_on_server(str(sessions[0].model), resolved.kitchen, training) or model
    out.print("\nprobing the server: one small request per feature; Ctrl-C stops", style="dim")
    report = training.probe(
        model,
        lora,
        required_capabilities(resolved.step, TrainingClient) if resolved.step else (),
        lambda finding: _print_finding(out, finding),
    )
    return [report]


def _stages(resolved: ResolvedRequest) -> list[Any]:
    steps = walk(resolved.step) if resolved.step is not None else ()
    return [step.without_roles() for step in steps if isinstance(step, Stage)]


def _has_model(stage: Any) -> bool:
    """Return whether a stage names a model; an empty name stands for none."""
    return bool(getattr(stage, "model", ""))


def _lora(stage: Any) -> Any:
    return getattr(stage, "lora", None) if _has_model(stage) else None


def _print_finding(out: Console, finding: Finding) -> None:
    word = _WORDS[finding.present]
    out.print(f"  {finding.feature}: {word} ({finding.seconds:.1f} s)", style="dim")


def print_report(out: Console, report: ProbeReport) -> None:
    """Print the features that a server lacks, those not known, and those that it has."""
    out.print()
    absent = (*report.lacking, *report.unknown)
    if absent:
        rows = [
            (finding.feature, _WORDS[finding.present], finding.needed_for, finding.detail)
            for finding in absent
        ]
        columns = ("feature", "present", "needed for", "reason")
        out.print(table(Table(f"Features that {report.address} lacks", columns, tuple(rows))))
    else:
        out.print(f"{report.address} lacks no feature that was tried", soft_wrap=True)
    out.print(f"it has: {', '.join(report.present)}", soft_wrap=True)
    when = f"for {report.seconds:.1f} s on {report.when}"
    out.print(f"probed {when}, with the model {report.model}", style="dim", soft_wrap=True)


def report_json(report: ProbeReport) -> dict[str, Any]:
    """Return a report for --json."""
    return {**asdict(report), "lacking": [finding.feature for finding in report.lacking]}
