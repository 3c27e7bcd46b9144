"""On-policy distillation: the student answers, and a teacher scores each of its tokens."""

from collections.abc import Mapping

from pydantic import PositiveFloat, PositiveInt

from kitchen import Step, for_each, sequence
from kitchen.types import ModelName
from recipes._base import RolloutRecipe
from stages import chat, data, distill, evaluate, rl, tasks, train
from stages.evaluate.kl import kl_stages


class Distillation(RolloutRecipe):
    """Train the student on its own answers, so that it learns from its own mistakes."""

    # teacher model, named like `model`; null for the initial weights
    teacher: ModelName | None = None
    # one teacher per data set: teachers.DATASET=WEIGHTS
    teachers: Mapping[str, ModelName] | None = None
    instruction: str = ""  # system prompt for the teacher only
    evaluation: evaluate.EvalConfig = evaluate.EvalConfig()
    rendering: chat.RenderDataset = chat.RenderDataset()  # of prompts and held-out rows
    # reverse: KL(student || teacher); forward: KL(teacher || student) over the teacher's top_k
    divergence: distill.DivergenceName = "reverse"
    coefficient: PositiveFloat | None = None  # weight of the reverse KL; null for 1
    # discount factor of later tokens' reverse KL in a token's advantage; null for 0: only its own
    discount: rl.DiscountFactor | None = None
    top_k: PositiveInt | None = None  # number of the teacher's top tokens; null for 20
    best: evaluate.BestConfig = evaluate.BestConfig("held_out_kl")

    def workflow(self) -> Step:
        names = self.teacher, self.teachers, self.model
        teachers = distill.teacher_names(*names, self.instruction, self.dataset)
        distill.check_chat(self.rendering)
        options = self.coefficient, self.discount, self.top_k
        targets, loss, report = distill.divergence_steps(self.divergence, *options)
        kl = teachers, self.rendering, self.evaluation.max_tokens, self.seed, self.instruction
        batches = self.until_stopped(tasks.TaskBatches(self.batch_size, self.steps, self.seed))
        limit, prompts = self.playing.max_tokens, self.rendering
        drop_bad_rows = distill.DropBadPrompts(self.rendering, self.evaluation, limit)
        rows = self.reading, self.seed, self.problems
        return sequence(
            *distill.load_prompts(self.dataset, self.mixture, self.teachers, *rows),
            train.OpenSession(self.model, self.trainable),
            *data.when_dropping(self.reading.bad_rows, drop_bad_rows),
            tasks.CheckPrompts(limit, prompts),
            distill.OpenTeachers(teachers, self.instruction, prompts, self.model),
            *evaluate.start_exports(self.early_stopping),
            evaluate.EvaluateBase(self.model, self.evaluation, self.rendering),
            *kl_stages(evaluate.MeasureKLBefore, *kl, model=self.model),
            for_each(batches, ahead=self.policy_lag, save=self.save_every, stale=self.stale)(
                rl.Snapshot(self.policy_lag),
                rl.SampleRollouts(self.group, self.playing, self.seed, prompts),
                distill.ReportAnswers(),
                *targets,
                for_each(rl.Minibatches(self.updates))(
                    train.ForwardBackward(loss), self.optim, report
                ),
                self.evaluated(distill.MeasureTeacherKL(*kl, self.eval_rows)),
            ),
            train.SaveFinal(),
            *kl_stages(evaluate.MeasureKL, *kl),
            evaluate.EvaluateWeights(self.evaluation, self.rendering),
            evaluate.CompareEvaluations(),
            evaluate.QualityGate(self.evaluation.at_least),
        )
