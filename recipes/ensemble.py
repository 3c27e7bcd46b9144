"""Evaluation of an ensemble: several members answer each problem, and a vote decides."""

from typing import Annotated

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from kitchen import Recipe, Step, sequence
from kitchen.types import ModelName, Seed, Tries
from stages import chat, data, ensemble, evaluate


class Ensemble(Recipe):
    """Majority vote of several models, or of several answers of one (self-consistency)."""

    # weights of the members, in the order of asking: run:ID, path:DIR, NAME on the hub, ...
    members: tuple[ModelName, ...] = ()
    draws: Tries = 1  # answers sampled from each member, each of which is a vote
    # majority: most votes; weighted: by accuracy on the split `weigh_on`; confidence: by the mean
    # log-probability of the tokens; unanimous: no answer unless all agree; or MODULE:function
    vote: str = "majority"
    # parallel: all members at once; sequential: one after another, one in memory at a time;
    # cascade: one vote after another, until the others could hardly change the answer
    mode: ensemble.Mode = "parallel"
    # a cascade stops when the lead of the first answer over the second is more than this share of
    # the votes that are missing; with 1, the answer is always that of all votes
    enough: Annotated[float, Field(ge=0, le=1)] = 0.8
    seconds: PositiveFloat = 30.0  # time limit of each request; late answers are counted
    concurrency: PositiveInt = 16  # requests to a member at the same time
    temperature: NonNegativeFloat = 0.0  # sampling temperature of all members; 0 for greedy
    weigh_on: str | None = None  # split that measures accuracies for vote=weighted
    weigh_rows: PositiveInt | None = 200  # maximum number of rows of that split; null for all
    # held-out data: a packaged data set, a file or folder or, with --datasets hf, a name on the hub
    dataset: str = "ingredients"
    # splits to evaluate on; null for all but the one to train on, or for that one if it is alone
    splits: tuple[str, ...] | None = None
    # maximum number of rows per split; the same rows are chosen whatever the seed; null for all
    rows: PositiveInt | None = None
    reading: data.HeldOutRowsConfig = data.HeldOutRowsConfig()
    rendering: chat.RenderDataset = chat.RenderDataset()
    evaluation: evaluate.EvalConfig = evaluate.EvalConfig()
    seed: Seed = 0  # random seed of sampling

    def workflow(self) -> Step:
        config, reading = ensemble.EnsembleConfig.of(self), self.reading
        asking = ensemble.EnsembleEvaluation(config, self.evaluation, self.rendering, self.seed)
        weighing = ensemble.WeighMembers(
            self.dataset, self.weigh_on, self.weigh_rows, reading, self.splits, asking
        )
        return sequence(
            evaluate.LoadHeldOut(
                self.dataset, self.splits, self.rows, reading, self.evaluation.metric
            ),
            *ensemble.drop_bad_questions(asking, reading.bad_rows),
            *ensemble.identify_members(config),
            *ensemble.weigh_members(weighing),
            ensemble.AskMembers(asking),
            evaluate.ReportEvaluation(),
            ensemble.ReportVotes(),
            ensemble.CompareMembers(),
            evaluate.QualityGate(self.evaluation.at_least),
        )
