"""Evaluation of any weights on claim extraction, without training."""

from pydantic import PositiveInt

from kitchen import Recipe, Step, sequence
from kitchen.types import ModelName, Seed
from stages import chat, claims, data, evaluate


class ClaimEvaluation(Recipe):
    """Measures of claim extraction with 95 % intervals."""

    gate: claims.GateConfig = claims.GateConfig()
    # weights to evaluate: packaged:NAME, path:DIR, run:ID[@STEP|final|best], or NAME[@REVISION] on
    # the hub
    weights: ModelName = "packaged:smollm2-135m-instruct"
    # claims, in SciFact's format or as prompt and completion: a packaged data set, a file or a
    # folder
    dataset: str = "claims"
    # documents that the claims cite: a file; null for the split `corpus` of `dataset`
    corpus: str | None = None
    # splits to evaluate on; null for all whose names do not mark them as training data
    splits: tuple[str, ...] | None = None
    # maximum number of claims per split; the same ones are chosen whatever the seed; null for all
    rows: PositiveInt | None = None
    reading: data.RowsConfig = data.RowsConfig()
    hypothesis: bool = True  # whether prompts have the hypothesis
    rendering: chat.RenderDataset = chat.RenderDataset(max_tokens=2048)
    evaluation: claims.ClaimEvalConfig = claims.ClaimEvalConfig()
    # JSONL file to write prompts and answers to; null for none
    predictions: claims.AbsolutePath | None = None
    scorers: claims.ScorerConfig = claims.ScorerConfig()
    antagonist: claims.AntagonistConfig = claims.AntagonistConfig()
    targets: claims.AnswerTargets = claims.AnswerTargets()
    seed: Seed = 0  # random seed of sampling

    def workflow(self) -> Step:
        sources = self.dataset, self.corpus, self.splits, self.rows, self.hypothesis, self.reading
        return sequence(
            *claims.gate_stages(self.gate),
            claims.LoadHeldOutClaims(*sources),
            *claims.scorer_stages(self.scorers),
            evaluate.IdentifyWeights(self.weights),
            claims.EvaluateClaimWeights(self.weights, self.evaluation, self.rendering, self.seed),
            claims.ReportClaims(),
            *claims.write_predictions(self.predictions),
            *claims.quality_stages(self.scorers, self.antagonist, self.targets, self.evaluation),
        )
