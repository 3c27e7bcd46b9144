"""`thinker`: pipelines of validation, training and evaluation, as recorded runs of recipes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kitchen.cli.commands.errors import exit_code, failed_stage, reasons, report_error
from kitchen.cli.commands.json_output import print_json
from kitchen.cli.commands.manifest import ManifestWriter, newest_manifest, read_manifest, request_of
from kitchen.cli.commands.run import OutputOptions, run
from kitchen.cli.commands.system_info import devices
from kitchen.cli.console import console, table
from kitchen.config.adapter_choice import AdapterChoice, open_blobs
from kitchen.config.pipeline import (
    PipelineCommand,
    PipelineOptions,
    PipelineRun,
    find_pipeline,
)
from kitchen.config.request import Problems, ResolvedRequest, RunRequest, resolve_request
from kitchen.config.yaml import yaml_value
from kitchen.errors import BackendError, ConfigError, Interrupted, KitchenError
from kitchen.secrets import printable
from kitchen.types import Table

# stages of a recipe by name -> the part of the pipeline that they belong to
_PARTS: Mapping[str, str] = {
    "RunTestSuite": "tests",
    "ValidateData": "data_validation",
    "LoadHeldOutClaims": "evaluation",
    "IdentifyWeights": "evaluation",
    "EvaluateClaims": "evaluation",
    "EvaluateClaimWeights": "evaluation",
    "ReportClaims": "evaluation",
    "WritePredictions": "evaluation",
    "ReadPredictions": "antagonist",
    "FlagAnswers": "antagonist",
    "OpenScorers": "antagonist",  # the files set a scorer in the section `antagonist`
    "CalibrateEntailment": "antagonist",
    "ScoreSemantics": "antagonist",
    "CheckTargets": "evaluation",
    "RequireTargets": "evaluation",
}
# recipes -> the part of the pipeline that an error of no known stage belongs to
_PARTS_OF_RECIPES: Mapping[str, str] = {
    "recipes.claim_evaluation": "evaluation",
    "recipes.claim_antagonist": "antagonist",
}


@dataclass(frozen=True)
class ThinkerOptions:
    """The options that the commands of `thinker` share."""

    config: Path
    runs: str | None = None
    name: str | None = None
    strict: bool = False
    json: bool = False
    debug: bool = False


def run_pipeline(
    command: PipelineCommand, options: ThinkerOptions, pipeline: PipelineOptions
) -> int:
    """Run a command of a pipeline as a recorded run, and return its exit code."""
    prepared = find_pipeline().prepare(command, options.config, pipeline)
    _check_float16(prepared)
    adapters = _adapters(prepared, options)
    request = RunRequest(
        prepared.recipe, (), (), adapters, options.strict, implied=prepared.settings
    )
    writer = ManifestWriter(open_blobs(adapters), request_of(command, prepared, pipeline))
    output = OutputOptions(options.json, options.debug)
    report = _PipelineReporter(prepared)
    return run(request, output, options.name, (writer,), report=report)


def _adapters(prepared: PipelineRun, options: ThinkerOptions) -> AdapterChoice:
    return AdapterChoice(prepared.adapters, tuple(prepared.adapter_settings), options.runs)


def _check_float16(prepared: PipelineRun) -> None:
    """Raise ConfigError if float16 is wanted on a CPU, where it would be slow and inexact."""
    if not prepared.float16:
        return
    on_cpu = "training.device=cpu" in prepared.adapter_settings
    if on_cpu or not any(str(name).startswith("cuda") for name in _device_names()):
        raise ConfigError(
            f"{prepared.float16}: training.fp16: float16 needs a CUDA device, and the training is "
            "on a CPU; set fp16: false"
        )


def _device_names() -> Sequence[Any]:
    found = devices()["devices"]
    return [item["name"] if isinstance(item, Mapping) else item for item in found]


def show_info(options: ThinkerOptions, pipeline: PipelineOptions) -> int:
    """Print the resolved configuration of a pipeline: backend, model, paths and settings.

    Problems that would refuse a run are errors, with their exit code.
    """
    prepared = find_pipeline().prepare("info", options.config, pipeline)
    resolved = _resolve(prepared, options)
    not_honoured = None if resolved.plan is None else resolved.plan.not_honoured
    _print_info(prepared, not_honoured, options)
    if not resolved.problems:
        return 0
    problems = Problems(resolved.problems)
    _PipelineReporter(prepared)(problems, debug=options.debug)
    return problems.exit_code


def _resolve(prepared: PipelineRun, options: ThinkerOptions) -> ResolvedRequest:
    """Plan the run of a pipeline, and collect all of its problems."""
    adapters = _adapters(prepared, options)
    request = RunRequest(prepared.recipe, (), (), adapters, implied=prepared.settings)
    resolved = resolve_request(request)
    with resolved.collecting():
        _check_float16(prepared)
    return resolved


def _print_info(
    prepared: PipelineRun, not_honoured: Sequence[str] | None, options: ThinkerOptions
) -> None:
    """Print a pipeline; `not_honoured` is None if it is not known."""
    settings = {".".join(item.keys): item.value for item in prepared.settings}
    files = {name: str(path) for name, path in prepared.files.items()}
    paths = {key: str(path) for key, path in prepared.paths.items()}
    if options.json:
        shown: dict[str, Any] = {"backend": prepared.backend, "adapters": prepared.adapters}
        shown |= {
            "files": files,
            "recipe": prepared.recipe,
            "adapter_settings": prepared.adapter_settings,
        }
        shown |= {"paths": paths, "settings": settings, "not_honoured": not_honoured}
        print_json(shown)
        return
    out = console()
    head = [("backend", prepared.backend), ("recipe", prepared.recipe)]
    head += [("model", str(settings.get("model", settings.get("weights", "none"))))]
    head += [(f"{name} file", path) for name, path in files.items()]
    head += [("adapter setting", text) for text in prepared.adapter_settings]
    out.print(table(Table("Pipeline", ("what", "value"), tuple(head))))
    present = [(key, path, _presence(Path(path))) for key, path in paths.items()]
    out.print(table(Table("Paths", ("key", "path", "exists"), tuple(present))))
    rows = [
        (".".join(item.keys), yaml_value(item.value), item.source) for item in prepared.settings
    ]
    out.print(table(Table("Settings", ("setting", "value", "from"), tuple(rows))))
    for setting in ("not known",) if not_honoured is None else not_honoured:
        out.print(f"not honoured: {setting} (backend {prepared.backend})", style="yellow")


def _presence(path: Path) -> str:
    return "yes" if path.exists() else "no"


def show_manifest(run_name: str | None, options: ThinkerOptions) -> int:
    """Print the metadata of a run of `thinker`, the newest one by default."""
    blobs = open_blobs(AdapterChoice({}, runs=options.runs))
    name = run_name or newest_manifest(blobs)
    print_json(read_manifest(blobs, name))
    return 0


def set_up_data(source: Path, out: Path) -> int:
    """Convert a folder of source data to rows to train on."""
    console().print(table(find_pipeline().set_up(source, out)))
    return 0


@dataclass(frozen=True)
class _PipelineReporter:
    """Prints errors as `[thinker] error: PART: why`, with backend and file for the training."""

    prepared: PipelineRun | None = None
    default: str = "config"  # the part, if the error is of no stage

    def __call__(self, error: BaseException, *, debug: bool, hints: Sequence[str] = ()) -> None:
        if debug:
            report_error(error, debug=True)
        where = failed_stage(error).rpartition("> ")[2].strip()
        for problem in getattr(error, "problems", (error,)):
            of_backend = isinstance(problem, BackendError) and self.prepared is not None
            stage = "OpenSession" if of_backend and not where else where
            for reason in reasons(problem):
                # a run that was interrupted has no part that failed
                is_failure = not isinstance(problem, Interrupted)
                placed = self._placed(reason, stage) if is_failure else reason
                print(f"[thinker] error: {placed}", file=sys.stderr)
        for hint in hints:
            print(f"  {printable(hint)}", file=sys.stderr)
        if not debug and not isinstance(error, (KitchenError, OSError, KeyboardInterrupt)):
            print("  to see the traceback, run the command again with --debug", file=sys.stderr)

    def _placed(self, reason: str, stage: str) -> str:
        """Return a reason that begins with the part of the pipeline that failed."""
        recipe = "" if self.prepared is None else self.prepared.recipe
        other = _PARTS_OF_RECIPES.get(recipe, "training")
        part = _PARTS.get(stage, other) if stage else self.default
        known = [name for name in _PARTS.values() if reason.startswith(f"{name}: ")]
        if known:
            return reason
        if part == "training" and self.prepared is not None:
            file = self.prepared.files.get("lora", "")
            return f"{part}: {reason} (backend {self.prepared.backend}, {file})"
        return f"{part}: {reason}"


def report(error: BaseException, *, debug: bool, part: str = "config") -> int:
    """Print an error that prevented a run, and return its exit code."""
    _PipelineReporter(default=part)(error, debug=debug)
    return exit_code(error)
