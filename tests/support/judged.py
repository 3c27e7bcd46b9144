"""rlhf with a judge that counts brackets.

The fake trains a bigram as the judge, which cannot tell answers apart.
"""

from __future__ import annotations

from kitchen import Step, sequence
from kitchen.workflow import Series
from recipes.rlhf import Rlhf
from stages.judge.judge_training import OpenJudge
from tests.support.bracket_judge import OpenBracketJudge


class RlhfWithBracketJudge(Rlhf):
    """Trains a judge, and then asks the one that counts brackets."""

    def workflow(self) -> Step:
        whole = super().workflow()
        assert isinstance(whole, Series)
        steps = [
            OpenBracketJudge() if isinstance(step, OpenJudge) else step for step in whole.steps
        ]
        return sequence(*steps)
