"""KL divergence to the teachers on held-out prompts during training."""

from __future__ import annotations

from contextlib import closing

import numpy as np

from kitchen.ports import Future, Sampler, Tokenizer, TrainingSession, start
from stages.chat.render import RenderDataset
from stages.data.dataset import HeldOut
from stages.distill.teachers import TeacherNames, Teachers
from stages.evaluate.kl import MeasureKL, measure_kl
from stages.evaluate.selection import HeldOutMeasures, HeldOutStage


class MeasureTeacherKL(HeldOutStage):
    """Submit held-out prompts for KL(student || teacher), without waiting.

    The estimate is that of `MeasureKL`, with the same random numbers each time. With several
    teachers, it is also measured for each data set, and the mean over data sets is the total.
    """

    measures = ("kl", "kl_per_token", "kl/", "kl_per_token/")
    names: TeacherNames
    render: RenderDataset
    max_tokens: int  # per answer
    seed: int = 0
    instruction: str = ""  # a system prompt that only the teachers read
    rows: int = 64  # prompts of each held-out set, the first ones

    def run(
        self, session: TrainingSession, tokenizer: Tokenizer, held_out: HeldOut, teachers: Teachers
    ) -> Future[HeldOutMeasures]:
        return start(self._measure(session.snapshot(), tokenizer, held_out, teachers))

    async def _measure(
        self,
        snapshot: Future[Sampler],
        tokenizer: Tokenizer,
        held_out: HeldOut,
        teachers: Teachers,
    ) -> HeldOutMeasures:
        metrics = dict[str, float]()
        with closing(await snapshot) as student:
            for dataset, name in self.names.items():
                stage = MeasureKL(
                    name,
                    self.render,
                    self.max_tokens,
                    self.seed,
                    self.rows,
                    dataset,
                    self.instruction,
                )
                teacher = teachers.samplers[dataset]
                measured, _ = await measure_kl(student, teacher, tokenizer, held_out, stage)
                metrics |= measured
        for name in ("kl", "kl_per_token"):
            values = [value for key, value in metrics.items() if key.partition("/")[0] == name]
            metrics[name] = float(np.mean(values))
        return HeldOutMeasures(metrics)
