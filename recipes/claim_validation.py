"""Validation of data by a test suite and a schema, without training."""

from typing import ClassVar

from kitchen import Recipe, Step, sequence
from stages import claims


class ClaimValidation(Recipe):
    """The gate of recipes.claim_extraction alone: pytest, then a schema for a JSONL file."""

    pipeline: ClassVar = claims.ClaimPipeline()  # the files of `thinker`
    gate: claims.GateConfig = claims.GateConfig()

    def workflow(self) -> Step:
        return sequence(*claims.gate_stages(self.gate, required=True))
