"""Claim extraction: state a hypothesis, cite documents as evidence, and relate the two."""

from pydantic import PositiveFloat, PositiveInt

from kitchen import Step, every, for_each, sequence
from recipes._base import EpochSettings
from stages import chat, claims, data, evaluate, train


class ClaimExtraction(EpochSettings):
    """Cross-entropy on claim lines, with a penalty on documents that the prompt lacks."""

    gate: claims.GateConfig = claims.GateConfig()
    # claims to train on, in SciFact's format or as prompt and completion: a name, file or folder
    dataset: str = "claims"
    # documents that the claims cite: a file; null for the split `corpus` of `dataset`
    corpus: str | None = None
    # claims to evaluate on: a file or folder; null for the held-out splits of `dataset`
    held_out: str | None = None
    hypothesis: bool = True  # whether prompts have the hypothesis
    rendering: chat.RenderDataset = chat.RenderDataset(max_tokens=2048)
    token_weights: claims.TokenWeights = claims.TokenWeights()
    penalty: claims.CitationPenalty = claims.CitationPenalty()
    evaluation: claims.ClaimEvalConfig = claims.ClaimEvalConfig()
    scorers: claims.ScorerConfig = claims.ScorerConfig()
    antagonist: claims.AntagonistConfig = claims.AntagonistConfig()
    targets: claims.ClaimTargets = claims.ClaimTargets()
    learning_rate: PositiveFloat = 1e-3  # peak learning rate, reached at the end of warm-up
    batch_size: PositiveInt = 4  # claims per optimiser step
    epochs: PositiveInt = 3  # passes over the data
    output: claims.OutputConfig = claims.OutputConfig()

    def workflow(self) -> Step:
        sources = self.corpus, self.held_out, self.hypothesis
        epochs = data.Epochs(self.epochs, self.batch_size, self.max_steps).using(claims.CLAIMS)
        batches = claims.ShuffledClaims(self.batch_size, self.seed)
        examined = self.evaluation, self.rendering, self.seed
        judged = self.scorers, self.antagonist, self.targets, self.evaluation
        return sequence(
            *claims.gate_stages(self.gate),
            claims.LoadClaims(self.dataset, self.reading, self.seed, None, *sources),
            *claims.scorer_stages(self.scorers),
            train.OpenSession(self.model, self.trainable),
            *claims.penalty_reference(self.penalty, self.model),
            *evaluate.start_exports(self.early_stopping),
            evaluate.StartEpochLosses(),
            claims.RenderClaims(self.rendering, self.token_weights, 16 if self.eval_every else 0),
            for_each(self.until_stopped(epochs))(
                for_each(self.until_stopped(batches), ahead=self.ahead, save=self.save_every)(
                    claims.ForwardBackwardClaims(self.penalty, self.rendering, self.seed),
                    self.optim,
                    every(self.eval_every)(evaluate.MeasureHeldOut(), *self.export_or_stop),
                    *claims.monitor_claims(self.monitor, *examined),
                    claims.ReportClaimStep(),
                    evaluate.TrackEpochLoss().using(claims.CLAIMS),
                    every(self.eval_every)(evaluate.TrackBestExport(self.keep, self.best)),
                )
            ),
            train.SaveFinal(),
            *claims.output_stages(
                self.output,
                (claims.EvaluateClaims(*examined), claims.ReportClaims()),
                claims.quality_stages(*judged),
            ),
        )
