"""Distillation: the student answers, and a teacher says what it would have said in the place of each token."""

from collections.abc import Mapping

from pydantic import PositiveFloat, PositiveInt

from kitchen import Step, for_each, sequence
from stages.comparison import Compare, QualityGate
from stages.distillation import DivergenceName, ImitateTop, ReportAnswers, ask
from stages.divergence import MeasureKL, MeasureKLBefore, measure_each
from stages.evaluation import EvaluateBase, EvaluateWeights, Examination
from stages.optimise import ForwardBackward, ReportStep
from stages.policy import Discount, Minibatches, PolicyUpdate, ReportPolicy
from stages.render import RenderDataset
from stages.sessions import FinalWeights, OpenSession, SaveFinal
from stages.teachers import OpenTeachers, ScoreByTeachers, names_of
from stages.training import TrainingOnRollouts


class Distillation(TrainingOnRollouts):
    """On-policy: the answers are the student's own, so that it learns where it is that it goes wrong."""

    leaves = (FinalWeights,)
    teacher: str | None = None  # weights of any name that read the same tokens; null for the student's own beginning
    teachers: Mapping[str, str] | None = None  # by data set, in the place of both: teachers.DATASET=WEIGHTS
    instruction: str = ""  # a system prompt that the teacher reads, and the student does not
    evaluation: Examination = Examination()
    divergence: DivergenceName = "reverse"  # KL(student || teacher); forward: KL(teacher || student) over its top_k
    coefficient: PositiveFloat = 1.0  # of reverse: what a nat between student and teacher costs
    discount: Discount = 0.0  # of reverse: of what later tokens cost; 0: a token pays for itself
    top_k: PositiveInt = 20  # of forward: the teacher's likeliest tokens, at each position

    def workflow(self) -> Step:
        names = names_of(self.teacher, self.teachers, self.model, self.instruction, self.dataset)
        how = names, RenderDataset(), self.evaluation.max_tokens, self.seed, self.instruction
        return sequence(
            *ask(self.dataset, self.teachers, self.reading, self.seed, self.rows), OpenSession(self.model, self.lora),
            OpenTeachers(names, self.instruction), EvaluateBase(self.model, self.evaluation, RenderDataset()),
            *measure_each(MeasureKLBefore, *how, model=self.model), self.rounds(ReportAnswers(), *self.lesson()),
            SaveFinal(), *measure_each(MeasureKL, *how), EvaluateWeights(self.evaluation, RenderDataset()),
            Compare(self.seed), QualityGate(self.evaluation.at_least))

    def lesson(self) -> tuple[Step, ...]:
        """What is learnt from a batch of the student's answers."""
        steps = for_each(Minibatches(self.updates))
        if self.divergence == "forward":
            return ImitateTop(self.top_k), steps(ForwardBackward(), self.optim, ReportStep())
        return (ScoreByTeachers(), PolicyUpdate(penalty=self.coefficient, discount=self.discount),
                steps(ForwardBackward("importance_sampling"), self.optim, ReportPolicy()))
