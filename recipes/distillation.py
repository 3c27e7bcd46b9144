"""Distillation: the student answers, and a teacher says what it would have said in the place of each token."""

from pydantic import PositiveFloat, PositiveInt

from kitchen import Step, for_each, sequence
from stages.comparison import Compare, QualityGate
from stages.data import LoadDataset
from stages.distillation import AskRows, DivergenceName, ImitateTop, ReportAnswers
from stages.divergence import MeasureKL, MeasureKLBefore
from stages.evaluation import EvaluateBase, EvaluateWeights, Examination
from stages.optimise import ForwardBackward, ReportStep
from stages.policy import Discount, Minibatches, PolicyUpdate, ReportPolicy, ScoreRollouts
from stages.render import RenderDataset
from stages.scoring import OpenReference
from stages.sessions import FinalWeights, OpenSession, SaveFinal
from stages.training import TrainingOnRollouts


class Distillation(TrainingOnRollouts):
    """On-policy: the answers are the student's own, so that it learns where it is that it goes wrong."""

    leaves = (FinalWeights,)
    teacher: str  # weights of any name that read the same tokens: run:ID, packaged:NAME, a hub's NAME[@REVISION]
    evaluation: Examination = Examination()
    divergence: DivergenceName = "reverse"  # KL(student || teacher); forward: KL(teacher || student) over its top_k
    coefficient: PositiveFloat = 1.0  # of reverse: what a nat between student and teacher costs
    discount: Discount = 0.0  # of reverse: of what later tokens cost; 0: a token pays for itself
    top_k: PositiveInt = 20  # of forward: the teacher's likeliest tokens, at each position

    def workflow(self) -> Step:
        how = RenderDataset(), self.evaluation.max_tokens, self.seed
        return sequence(
            LoadDataset(self.dataset, self.reading, self.seed, self.rows), OpenSession(self.model, self.lora),
            AskRows(), OpenReference(self.teacher, "teacher"),
            EvaluateBase(self.model, self.evaluation, RenderDataset()),
            MeasureKLBefore(self.teacher, *how, model=self.model), self.rounds(ReportAnswers(), *self.lesson()),
            SaveFinal(), MeasureKL(self.teacher, *how), EvaluateWeights(self.evaluation, RenderDataset()),
            Compare(self.seed), QualityGate(self.evaluation.at_least))

    def lesson(self) -> tuple[Step, ...]:
        """What is learnt from a batch of the student's answers."""
        steps = for_each(Minibatches(self.updates))
        if self.divergence == "forward":
            return ImitateTop(self.top_k), steps(ForwardBackward(), self.optim, ReportStep())
        return (ScoreRollouts("teacher"), PolicyUpdate(penalty=self.coefficient, discount=self.discount),
                steps(ForwardBackward("importance_sampling"), self.optim, ReportPolicy()))
