"""Preference optimisation: make the chosen answer likelier than the rejected one, and stay near the reference."""

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from kitchen import Step, for_each, sequence
from stages.comparison import Compare, QualityGate
from stages.data import Epochs
from stages.divergence import MeasureKL
from stages.dpo import JoinReference, JudgePairs, PairData, ScoreReference, ShuffledPairs
from stages.evaluation import EvaluateBase, EvaluateWeights
from stages.keeping import StartKeeping
from stages.pair_loss import WITHOUT_REFERENCE, PairLossName, pair_loss
from stages.preferences import LoadComparisons, OwnMistakes, RenderPairs, WriteMistakes
from stages.render import RenderDataset, TrainData
from stages.sessions import FinalWeights, OpenSession, SaveFinal
from stages.training import TrainingInEpochs


class Dpo(TrainingInEpochs):
    """Pairs of answers; where data has right answers alone, the model's own mistakes are the others."""

    leaves = (FinalWeights,)
    reference: str | None = None  # weights of any name, which the policy stays near; null for those it begins with
    mistakes: OwnMistakes = OwnMistakes()
    rendering: RenderDataset = RenderDataset(train_on="last_assistant_turn")
    loss: PairLossName = "sigmoid"
    beta: PositiveFloat | None = None  # how dearly the reference is held; null: 0.1, with loss=simpo 2
    label_smoothing: NonNegativeFloat = 0.0  # share of pairs that may be the wrong way round; with loss=sigmoid
    target_margin: NonNegativeFloat | None = None  # of loss=simpo, beta times nats per token; null: half of beta
    imitation: NonNegativeFloat = 0.0  # weight of the chosen answers' own cross-entropy, nats per token
    learning_rate: PositiveFloat = 1e-5  # the highest, at the end of warm-up
    batch_size: PositiveInt = 16  # pairs per optimiser step

    def workflow(self) -> Step:
        loss = pair_loss(self.loss, self.beta, self.label_smoothing, self.imitation, self.target_margin)
        start = self.reference or self.model
        scored = () if self.loss in WITHOUT_REFERENCE else (ScoreReference(start),)
        return sequence(
            LoadComparisons(self.dataset, self.reading, self.seed), OpenSession(self.model, self.lora), StartKeeping(),
            WriteMistakes(self.model, self.rendering, self.mistakes, self.seed), RenderPairs(self.rendering),
            *scored, JoinReference(), EvaluateBase(self.model, self.evaluation, self.rendering),
            for_each(Epochs(self.epochs, self.batch_size, self.max_steps).using({TrainData: PairData}))(
                for_each(ShuffledPairs(self.batch_size, self.seed), ahead=self.ahead, save=self.save_every)(
                    *self.step(loss))),
            SaveFinal(), JudgePairs(loss), MeasureKL(start, self.rendering, self.evaluation.max_tokens, self.seed),
            EvaluateWeights(self.evaluation, self.rendering), Compare(self.seed),
            QualityGate(self.evaluation.at_least))
