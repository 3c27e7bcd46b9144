"""Evaluation of any weights on held-out data, without training."""

from collections.abc import Mapping

from pydantic import NonNegativeInt, PositiveInt

from kitchen import Recipe, Step, sequence
from stages import chat, evaluate


class Evaluate(Recipe):
    """Exact match, field F1 and pass@k with 95 % intervals, or the loss of free-form answers."""

    # weights to evaluate: packaged:NAME, run:ID[@STEP|final|best], path:FOLDER, NAME[@REVISION]
    weights: str = "packaged:smollm2-135m-instruct"
    # a packaged data set, or a file or folder: JSON, JSONL, CSV, Parquet
    dataset: str = "ingredients"
    # splits to evaluate on; null for all but "train", or for that one where there is no other
    splits: tuple[str, ...] | None = None
    rows: PositiveInt | None = None  # maximum rows of each split, a seeded choice; null for all
    columns: Mapping[str, str] = {}  # columns to rename: columns.question=prompt
    rendering: chat.RenderDataset = chat.RenderDataset()
    evaluation: evaluate.EvalConfig = evaluate.EvalConfig()
    answering: evaluate.DecodingConfig = evaluate.DecodingConfig()
    seed: NonNegativeInt = 0  # seed of the choice of rows, of sampled answers and of bootstraps

    def workflow(self) -> Step:
        return sequence(
            evaluate.LoadHeldOut(self.dataset, self.splits, self.rows, self.columns, self.seed),
            evaluate.IdentifyWeights(self.weights),
            evaluate.EvaluateCheckpoint(
                self.weights, self.evaluation, self.rendering, self.answering, self.seed
            ),
            evaluate.ReportEvaluation(self.answering.pass_at, self.seed),
            evaluate.QualityGate(self.evaluation.at_least),
        )
