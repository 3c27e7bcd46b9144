"""Evaluation: what weights of any name make of held-out data; nothing is trained."""

from collections.abc import Mapping

from pydantic import NonNegativeInt, PositiveInt

from kitchen import Recipe, Step, sequence
from stages.chat.render import RenderDataset
from stages.evaluate.before_after import QualityGate
from stages.evaluate.checkpoint_eval import EvaluateCheckpoint, LoadHeldOut, ReportEvaluation
from stages.evaluate.evaluation import DecodingConfig, EvalConfig
from stages.evaluate.reference import IdentifyWeights


class Evaluate(Recipe):
    """Exact match, field F1 and pass@k with 95 % intervals, or the loss where answers cannot be
    compared.
    """

    # or run:ID[@STEP|final|best], path:FOLDER, NAME[@REVISION]
    weights: str = "packaged:smollm2-135m-instruct"
    # a packaged data set, or a file or folder: JSON, JSONL, CSV, Parquet
    dataset: str = "ingredients"
    # null for all but "train", or for that one where there is no other
    splits: tuple[str, ...] | None = None
    rows: PositiveInt | None = None  # of each split, at most: a seeded choice; null for all
    columns: Mapping[str, str] = {}  # renamed: columns.question=prompt
    rendering: RenderDataset = RenderDataset()
    evaluation: EvalConfig = EvalConfig()
    answering: DecodingConfig = DecodingConfig()
    seed: NonNegativeInt = 0  # of the choice of rows, of answers that are drawn, and of bootstraps

    def workflow(self) -> Step:
        return sequence(
            LoadHeldOut(self.dataset, self.splits, self.rows, self.columns, self.seed),
            IdentifyWeights(self.weights),
            EvaluateCheckpoint(
                self.weights, self.evaluation, self.rendering, self.answering, self.seed
            ),
            ReportEvaluation(self.answering.pass_at, self.seed),
            QualityGate(self.evaluation.at_least),
        )
