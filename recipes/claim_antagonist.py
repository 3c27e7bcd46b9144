"""Search of written answers for flaws; loads no model unless a scorer is chosen."""

from pydantic import PositiveInt

from kitchen import Recipe, Step, sequence
from stages import claims, data


class ClaimAntagonist(Recipe):
    """Flags of answers that an evaluation has written: antagonist_flags.jsonl, and a summary."""

    predictions: claims.AbsolutePath  # JSONL file of answers: claim_id, set and completion
    # claims that were evaluated, in SciFact's format: a packaged data set, a file or a folder
    dataset: str = "claims"
    # documents that the claims cite: a file; null for the split `corpus` of `dataset`
    corpus: str | None = None
    # splits that were evaluated; null for all whose names do not mark them as training data
    splits: tuple[str, ...] | None = None
    rows: PositiveInt | None = None  # maximum number of claims per split; null for all
    reading: data.RowsConfig = data.RowsConfig()
    hypothesis: bool = True  # whether prompts had the hypothesis
    scorers: claims.ScorerConfig = claims.ScorerConfig()
    antagonist: claims.AntagonistConfig = claims.AntagonistConfig()

    def workflow(self) -> Step:
        sources = self.dataset, self.corpus, self.splits, self.rows, self.hypothesis, self.reading
        return sequence(
            claims.LoadHeldOutClaims(*sources),
            *claims.scorer_stages(self.scorers),
            claims.ReadPredictions(self.predictions),
            claims.ScoreSemantics(self.scorers),
            claims.FlagAnswers(self.antagonist),
        )
