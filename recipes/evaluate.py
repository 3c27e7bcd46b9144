"""Evaluation of any weights on held-out data, without training."""

from pydantic import PositiveInt

from kitchen import Recipe, Step, sequence
from kitchen.types import ModelName, Seed
from stages import chat, data, evaluate, tasks


class Evaluate(Recipe):
    """Exact match, field F1 and pass@k with 95 % intervals, or the loss of free-form answers."""

    # weights to evaluate: packaged:NAME, path:DIR, run:ID[@STEP|final|best], or NAME[@REVISION] on
    # the hub
    weights: ModelName = "packaged:smollm2-135m-instruct"
    # held-out data: a packaged data set, a file or folder (JSON, JSONL, CSV, Parquet) or, with
    # --datasets hf, a name on the hub
    dataset: str = "ingredients"
    # splits to evaluate on; null for all but the one to train on, such as "train", or for that one
    # if there is no other
    splits: tuple[str, ...] | None = None
    # maximum number of rows per split; the same rows are chosen whatever the seed; null for all
    rows: PositiveInt | None = None
    reading: data.HeldOutRowsConfig = data.HeldOutRowsConfig()
    rendering: chat.RenderDataset = chat.RenderDataset()
    evaluation: evaluate.EvalConfig = evaluate.EvalConfig()
    rubric: tasks.RubricConfig = tasks.RubricConfig()
    answering: evaluate.DecodingConfig = evaluate.DecodingConfig()
    seed: Seed = 0  # random seed of sampling

    def workflow(self) -> Step:
        drop_bad_rows = evaluate.DropBadQuestions(self.weights, self.rendering, self.evaluation)
        return sequence(
            evaluate.LoadHeldOut(
                self.dataset, self.splits, self.rows, self.reading, self.evaluation.metric
            ),
            *data.when_dropping(self.reading.bad_rows, drop_bad_rows),
            evaluate.IdentifyWeights(self.weights),
            *evaluate.metric_judge(
                self.evaluation.metric, self.rubric, self.seed, self.answering.tries
            ),
            evaluate.EvaluateCheckpoint(
                self.weights, self.evaluation, self.rendering, self.answering, self.seed
            ),
            evaluate.ReportEvaluation(self.answering.pass_at),
            evaluate.QualityGate(self.evaluation.at_least),
        )
