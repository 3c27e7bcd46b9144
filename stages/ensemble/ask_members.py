"""The stage that asks the members of an ensemble and lets them vote."""

from __future__ import annotations

from kitchen.artifacts.weights import find_weights
from kitchen.ports import BlobStore, ModelCatalog, TrainingClient
from kitchen.stage import Stage
from kitchen.types import Price, Samples, Table
from stages.data.bad_rows import BadRowsName
from stages.data.dataset import HeldOut
from stages.ensemble.config import EnsembleConfig
from stages.ensemble.evaluating import EnsembleEvaluation, question_counts, vote_records
from stages.ensemble.members import check_gives_logprobs
from stages.ensemble.voted import VotedAnswers
from stages.ensemble.voting import check_function
from stages.ensemble.weighing import MemberWeights
from stages.evaluate.bad_rows import DropBadQuestions
from stages.evaluate.evaluation import EvaluationAfter, first_question
from stages.evaluate.reference import IdentifyWeights


class AskMembers(Stage):
    """Ask the members of an ensemble all held-out problems, and let them vote on each."""

    memoize = True
    evaluation: EnsembleEvaluation

    async def run(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        held_out: HeldOut,
        weights: MemberWeights | None = None,
        blobs: BlobStore | None = None,
    ) -> tuple[VotedAnswers, EvaluationAfter, Samples]:
        equal = (1.0,) * len(self.evaluation.ensemble.members)
        of_votes = equal if weights is None else weights.weights
        voted = await self.evaluation.answer(held_out, of_votes, client, models, blobs)
        return voted, EvaluationAfter(voted.answers(), {}), vote_records(voted, held_out)

    def preview(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        held_out: HeldOut,
        blobs: BlobStore | None = None,
        price: Price | None = None,
    ) -> tuple[Table, Table]:
        tokenizers = self.evaluation.tokenizers(client, models, blobs)
        metrics = self.evaluation.metrics(held_out)
        first = first_question(held_out, metrics, tokenizers[0], self.evaluation.render)
        return question_counts("Questions", self.evaluation, held_out, tokenizers, price), first

    def verify(
        self, client: TrainingClient, models: ModelCatalog, blobs: BlobStore | None = None
    ) -> None:
        ensemble = self.evaluation.ensemble
        for name in ensemble.members:
            weights = find_weights(name, client, blobs)
            if ensemble.vote == "confidence":
                check_gives_logprobs(weights, models)
        check_function(ensemble.rule, ensemble.labels, ensemble.draws)


def identify_members(config: EnsembleConfig) -> tuple[Stage, ...]:
    """Return stages that record which weights the names of the members stand for."""
    return tuple(IdentifyWeights(name, f"member.{at}") for at, name in enumerate(config.members, 1))


def drop_bad_questions(asking: EnsembleEvaluation, bad_rows: BadRowsName) -> tuple[Stage, ...]:
    """Return stages that leave out rows which a member cannot be asked, if they are to be."""
    names = dict.fromkeys(asking.ensemble.members if bad_rows == "drop" else ())
    return tuple(DropBadQuestions(name, asking.render, asking.config) for name in names)
