"""Off-policy distillation: a teacher answers once, and the student imitates what it wrote."""

from kitchen import Step
from kitchen.errors import ConfigError
from recipes.sl_basic import SlBasic
from stages.chat.conversations import TrainRows
from stages.chat.render import RenderDataset
from stages.distill.off_policy import (
    EvaluateTeacher,
    TakeAnswers,
    TaughtRows,
    WriteAnswers,
    Writing,
)
from stages.evaluate.reference import IdentifyWeights


class DistillationOffPolicy(SlBasic):
    """The teacher may be other weights, or the model itself with a system prompt that the student
    does without.
    """

    teacher: str | None = None  # weights of any name; null for those that the run begins with
    instruction: str = ""  # a system prompt that the teacher reads, and the student does not
    writing: Writing = Writing()
    # that is the teacher's
    rendering: RenderDataset = RenderDataset(train_on="last_assistant_message")

    @property
    def rows(self) -> int | None:
        answers = super().rows
        return None if answers is None else -(-answers // self.writing.tries)

    def prepared(self) -> tuple[Step, ...]:
        if self.teacher is None and not self.instruction:
            raise ConfigError(
                "the student has nobody to learn from: set teacher=WEIGHTS, or instruction=TEXT, a "
                "system prompt that makes the model its own teacher"
            )
        teacher, taught = self.teacher or self.model, self.rendering.using({TrainRows: TaughtRows})
        return (
            IdentifyWeights(teacher, "teacher"),
            WriteAnswers(teacher, self.rendering, self.writing, self.instruction, self.seed),
            TakeAnswers(),
            taught,
            EvaluateTeacher(teacher, self.evaluation, self.rendering, self.instruction, self.seed),
        )
