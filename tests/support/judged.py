"""rlhf whose judge counts brackets: on the fake a bigram is trained as the judge, which cannot tell
answers apart.
"""

from __future__ import annotations

from kitchen import Step, sequence
from recipes.rlhf import Rlhf
from stages.judge.judge_training import OpenJudge
from tests.support.counting import CallCounting


class ByCounting(Rlhf):
    """The judge is trained, and another one is asked."""

    def workflow(self) -> Step:
        steps = super().workflow().steps
        return sequence(
            *(CallCounting() if isinstance(step, OpenJudge) else step for step in steps)
        )
