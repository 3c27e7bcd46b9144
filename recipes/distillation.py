"""Distillation: the student answers, and a teacher says what it would have said in the place of
each token.
"""

from collections.abc import Mapping

from pydantic import PositiveFloat, PositiveInt

from kitchen import Step, for_each, sequence
from recipes._base import TrainingOnRollouts
from stages.chat.render import RenderDataset
from stages.distill.on_policy import DivergenceName, ReportAnswers, ask, lesson
from stages.distill.teachers import OpenTeachers, check_chat, names_of
from stages.evaluate.before_after import CompareEvaluations, QualityGate
from stages.evaluate.evaluation import EvalConfig, EvaluateBase, EvaluateWeights
from stages.evaluate.kl import MeasureKL, MeasureKLBefore, kl_stages
from stages.rl.policy_gradient import Discount, Minibatches
from stages.train.optim import ForwardBackward
from stages.train.session import FinalWeights, OpenSession, SaveFinal


class Distillation(TrainingOnRollouts):
    """On-policy: the answers are the student's own, so that it learns where it is that it goes
    wrong.
    """

    outputs = (FinalWeights,)
    # weights of any name that read the same tokens; null for the student's own beginning
    teacher: str | None = None
    # by data set, in the place of both: teachers.DATASET=WEIGHTS
    teachers: Mapping[str, str] | None = None
    instruction: str = ""  # a system prompt that the teacher reads, and the student does not
    evaluation: EvalConfig = EvalConfig()
    rendering: RenderDataset = RenderDataset()  # of held-out rows
    # KL(student || teacher); forward: KL(teacher || student) over its top_k
    divergence: DivergenceName = "reverse"
    # of reverse: what a nat between student and teacher costs; null: 1
    coefficient: PositiveFloat | None = None
    # of reverse: of what later tokens cost; null or 0: a token pays for itself
    discount: Discount | None = None
    # of forward: the teacher's likeliest tokens, at each position; null: 20
    top_k: PositiveInt | None = None

    def workflow(self) -> Step:
        names = names_of(self.teacher, self.teachers, self.model, self.instruction, self.dataset)
        check_chat(self.rendering)
        data, loss, report = lesson(self.divergence, self.coefficient, self.discount, self.top_k)
        how = names, self.rendering, self.evaluation.max_tokens, self.seed, self.instruction
        return sequence(
            *ask(self.dataset, self.teachers, self.reading, self.seed, self.rows),
            OpenSession(self.model, self.lora),
            OpenTeachers(names, self.instruction),
            EvaluateBase(self.model, self.evaluation, self.rendering),
            *kl_stages(MeasureKLBefore, *how, model=self.model),
            self.rounds(
                ReportAnswers(),
                *data,
                for_each(Minibatches(self.updates))(ForwardBackward(loss), self.optim, report),
            ),
            SaveFinal(),
            *kl_stages(MeasureKL, *how),
            EvaluateWeights(self.evaluation, self.rendering),
            CompareEvaluations(self.seed),
            QualityGate(self.evaluation.at_least),
        )
