"""Files of a claim extraction outside of the run's folder: an adapter's folder, and predictions."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kitchen.artifacts.publish import write_chat_template
from kitchen.artifacts.weights import weights_of
from kitchen.backend.atomic_folder import atomic_folder, check_folder_unused, write_atomically
from kitchen.backend.temporary import MARKER
from kitchen.errors import ConfigError, DataError, RunFailed, did_you_mean
from kitchen.ports import BlobStore, CheckpointStore, TrainingClient
from kitchen.safe_text import read_json
from kitchen.secrets import masked
from kitchen.stage import Need, Stage
from kitchen.types import RunId, Table
from stages.claims.evaluation import ClaimEvaluation, ScoredAnswer, scored_answer
from stages.claims.gate import AbsolutePath
from stages.claims.loading import HeldOutClaims
from stages.claims.rows import ClaimRow
from stages.train import FinalWeights

SOURCE_FILE = "kitchen.json"  # in an exported folder: the run that its weights come from
_PEFT_FILE = "adapter_config.json"  # in an exported folder: PEFT's configuration


def exported_run(folder: Path) -> str | None:
    """Return the run whose weights a folder holds; None if no run has written it."""
    return _text_in(folder / SOURCE_FILE, "run")


def other_base_model(folder: Path, wanted: str) -> str | None:
    """Return the model that a folder's weights were trained on, if it is not `wanted`.

    The record of the run that exported the folder is compared by name. PEFT's configuration has the
    name on the hub or a folder, so another kind of name, such as packaged:NAME, is not compared.
    """
    wanted = _with_real_path(wanted)
    model = _text_in(folder / SOURCE_FILE, "model")
    if model is not None:
        return None if _with_real_path(model) == wanted else model
    model = _text_in(folder / _PEFT_FILE, "base_model_name_or_path")
    if model is None:
        return None
    if os.path.isdir(model):
        model = _with_real_path(f"path:{model}")
    elif model.startswith("path:"):  # without its place: exports look for it beside their folder
        beside = folder.absolute().parent / model.removeprefix("path:")
        if not beside.is_dir():
            return None
        model = _with_real_path(f"path:{beside}")
    kind, colon, _ = wanted.partition(":")
    if not colon:
        wanted = wanted.partition("@")[0]
    is_comparable = model.startswith("path:") if kind == "path" else not colon
    return model if is_comparable and model != wanted else None


def _with_real_path(name: str) -> str:
    """Return the name of a model; one path of a folder that has several."""
    kind, _, folder = name.partition(":")
    return f"path:{os.path.realpath(folder)}" if kind == "path" else name


def _text_in(file: Path, key: str) -> str | None:
    """Return a text of a JSON object; None for a file that has none."""
    try:
        content = read_json(file.read_bytes())
    except (OSError, ValueError):
        return None
    text = content.get(key) if isinstance(content, dict) else None
    return text if isinstance(text, str) and text else None


def _exported_files(folder: Path) -> set[str]:
    """Return the files that the run of an exported folder has written, as it lists them."""
    listed = read_json((folder / SOURCE_FILE).read_bytes()).get("files")
    return {SOURCE_FILE, *map(str, listed if isinstance(listed, list) else ())}


def _files(folder: Path) -> set[str]:
    """Return all files in a folder, also in folders inside it, relative to it."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


class ExportCheckpoint(Stage):
    """Export the final weights into a folder, in PEFT's format where the backend can.

    The folder replaces one that an earlier run has exported, when it is complete; that run keeps
    its weights in its own folder. A folder with files that no run has exported is refused.
    """

    folder: str

    def verify(self) -> None:
        folder = Path(self.folder)
        if folder.is_symlink() or exported_run(folder) is None:
            try:
                check_folder_unused(folder)
            except ConfigError as error:
                raise ConfigError(f"checkpoint_dir: {error}") from error
        elif others := _files(folder) - _exported_files(folder):
            shown = ", ".join(sorted(others)[:3]) + ", ..." * (len(others) > 3)
            raise ConfigError(
                f"checkpoint_dir: {folder} has files that no run has exported there ({shown}), and "
                "the export would delete them; move them away, or give another folder"
            )

    def run(
        self, store: CheckpointStore, blobs: BlobStore, run: RunId, weights: FinalWeights
    ) -> Table:
        self.verify()  # a file may have been added since the run began
        folder, named = Path(self.folder), weights_of(run.id, weights, blobs)
        with atomic_folder(folder, replace=True) as part:
            store.export(weights, part / "export")
            for path in (part / "export").iterdir():
                path.replace(part / path.name)
            (part / "export").rmdir()
            write_chat_template(named, part)
            files = sorted(_files(part) - {MARKER})
            source = {"run": run.id, "model": named.model, "sha256": weights.sha256, "files": files}
            (part / SOURCE_FILE).write_text(json.dumps(source, indent=2) + "\n")
        return Table("Exported", ("weights", "folder"), ((named.name, self.folder),))

    def needs(self) -> Iterable[Need]:
        return [Need(TrainingClient, "export")]


class WritePredictions(Stage):
    """Write each prompt and answer of the evaluation as a line of a JSONL file, which is replaced.

    The run's own `samples.jsonl` has the same answers, with their scores.
    """

    path: str

    def verify(self) -> None:
        path = Path(self.path)
        if path.is_dir():
            raise ConfigError(f"predictions: {path} is a folder; give the path of a file")
        above = next(folder for folder in path.parents if folder.exists())
        if not above.is_dir():
            raise ConfigError(f"predictions: {above} is a file, so {path} cannot be in it")

    def run(self, evaluation: ClaimEvaluation, held_out: HeldOutClaims) -> Table:
        rows = list(_predictions(evaluation, held_out))
        path = Path(self.path)
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        try:
            write_atomically(path, "".join(lines).encode())
        except OSError as error:
            raise RunFailed(f"output_path: {path} cannot be written ({error.strerror})") from error
        return Table("Predictions", ("answers", "file"), ((f"{len(rows):,}", self.path),))


def _predictions(evaluation: ClaimEvaluation, held_out: HeldOutClaims) -> Iterator[dict[str, Any]]:
    for name, answers in evaluation.sets.items():
        for answer in answers:
            claim = held_out.sets[name][answer.row]
            row = {"claim_id": claim.id, "set": name, "prompt": claim.prompt}
            answered = {"completion": answer.text, "truncated": answer.truncated}
            yield masked({**row, **answered, "scores": dict(answer.scores)})


class ReadPredictions(Stage):
    """Read the answers of a file that an evaluation has written, and score them again.

    Raises DataError, with the line, for an answer to a claim that is not in the held-out sets.
    """

    path: str

    def verify(self) -> None:
        if not Path(self.path).is_file():
            raise DataError(
                f"predictions: there is no file {self.path}; an evaluation writes it "
                "(output.predictions, or evaluation.output_path of a pipeline file)"
            )

    def run(self, held_out: HeldOutClaims) -> ClaimEvaluation:
        sets: dict[str, list[ScoredAnswer]] = {name: [] for name in held_out.sets}
        indices = {name: _indices(rows) for name, rows in held_out.sets.items()}
        attempts: Counter[tuple[str, int]] = Counter()
        for where, line in _lines(Path(self.path)):
            name, answer = _answer(line, held_out, indices, where)
            attempt = attempts[name, answer.row]
            attempts[name, answer.row] += 1
            sets[name].append(replace(answer, attempt=attempt))
        if not attempts:
            raise DataError(f"predictions: {self.path} has no answers; run the evaluation again")
        return ClaimEvaluation({name: tuple(found) for name, found in sets.items()})


def _lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the place and the bytes of each line that is not blank.

    Only a line feed ends a line: an answer may have other separators, such as U+2028.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield f"{path.name}:{number}", line


def _indices(rows: Sequence[ClaimRow]) -> dict[str, int]:
    """Return the index of each claim by its id; the first one, if several have the same id."""
    return {row.id: at for at, row in reversed(list(enumerate(rows)))}


def _answer(
    line: bytes,
    held_out: HeldOutClaims,
    indices: Mapping[str, Mapping[str, int]],
    where: str,
) -> tuple[str, ScoredAnswer]:
    """Return the set and the scored answer of a line; raises DataError."""
    try:
        row = read_json(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: is not UTF-8 ({error}); convert the file to UTF-8") from error
    except ValueError as error:
        raise DataError(f"{where}: is not JSON ({error})") from error
    if not isinstance(row, dict) or not isinstance(row.get("completion"), str):
        raise DataError(f"{where}: there must be a claim_id, a set and a completion")
    name, id = str(row.get("set", "")), str(row.get("claim_id", ""))
    if name not in held_out.sets:
        raise DataError(f"{where}: there is no set {name!r}; {did_you_mean(name, held_out.sets)}")
    at = indices[name].get(id)
    if at is None:
        raise DataError(f"{where}: {name} has no claim {id!r}; {did_you_mean(id, indices[name])}")
    answer = scored_answer(row["completion"], held_out.sets[name][at], bool(row.get("truncated")))
    return name, replace(answer, row=at)


@dataclass(frozen=True)
class OutputConfig:
    """Files of a run outside of its folder, and whether its weights are evaluated."""

    checkpoint_dir: AbsolutePath | None = None  # folder to export final weights to; null for none
    evaluate: bool = True  # false to train without an evaluation of the final weights
    predictions: AbsolutePath | None = None  # JSONL file of prompts and answers; null for none


def output_stages(
    config: OutputConfig, evaluation: Iterable[Stage], quality: Iterable[Stage]
) -> list[Stage]:
    """Return the stages after training: an export, the evaluation, a file of its answers, quality.

    The answers are written first, because a missed target ends the run.
    """
    stages: list[Stage] = []
    if config.checkpoint_dir is not None:
        stages.append(ExportCheckpoint(config.checkpoint_dir))
    if config.evaluate:
        stages += [*evaluation, *write_predictions(config.predictions), *quality]
    return stages


def write_predictions(path: str | None) -> list[Stage]:
    """Return the stage that writes the answers of an evaluation; none without a file."""
    return [] if path is None else [WritePredictions(path)]
