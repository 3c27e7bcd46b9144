"""The pipeline of `thinker`: its YAML files as settings of the recipes of claims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, get_args

from kitchen.config.pipeline import PipelineCommand, PipelineOptions, PipelineRun
from kitchen.config.sources import COMMAND_LINE, Setting
from kitchen.errors import ConfigError, check_name
from kitchen.types import Table
from stages.claims.open_scorers import JUDGE, LEXICAL, NONE
from stages.claims.pipeline_file import (
    Backend,
    EvaluationSection,
    LoraFile,
    PipelineFile,
    WithLines,
    pipeline_schema,
    read_with_lines,
)
from stages.claims.setup import set_up_data
from stages.claims.written_files import exported_run, other_base_model

_RECIPES: Mapping[PipelineCommand, str] = {
    "validate": "recipes.claim_validation",
    "train": "recipes.claim_extraction",
    "eval": "recipes.claim_evaluation",
    "run": "recipes.claim_extraction",
    "antagonist": "recipes.claim_antagonist",
}
# sections that a command needs
_NEEDED: Mapping[PipelineCommand, tuple[str, ...]] = {
    "validate": (),
    "train": ("training",),
    "eval": ("evaluation",),
    "run": ("training", "evaluation"),
    "antagonist": ("evaluation",),
}
_ADAPTERS: Mapping[str, Mapping[str, str]] = {
    "hf_peft": {"training": "peft"},
    "tinker": {"training": "tinker"},
    "fake": {"training": "fake", "hub": "local"},
}
_LAYERS = {
    "attention": frozenset({"q_proj", "k_proj", "v_proj", "o_proj"}),
    "mlp": frozenset({"gate_proj", "up_proj", "down_proj"}),
}


class ClaimPipeline:
    """Pipelines that validate data, train on claims and evaluate the weights."""

    def prepare(
        self, command: PipelineCommand, path: Path, options: PipelineOptions
    ) -> PipelineRun:
        """Read the files of a pipeline; raises ConfigError with file, line and key."""
        pipeline = read_with_lines(path, PipelineFile)
        if command == "info":
            described = _Builder(
                _widest(pipeline.content),
                _backend(pipeline, options),
                pipeline,
                _lora_file("train", pipeline),
                for_info=True,
            )
            return described.run(options)
        for section in _NEEDED[command]:
            if getattr(pipeline.content, section) is None:
                raise ConfigError(
                    f"{path}: the section {section!r} is missing, which `thinker {command}` needs"
                )
        backend = _backend(pipeline, options)
        builder = _Builder(command, backend, pipeline, _lora_file(command, pipeline))
        return builder.run(options)

    def schema(self) -> Mapping[str, Any]:
        """Return the JSON schema of both files."""
        return pipeline_schema()

    def set_up(self, source: Path, out: Path) -> Table:
        """Convert a SciFact folder to rows to train on, in a new folder."""
        return set_up_data(source, out)


def _backend(pipeline: WithLines[PipelineFile], options: PipelineOptions) -> str:
    if options.backend is not None:
        check_name("--backend", options.backend, get_args(Backend))
        return options.backend
    training = pipeline.content.training
    return "hf_peft" if training is None else training.backend


def _widest(content: PipelineFile) -> PipelineCommand:
    """Return the command that uses most of the sections that a file has."""
    if content.training is not None:
        return "train" if content.evaluation is None else "run"
    return "validate" if content.evaluation is None else "eval"


def _lora_file(
    command: PipelineCommand, pipeline: WithLines[PipelineFile]
) -> WithLines[LoraFile] | None:
    """Read the LoRA file, if the command uses it and the pipeline names one."""
    training = pipeline.content.training
    if training is None or command in ("validate", "antagonist"):
        return None
    if not training.config_path.is_file():
        place = pipeline.place("training.config_path")
        raise ConfigError(f"{place}: training.config_path: there is no file {training.config_path}")
    return read_with_lines(training.config_path, LoraFile)


@dataclass
class _Builder:
    """Builds the run of a command from the files of a pipeline."""

    command: PipelineCommand
    backend: str
    pipeline: WithLines[PipelineFile]
    lora: WithLines[LoraFile] | None
    for_info: bool = False  # paths need not exist
    settings: list[Setting] = field(default_factory=list)
    adapter_settings: list[str] = field(default_factory=list)
    features: list[str] = field(default_factory=list)
    paths: dict[str, Path] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def run(self, options: PipelineOptions) -> PipelineRun:
        if self.command == "antagonist":
            return self._antagonist()
        self._add_gate(skip=options.skip_validation)
        trains = self.command in ("train", "run")
        evaluation = self.pipeline.content.evaluation
        if self.lora is not None:
            self._add_shared(self.lora)
            if trains:
                self._add_training(self.lora)
                self._add_model(self.lora)
        if trains:
            self._add_held_out(self.lora, evaluation)
        if self.command == "eval" and evaluation is not None:
            self._add_weights(evaluation)
        if self.command == "run" and evaluation is not None:
            self._add_trained_evaluation(evaluation)
        if self.command in ("run", "eval"):
            self._add_antagonist()
        if self.command in ("train", "run", "eval") and self.features:
            self._set("gate.features", tuple(self.features), self.pipeline, "training")
        if self.problems:
            raise ConfigError("\n".join(self.problems))
        return self._result()

    def _antagonist(self) -> PipelineRun:
        """Return the run that searches the answers of an evaluation."""
        evaluation, key = self.pipeline.content.evaluation, "evaluation.output_path"
        assert evaluation is not None
        if evaluation.output_path is None:
            raise ConfigError(f"{self.pipeline.document.path}: the key {key!r} is missing")
        if not evaluation.output_path.is_file():
            raise ConfigError(
                f"{self.pipeline.place(key)}: {key}: there is no file {evaluation.output_path}; "
                "run `thinker eval` first"
            )
        self._add_claims(evaluation, "dataset", "rows")
        self._add_predictions(evaluation, "predictions")
        self._add_antagonist()
        if self.problems:
            raise ConfigError("\n".join(self.problems))
        return self._result()

    def _add_antagonist(self) -> None:
        section, file = self.pipeline.content.antagonist, self.pipeline
        if section is not None:
            self._set("antagonist.chirality", section.chirality, file, "antagonist.chirality")
            self._set("antagonist.entailment", section.entailment, file, "antagonist.entailment")
            scorer = _scorer_name(section.scorer, file)
            self._set("scorers.entailment", scorer, file, "antagonist.scorer")

    def _result(self) -> PipelineRun:
        lora = self.lora
        files = {"pipeline": self.pipeline.document.path}
        float16 = ""
        if lora is not None:
            files["lora"] = lora.document.path
            trains = self.command in ("train", "run")
            if trains and lora.content.training.fp16 and self.backend == "hf_peft":
                float16 = lora.place("training.fp16")
        return PipelineRun(
            _RECIPES[self.command],
            self.settings,
            self._adapters(),
            self.adapter_settings,
            self.backend,
            self.features,
            float16,
            files,
            self.paths,
        )

    def _adapters(self) -> Mapping[str, str]:
        """Return the adapters of the command; only a judge of the antagonist needs the backend."""
        section = self.pipeline.content.antagonist
        scorer = NONE if section is None else section.scorer
        if self.command == "validate":
            return _ADAPTERS["fake"]
        if self.command != "antagonist" or scorer.startswith(f"{JUDGE}:"):
            return _ADAPTERS[self.backend]
        if scorer in (NONE, LEXICAL):
            return _ADAPTERS["fake"]
        return {**_ADAPTERS[self.backend], "training": "fake"}

    def _set(self, setting: str, value: Any, file: WithLines[Any], key: str) -> None:
        self.settings.append(Setting((setting,), value, file.place(key)))

    def _path(self, file: WithLines[Any], key: str, path: Path, *, exists: bool = True) -> str:
        """Return a path of the file, and note a problem if it must exist and does not."""
        self.paths[key] = path
        if exists and not self.for_info and not path.exists():
            self.problems.append(f"{file.place(key)}: {key}: there is no file or folder {path}")
        return str(path)

    def _add_gate(self, *, skip: bool) -> None:
        """Add the test suite and the schema of the data, or the setting that skips both."""
        file, content = self.pipeline, self.pipeline.content
        tests = content.tests if content.tests is not None and content.tests.enabled else None
        data = content.data_validation
        if tests is None and data is None and not skip:
            raise ConfigError(
                f"{file.document.path}: the sections 'tests' and 'data_validation' are missing, so "
                "there is nothing to validate; add one"
                + (", or skip the validation with --skip-validation" * (self.command != "validate"))
            )
        if tests is not None:
            path = self._path(file, "tests.path", tests.path, exists=not skip)
            self._set("gate.tests.path", path, file, "tests.path")
            self._set("gate.tests.markers", tests.markers, file, "tests.markers")
            self._set("gate.tests.args", tests.args, file, "tests.args")
        if data is not None:
            path = self._path(file, "data_validation.path", data.path, exists=not skip)
            self._set("gate.data.path", path, file, "data_validation.path")
            fields = [asdict(field) for field in data.fields]
            self._set("gate.data.fields", fields, file, "data_validation.schema")
            examples = data.max_examples
            self._set("gate.data.max_examples", examples, file, "data_validation.max_examples")
        if skip:
            self.settings.append(Setting(("gate.skip",), True, COMMAND_LINE))

    def _add_shared(self, lora: WithLines[LoraFile]) -> None:
        """Add the settings that training and evaluation share, and the device."""
        training = lora.content.training
        tokens = training.max_seq_length
        self._set("rendering.max_tokens", tokens, lora, "training.max_seq_length")
        self._set("seed", lora.content.data.seed, lora, "data.seed")
        self._add_device(lora)

    def _add_training(self, lora: WithLines[LoraFile]) -> None:
        content = lora.content
        data = self._path(lora, "data.train_file", content.data.train_file)
        self._set("dataset", data, lora, "data.train_file")
        folder = content.output.checkpoint_dir
        checkpoint = self._path(lora, "output.checkpoint_dir", folder, exists=False)
        self._set("output.checkpoint_dir", checkpoint, lora, "output.checkpoint_dir")
        for setting, value, key in chain(_training_settings(content), _loss_settings(content)):
            self._set(setting, value, lora, key)
        if content.lora.target_modules is not None:
            layers = _layers(lora, content.lora.target_modules)
            self._set("lora_layers", layers, lora, "lora.target_modules")
        if not content.data.shuffle:
            self.features.append("data.shuffle: false")
        if content.output.logging_steps != 1:
            self.features.append(f"output.logging_steps: {content.output.logging_steps}")

    def _add_model(self, lora: WithLines[LoraFile]) -> None:
        """Add the model to train and the options of its training."""
        model, training = lora.content.model, lora.content.training
        self._set("model", _model_name(model.name, lora), lora, "model.name")
        if training.gradient_checkpointing:
            local = self.backend == "hf_peft"
            self._ask(local, "checkpointing", "true", "training.gradient_checkpointing: true")
        if training.fp16:
            self.features.append("training.fp16: true")

    def _add_device(self, lora: WithLines[LoraFile]) -> None:
        """Add the device and the quantization, to train on and to evaluate on."""
        model, local = lora.content.model, self.backend == "hf_peft"
        if model.device_map not in (None, "auto"):
            is_device = str(model.device_map).partition(":")[0] in ("cpu", "cuda")
            known = local and is_device
            self._ask(known, "device", model.device_map, f"model.device_map: {model.device_map}")
        if model.quantization is not None:
            known = local and model.quantization == "4bit"
            name = f"model.quantization: {model.quantization}"
            self._ask(known, "quantization", model.quantization, name)

    def _ask(self, honoured: bool, setting: str, value: Any, feature: str) -> None:
        """Set a setting of the training adapter, or note a feature that it lacks."""
        if honoured:
            self.adapter_settings.append(f"training.{setting}={value}")
        else:
            self.features.append(feature)

    def _add_held_out(
        self, lora: WithLines[LoraFile] | None, evaluation: EvaluationSection | None
    ) -> None:
        """Add the rows to measure on: the claims of the evaluation, or a share of the data."""
        assert lora is not None
        share = lora.content.data.validation_split
        if self.command == "train" and share > 0:
            self._set("reading.held_out", share, lora, "data.validation_split")
            evaluation = None
        elif share > 0:
            self.features.append(f"data.validation_split: {share:g}")
        if evaluation is not None:
            self._add_claims(evaluation, "held_out", "reading.held_out_rows")
        elif share == 0:
            self.problems.append(
                f"{lora.place('data.validation_split')}: data.validation_split is 0, and there is "
                "no section 'evaluation': set a share of the rows to measure the loss on"
            )
        self._set("output.evaluate", self.command == "run", self.pipeline, "evaluation")

    def _add_claims(self, evaluation: EvaluationSection, claims: str, rows: str) -> None:
        """Add the claims to evaluate on, and their documents."""
        file = self.pipeline
        for setting, key in ((claims, "claims_file"), ("corpus", "corpus_file")):
            key_in_file = f"evaluation.{key}"
            path = self._path(file, key_in_file, getattr(evaluation, key))
            self._set(setting, path, file, key_in_file)
        if evaluation.max_samples is not None:
            self._set(rows, evaluation.max_samples, file, "evaluation.max_samples")

    def _add_decoding(self, evaluation: EvaluationSection) -> None:
        tokens, temperature = evaluation.max_new_tokens, evaluation.temperature
        self._set("evaluation.max_tokens", tokens, self.pipeline, "evaluation.max_new_tokens")
        self._set("evaluation.temperature", temperature, self.pipeline, "evaluation.temperature")
        self._set("evaluation.metrics", evaluation.metrics, self.pipeline, "evaluation.metrics")

    def _add_predictions(self, evaluation: EvaluationSection, setting: str) -> None:
        if evaluation.output_path is not None:
            key = "evaluation.output_path"
            path = self._path(self.pipeline, key, evaluation.output_path, exists=False)
            self._set(setting, path, self.pipeline, key)

    def _add_weights(self, evaluation: EvaluationSection) -> None:
        """Add the weights that `thinker eval` evaluates: the exported folder, or its run."""
        folder, key = evaluation.checkpoint_dir, "evaluation.checkpoint_dir"
        self._path(self.pipeline, key, folder, exists=False)
        run, place = exported_run(folder), self.pipeline.place(key)
        if not folder.is_dir() and not self.for_info:
            self.problems.append(
                f"{place}: {key}: there is no folder {folder}; run `thinker train` first"
            )
        elif self.backend == "tinker" and run is None and not self.for_info:
            self.problems.append(
                f"{place}: {key}: {folder} does not say which run it comes from, and a server "
                "evaluates weights of runs only; run `thinker train --backend tinker` first"
            )
        if not self.for_info:
            self._check_base_model(evaluation)
        weights = f"run:{run}@final" if self.backend == "tinker" else f"path:{folder}"
        self._set("weights", weights, self.pipeline, key)
        self._add_claims(evaluation, "dataset", "rows")
        self._add_decoding(evaluation)
        self._add_predictions(evaluation, "predictions")

    def _check_base_model(self, evaluation: EvaluationSection) -> None:
        """Note a problem if the adapter's folder names another model than the evaluation."""
        folder, key = evaluation.checkpoint_dir, "evaluation.base_model"
        wanted = _model_name(evaluation.base_model, self.pipeline)
        model = other_base_model(folder, wanted)
        if model is not None:
            self.problems.append(
                f"{self.pipeline.place(key)}: {key} is {evaluation.base_model!r}, and the weights "
                f"in {folder} were trained on {model!r}; name that model, or the folder of weights "
                "of the other one"
            )

    def _add_trained_evaluation(self, evaluation: EvaluationSection) -> None:
        """Add the evaluation of the weights that the run trains; it has no other weights."""
        assert self.lora is not None
        lora, file = self.lora.content, self.pipeline
        wanted = _model_name(evaluation.base_model, file)
        if wanted != _model_name(lora.model.name, self.lora):
            self.problems.append(
                f"{file.place('evaluation.base_model')}: evaluation.base_model is "
                f"{evaluation.base_model!r}, and the training is on {lora.model.name!r}; "
                "`thinker run` evaluates the weights that it trains, so name the same model"
            )
        if evaluation.checkpoint_dir != lora.output.checkpoint_dir:
            self.features.append(f"evaluation.checkpoint_dir: {evaluation.checkpoint_dir}")
        self._add_decoding(evaluation)
        self._add_predictions(evaluation, "output.predictions")


def _training_settings(lora: LoraFile) -> Iterator[tuple[str, Any, str]]:
    """Yield recipe settings with their values and keys in the LoRA file."""
    training, output = lora.training, lora.output
    yield "lora_rank", lora.lora.r, "lora.r"
    yield "lora_alpha", lora.lora.lora_alpha, "lora.lora_alpha"
    yield "lora_dropout", lora.lora.lora_dropout, "lora.lora_dropout"
    yield "batch_size", training.batch_size, "training.per_device_batch_size"
    yield "learning_rate", training.learning_rate, "training.learning_rate"
    yield "epochs", training.num_epochs, "training.num_epochs"
    yield "schedule", training.lr_scheduler_type, "training.lr_scheduler_type"
    yield "warmup_steps", training.warmup_steps, "training.warmup_steps"
    yield "weight_decay", training.weight_decay, "training.weight_decay"
    yield "eval_every", output.eval_steps, "output.eval_steps"
    yield "save_every", output.save_steps, "output.save_steps"
    if output.save_total_limit is not None:
        yield "keep", output.save_total_limit, "output.save_total_limit"


def _loss_settings(lora: LoraFile) -> Iterator[tuple[str, Any, str]]:
    """Yield recipe settings of the loss with their values and keys in the LoRA file."""
    training = lora.training
    yield "token_weights.kind", "by_line", "training.claim_c1_weight"
    yield "token_weights.claim", training.claim_c1_weight, "training.claim_c1_weight"
    yield "token_weights.evidence", training.evidence_weight, "training.evidence_weight"
    yield "penalty.weight", training.citation_penalty, "training.citation_penalty"


def _layers(lora: WithLines[LoraFile], modules: Sequence[str]) -> str:
    """Return the setting lora_layers of target modules; raises ConfigError for other modules."""
    wanted = set(modules)
    for name, layers in {**_LAYERS, "all": frozenset(chain(*_LAYERS.values()))}.items():
        if wanted == layers:
            return name
    sets = " or ".join(f"[{', '.join(sorted(layers))}]" for layers in _LAYERS.values())
    raise ConfigError(
        f"{lora.place('lora.target_modules')}: lora.target_modules: "
        f"[{', '.join(modules)}] cannot be expressed on every backend: they train the layers of "
        f"attention, of the MLP, or both, so write {sets}, all of them, or null"
    )


def _model_name(name: str, file: WithLines[Any]) -> str:
    """Return the name of a model; a folder is relative to the file, with / or backslashes."""
    kind, _, folder = name.partition(":")
    if kind != "path" or not folder:
        return name
    path = Path(folder.replace("\\", "/")).expanduser()
    return f"path:{(file.document.path.parent / path).resolve()}"


def _scorer_name(name: str, file: WithLines[Any]) -> str:
    """Return the name of a scorer; a folder is relative to the file."""
    kind, _, weights = name.partition(":")
    if kind == JUDGE:
        return f"{JUDGE}:{_model_name(weights, file)}"
    return _model_name(name, file)
