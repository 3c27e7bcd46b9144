"""Calibration of an entailment scorer on the evidence that the data itself gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from kitchen.errors import ConfigError
from kitchen.stage import Stage
from kitchen.statistics.auc import auc
from kitchen.statistics.intervals import Interval
from kitchen.types import Metrics, Result, Table
from stages.claims.answer import MAIN_CLAIM
from stages.claims.loading import HeldOutClaims
from stages.claims.measures import relations_by_document
from stages.claims.open_scorers import NONE, OpenScorers, ScorerConfig, Scorers
from stages.claims.rows import ClaimRow
from stages.claims.scorers import EntailmentScorer, TextPair, entailment_of

NOT_MEASURED = "not measured"
SUPPORTS = f"supports {MAIN_CLAIM}"


@dataclass(frozen=True)
class Calibration(Result):
    """The test of an entailment scorer: does it rank supporting evidence above other evidence?"""

    # area under the ROC curve: the probability that a supporting document scores higher than one
    # that refutes the claim or is no evidence; None if it is not measured
    auc: Interval | None = None
    why: str = ""  # why it is not measured

    @property
    def trusted(self) -> bool:
        """True if the interval lies above 0.5, so that thresholds of entailment mean something."""
        return self.auc is not None and self.auc.low > 0.5


@dataclass(frozen=True)
class GoldPair:
    """A document of a prompt and the claim, and whether the right answer says it supports it."""

    pair: TextPair
    supports: bool
    claim: str  # id of the claim, in whose cluster the pair is


def gold_pairs(rows: Sequence[ClaimRow]) -> list[GoldPair]:
    """Return the pairs of documents and claims of rows with a right answer.

    Documents that both support and refute their claim are left out.
    """
    pairs: list[GoldPair] = []
    for row in rows:
        if row.answer is None or row.answer.main is None:
            continue
        relations = relations_by_document(row.answer)
        for document, text in row.documents.items():
            verbs = relations.get(document, frozenset())
            if text.strip() and len(verbs) < 2:
                pair = TextPair(text, row.answer.main.text)
                pairs.append(GoldPair(pair, SUPPORTS in verbs, f"{row.where} {row.id}"))
    return pairs


def _spread(pairs: Sequence[GoldPair], limit: int) -> list[GoldPair]:
    """Choose at most `limit` pairs: all pairs of claims at equal distances."""
    step = max(-(-len(pairs) // limit), 1)
    claims = list(dict.fromkeys(pair.claim for pair in pairs))
    chosen = set(claims[::step])
    return [pair for pair in pairs if pair.claim in chosen][:limit]


async def calibrate(
    scorer: EntailmentScorer, rows: Sequence[ClaimRow], limit: int, name: str
) -> Calibration:
    """Score at most `limit` gold pairs, spread over the rows.

    Raises ConfigError if supporting evidence scores lower than other evidence.
    """
    pairs = _spread(gold_pairs(rows), limit)
    for supports, kind in ((True, "supporting"), (False, "other")):
        claims = {pair.claim for pair in pairs if pair.supports == supports}
        if len(claims) < 2:
            return Calibration(None, f"fewer than two claims of the data have {kind} documents")
    scores = await entailment_of(scorer, [pair.pair for pair in pairs])
    by_kind: dict[bool, list[float]] = {True: [], False: []}
    clusters: dict[bool, list[str]] = {True: [], False: []}
    for pair, score in zip(pairs, scores, strict=True):
        by_kind[pair.supports].append(score)
        clusters[pair.supports].append(pair.claim)
    area = auc(by_kind[True], by_kind[False], (clusters[True], clusters[False]))
    if area.high < 0.5:
        raise ConfigError(
            f"entailment={name}: documents that support a claim score lower than those that do "
            f"not: the AUC is {area.format()} on {area.why} of the held-out data. Are the labels "
            "of the model read rightly? Compare id2label in its config.json with its model card, "
            "or choose another scorer"
        )
    return Calibration(area)


class CalibrateEntailment(Stage):
    """Test the entailment scorer on the evidence of the held-out claims, before any threshold."""

    memoize = True
    scorer: str  # its name
    pairs: int = 200  # maximum number of pairs of a document and a claim

    async def run(
        self, scorers: Scorers, held_out: HeldOutClaims
    ) -> tuple[Calibration, Metrics, Table]:
        found = Calibration(None, "no scorer was chosen (scorers.entailment)")
        if scorers.entailment is not None:
            rows = list(chain.from_iterable(held_out.sets.values()))
            found = await calibrate(scorers.entailment, rows, self.pairs, self.scorer)
        metrics = Metrics()
        cells = (self.scorer, NOT_MEASURED, found.why)
        if found.auc is not None:
            area = found.auc
            metrics |= {"entailment_auc": area.estimate, "entailment_auc_low": area.low}
            metrics |= {"entailment_auc_high": area.high}
            use = "thresholds apply" if found.trusted else "no thresholds: 0.5 is not excluded"
            cells = (self.scorer, area.format(), f"{area.why}; {use}")
        columns = ("scorer", "AUC, 95 % interval", "data and use")
        rows_shown = (cells,) if self.scorer != NONE else ()
        return found, metrics, Table("Calibration of entailment", columns, rows_shown)


def scorer_stages(config: ScorerConfig) -> tuple[Stage, ...]:
    """Return the stages that open the scorers and calibrate that of entailment."""
    calibrate_first = CalibrateEntailment(config.entailment, config.calibration_pairs)
    return OpenScorers(config), calibrate_first
