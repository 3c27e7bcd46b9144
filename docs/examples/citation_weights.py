"""Does the weight of the citation penalty matter? Three weights, with three seeds each."""

import kitchen
from recipes.claim_extraction import ClaimExtraction
from stages.claims import CitationPenalty, ClaimEvalConfig
from stages.data import DataConfig

HELD_OUT = "claims_held_out"


class CitationWeights(kitchen.Experiment):
    """Citation weights 2, 5 and 7 on the packaged claims, trained for 5 epochs in batches of 8."""

    weight: float = kitchen.over(2.0, 5.0, 7.0)  # of the citation penalty
    seed: int = kitchen.over(0, 1, 2)
    rank: int = 16
    claims: int = 40  # to train on, of 400: a run takes minutes on one core
    held_out: int = 32  # claims to evaluate on, of 110
    draws: int = 3  # answers to each at temperature 1

    compare_by = "weight"
    measures = (
        f"{HELD_OUT}/citation_valid_sampled",
        f"{HELD_OUT}/citation_valid",
        f"{HELD_OUT}/documents_exact",
        f"{HELD_OUT}/schema",
    )

    def recipe(self) -> kitchen.Recipe:
        return ClaimExtraction(
            reading=DataConfig(limit=self.claims, test=(HELD_OUT,), held_out_rows=self.held_out),
            penalty=CitationPenalty(weight=self.weight, rows=2),
            evaluation=ClaimEvalConfig(max_tokens=256, draws=self.draws),
            lora_rank=self.rank,
            lora_alpha=2.0 * self.rank,
            epochs=5,
            batch_size=8,
            save_every=10,
            eval_every=0,
            seed=self.seed,
        )
