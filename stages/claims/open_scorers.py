"""Scorers by name: `lexical`, a judge, or a model of an installed adapter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PositiveInt

from kitchen.artifacts.weights import find_weights
from kitchen.config.extras import check_installed
from kitchen.errors import BackendError, ConfigError, did_you_mean
from kitchen.ports import BlobStore, HubClient, ModelCatalog, TrainingClient
from kitchen.stage import Stage
from kitchen.types import Facts, with_absolute_path
from stages.claims.entailment_judge import EntailmentJudge
from stages.claims.scorers import EntailmentScorer, LexicalEntailment, SimilarityScorer
from stages.evaluate.reference import weights_facts

NONE = "none"
LEXICAL = "lexical"
JUDGE = "judge"
MODEL_KINDS = ("hub", "packaged", "path")  # kinds of names of models, as a hub knows them
OF_MODELS = "transformers"  # name of the entry point that opens models of a hub
# entry points by setting: name -> function of the text after the colon that returns a scorer
GROUPS: Mapping[str, str] = {
    "entailment": "kitchen.entailment",
    "similarity": "kitchen.similarity",
}
_BUILT_IN: Mapping[str, tuple[str, ...]] = {
    "entailment": (NONE, LEXICAL, JUDGE, *MODEL_KINDS),
    "similarity": (NONE, *MODEL_KINDS),
}


def _scorer_with_absolute_path(name: str) -> str:
    kind, _, weights = name.partition(":")
    if kind == JUDGE:
        return f"{JUDGE}:{with_absolute_path(weights)}"
    return with_absolute_path(name)


ScorerName = Annotated[str, AfterValidator(_scorer_with_absolute_path)]
Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class ScorerConfig:
    """Options of the measures of meaning: entailment and similarity."""

    # scorer of entailment: lexical (share of words), judge:WEIGHTS (a language model answers yes or
    # no), hub:MODEL, path:DIR (a classifier trained on natural language inference), or none
    entailment: ScorerName = NONE
    # scorer of similarity: packaged:minilm, hub:MODEL or path:DIR (sentence embeddings), or none
    similarity: ScorerName = NONE
    entailment_pass: Share = 0.75  # entailment from which an answer passes
    similarity_pass: Share = 0.70  # similarity from which an answer passes
    # maximum number of pairs of the held-out data on which the entailment scorer is tested first
    calibration_pairs: PositiveInt = 200

    def __post_init__(self) -> None:
        for setting in GROUPS:
            ScorerSource.of(setting, getattr(self, setting))


@dataclass(frozen=True)
class ScorerSource:
    """The parsed name of a scorer."""

    setting: str  # "entailment" or "similarity"
    kind: str
    name: str  # after the colon

    @classmethod
    def of(cls, setting: str, value: str) -> ScorerSource:
        """Parse KIND:NAME, or OWNER/NAME of a model on the hub; raises ConfigError."""
        kind, colon, name = value.partition(":")
        if not colon and "/" in value:
            return cls(setting, "hub", value)
        known = (*_BUILT_IN[setting], *(n for n in _installed(setting) if n != OF_MODELS))
        if kind not in known:
            raise ConfigError(
                f"{setting}={value!r}: there is no scorer {kind!r}; {did_you_mean(kind, known)}. "
                "A model of the hub is named as hub:MODEL"
            )
        if kind in (NONE, LEXICAL) and colon:
            raise ConfigError(f"{setting}={value!r}: {kind} takes nothing after the colon")
        if kind not in (NONE, LEXICAL) and not name:
            what = "weights" if kind == JUDGE else "a model"
            raise ConfigError(f"{setting}={value!r}: name {what} after {kind}:")
        return cls(setting, kind, name)

    @property
    def model(self) -> str:
        """The name of the model as hubs know it."""
        return self.name if self.kind == "hub" else f"{self.kind}:{self.name}"

    def factory(self) -> Any:
        """Return the adapter that opens the scorer.

        Raises ConfigError if it is not installed, BackendError if its packages are missing.
        """
        name = OF_MODELS if self.kind in MODEL_KINDS else self.kind
        installed = _installed(self.setting)
        if name not in installed:
            raise ConfigError(
                f"no {self.setting} adapter {name!r} is installed; install crucible-kitchen again, "
                "so that its entry points are found"
            )
        factory = installed[name].load()
        check_installed(self.setting, name, factory)
        return factory

    def open(self, hub: HubClient | None) -> tuple[Any, Facts]:
        """Open a scorer of an adapter; return it, its name and the digest of its model."""
        facts = Facts({f"{self.setting}.scorer": f"{self.kind}:{self.name}"})
        if self.kind not in MODEL_KINDS:
            return self.factory()(self.name), facts
        store = _required(hub, self)
        facts[f"{self.setting}.sha256"] = store.sha256(self.model)
        return self.factory()(str(store.fetch(self.model))), facts

    def find(self, hub: HubClient | None) -> None:
        """Raise the errors of `open` that are cheap to find."""
        self.factory()
        if self.kind in MODEL_KINDS:
            _required(hub, self).find(self.model)


def _required(hub: HubClient | None, source: ScorerSource) -> HubClient:
    if hub is None:
        raise BackendError(
            f"{source.setting}={source.kind}:{source.name} needs a hub to fetch the model from: "
            "choose one, such as --hub local"
        )
    return hub


def _installed(setting: str) -> Mapping[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUPS[setting])}


@dataclass(frozen=True)
class Scorers:
    """The scorers of a run; None for one that was not chosen."""

    entailment: EntailmentScorer | None = None
    similarity: SimilarityScorer | None = None

    def close(self) -> None:
        for scorer in (self.entailment, self.similarity):
            if scorer is not None:
                scorer.close()


class OpenScorers(Stage):
    """Open the scorers of entailment and similarity."""

    config: ScorerConfig

    def run(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        hub: HubClient | None = None,
        blobs: BlobStore | None = None,
    ) -> tuple[Scorers, Facts]:
        entailment = ScorerSource.of("entailment", self.config.entailment)
        similarity = ScorerSource.of("similarity", self.config.similarity)
        facts = Facts()
        scorer: EntailmentScorer | None = None
        if entailment.kind == JUDGE:
            weights = find_weights(entailment.name, client, blobs)
            tokenizer = weights.tokenizer(models)
            scorer = EntailmentJudge(client.sampler(weights.source), tokenizer, weights.name)
            facts = weights_facts(entailment.name, "entailment", client, blobs)
        elif entailment.kind == LEXICAL:
            scorer = LexicalEntailment()
        elif entailment.kind != NONE:
            scorer, facts = entailment.open(hub)
        if similarity.kind == NONE:
            return Scorers(scorer), facts
        similar, more = similarity.open(hub)
        return Scorers(scorer, similar), Facts({**facts, **more})

    def verify(
        self,
        client: TrainingClient,
        hub: HubClient | None = None,
        blobs: BlobStore | None = None,
    ) -> None:
        for setting in GROUPS:
            source = ScorerSource.of(setting, getattr(self.config, setting))
            if source.kind == JUDGE:
                find_weights(source.name, client, blobs)
            elif source.kind not in (NONE, LEXICAL):
                source.find(hub)
