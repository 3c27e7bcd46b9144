"""Reports of an ensemble: its members, its votes, their calibration, and where members disagree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

from kitchen.stage import Stage
from kitchen.statistics.calibration import CalibrationResult, calibration
from kitchen.statistics.comparison import Criteria, Measure, compare_paired, with_correction
from kitchen.statistics.corrections import Correction
from kitchen.statistics.intervals import Interval, interval
from kitchen.statistics.report import ComparedItems, ComparedPair, ComparisonReport
from kitchen.statistics.samples import match_items
from kitchen.statistics.significance import format_p
from kitchen.types import Metrics, Table
from stages.compare.text import comparison_metrics
from stages.ensemble.voted import GradedVote, VotedAnswers, VotedProblem
from stages.evaluate.graded_answers import measures_of, score_bounds
from stages.evaluate.record import NO_SCORE

ENSEMBLE = "the ensemble"
CORRECTION: Correction = "holm"
SELECTED = ", of selected problems only"
SHOWN_CHARACTERS = 40  # of an answer, in the table of disagreements
Rows = list[tuple[str, ...]]
MEMBER_COLUMNS = ("set", "member", "answers", "score", "none", "tokens read", "tokens of answers")
BIN_COLUMNS = ("set", "share of votes", "accuracy, 95 % interval", "problems")
ITEM_COLUMNS = ("set", "problem", "pairs that differ", "answers (votes)", "expected")
PAIR_COLUMNS = ("set", "member", "n", "its score", "ensemble", "difference", "p", "verdict")


@dataclass(frozen=True)
class VotedSet:
    """The problems of one held-out set, with the votes of all members."""

    name: str
    labels: Sequence[str]  # of the members
    problems: Sequence[VotedProblem]
    is_cascade: bool = False

    @cached_property
    def measure(self) -> str:
        """The measure by which answers are right: exact match, or a metric function."""
        return next(iter(measures_of([problem.answer for problem in self.problems])))

    @cached_property
    def measure_label(self) -> str:
        """The name of the measure in tables."""
        return measures_of([problem.answer for problem in self.problems])[self.measure]

    @property
    def is_right_or_wrong(self) -> bool:
        """True if no vote has a partial score, so that an answer is either right or wrong."""
        every = chain.from_iterable(problem.votes for problem in self.problems)
        return {vote.scores[self.measure] for vote in every if vote.scores} <= {0.0, 1.0}

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """The range of the measure."""
        return score_bounds([problem.answer for problem in self.problems], self.measure)

    def decided(self, *by: str) -> list[VotedProblem]:
        """Return the problems whose votes were decided by one of these."""
        return [problem for problem in self.problems if problem.outcome.decided_by in by]

    @property
    def disagreement(self) -> float:
        """The mean share of pairs of votes that differ, over problems with two votes or more."""
        shares = [each.disagreement for each in self.problems if len(each.arrived) > 1]
        return sum(shares) / len(shares) if shares else 0.0

    def votes_of(self, member: int) -> list[GradedVote]:
        """Return all votes of a member, those that failed among them."""
        votes: list[GradedVote] = []
        for problem in self.problems:
            votes += [vote for vote in problem.votes if vote.member == member]
        return votes

    def is_selected(self, member: int) -> bool:
        """Return whether a cascade asked a member only those problems that others left open."""
        skipped = chain.from_iterable(problem.skipped for problem in self.problems)
        return any(vote.member == member and vote.draw == 0 for vote in skipped)

    def scores(self, member: int | None = None) -> tuple[list[str], list[float]]:
        """Return items and scores of a member's answers, or of the ensemble's.

        In a cascade, only the first answer of a member to a problem counts: how many more it was
        asked for depends on whether the first ones were equal, so their mean would be biased.
        """
        items, scores = [], []
        for problem in self.problems:
            if member is None:
                found = [problem.answer.scores]
            else:
                found = [vote.scores for vote in self._scored(problem, member)]
            of_item = [each[self.measure] for each in found if self.measure in each]
            items += [problem.item] * len(of_item)
            scores += of_item
        return items, scores

    def _scored(self, problem: VotedProblem, member: int) -> list[GradedVote]:
        of_member = [vote for vote in problem.votes if vote.member == member]
        return [vote for vote in of_member if not self.is_cascade or vote.draw == 0]

    def mean(self, member: int | None = None) -> str:
        """Return the mean score over problems with its interval."""
        items, scores = self.scores(member)
        if not scores:
            return NO_SCORE
        means = match_items(items, scores, items, scores).first
        selected = member is not None and self.is_selected(member)
        return interval(means, bounds=self.bounds).format() + SELECTED * selected

    @property
    def decided_scores(self) -> list[float]:
        """The scores of the problems on which an answer won."""
        won = [problem.answer for problem in self.problems if problem.answer.answered]
        return [answer.scores[self.measure] for answer in won if answer.scores]

    @property
    def abstentions(self) -> int:
        """The number of problems whose votes were decided, and on which no answer won."""
        return sum(problem.abstained for problem in self.problems)

    def calibration(self) -> CalibrationResult | None:
        """Compare the shares of the votes with whether answers are right; None without answers.

        In a cascade, the shares are those of the votes that were asked for, and say little.
        """
        found = [problem for problem in self.problems if problem.answer.answered]
        found = [problem for problem in found if self.measure in problem.answer.scores]
        if not found or self.is_cascade or not self.is_right_or_wrong:
            return None
        right = [float(problem.answer.scores[self.measure] == 1) for problem in found]
        return calibration([problem.outcome.share for problem in found], right)

    def any_right(self) -> list[float]:
        """Return, for each problem with a scored vote, 1 if any vote is right.

        There are none in a cascade, which does not ask for all votes, and with partial scores.
        """
        right: dict[int, float] = {}
        if self.is_cascade or not self.is_right_or_wrong:
            return []
        for at, problem in enumerate(self.problems):
            for vote in problem.votes:
                if self.measure in vote.scores:
                    hit = float(vote.scores[self.measure] == 1)
                    right[at] = max(hit, right.get(at, 0.0))
        return list(right.values())

    def tokens(self, member: int) -> tuple[int, int]:
        """Return the tokens that a member has read and written."""
        votes = self.votes_of(member)
        read = sum(vote.prompt_tokens for vote in votes)
        return read, sum(vote.answer_tokens for vote in votes)

    def saved(self) -> tuple[int, float]:
        """Return the tokens that a cascade saved: read ones, and an estimate of answers.

        An answer that was not asked for counts as the mean answer of its member, or of all members
        if that one has not answered.
        """
        every = [self._answer_lengths(member) for member in range(len(self.labels))]
        read, answers = 0, 0.0
        for problem in self.problems:
            for vote in problem.skipped:
                lengths = every[vote.member] or list(chain.from_iterable(every))
                read += vote.prompt_tokens
                answers += sum(lengths) / len(lengths) if lengths else 0.0
        return read, answers

    def _answer_lengths(self, member: int) -> list[int]:
        return [vote.answer_tokens for vote in self.votes_of(member) if vote.group is not None]


def voted_sets(voted: VotedAnswers) -> list[VotedSet]:
    """Return the sets of voted answers."""
    sets = voted.sets.items()
    return [VotedSet(name, voted.members, each, voted.is_cascade) for name, each in sets]


class ReportVotes(Stage):
    """Report members, votes and their calibration, and the problems on which members disagree."""

    shown: int = 3  # problems of each set with the most disagreement

    def run(self, voted: VotedAnswers) -> tuple[Metrics, Table, Table, Table, Table]:
        metrics = Metrics()
        members, votes, bins, disagreements = Rows(), Rows(), Rows(), Rows()
        for of_set in voted_sets(voted):
            metrics |= member_metrics(of_set) | vote_metrics(of_set)
            members += member_rows(of_set)
            votes += vote_rows(of_set)
            bins += calibration_rows(of_set)
            disagreements += disagreement_rows(of_set, self.shown)
        return (
            metrics,
            Table("Members", MEMBER_COLUMNS, tuple(members)),
            Table("Votes", ("set", "quantity", "value"), tuple(votes)),
            Table("Calibration of the share of votes", BIN_COLUMNS, tuple(bins)),
            Table("Problems with most disagreement", ITEM_COLUMNS, tuple(disagreements)),
        )


def member_rows(of_set: VotedSet) -> Iterator[tuple[str, ...]]:
    """Yield a table row for each member of a set, and one for the ensemble."""
    total_read = total_written = 0
    for at, label in enumerate(of_set.labels):
        votes = of_set.votes_of(at)
        failed = [vote for vote in votes if vote.group is None]
        late = sum(vote.late for vote in failed)
        read, written = of_set.tokens(at)
        total_read, total_written = total_read + read, total_written + written
        missing = f"{len(failed)}, {late} late" if late else str(len(failed))
        counts = str(len(votes)), of_set.mean(at), missing, f"{read:,}", f"{written:,}"
        yield of_set.name, label, *counts
    problems = of_set.problems
    missing = str(sum(not problem.answer.answered for problem in problems))
    tokens = f"{total_read:,}", f"{total_written:,}"
    yield of_set.name, ENSEMBLE, str(len(problems)), of_set.mean(), missing, *tokens


def member_metrics(of_set: VotedSet) -> Metrics:
    """Return score, failures and tokens of each member as metrics."""
    metrics = Metrics()
    for at, label in enumerate(of_set.labels):
        votes = of_set.votes_of(at)
        items, scores = of_set.scores(at)
        if scores and not of_set.is_selected(at):
            means = match_items(items, scores, items, scores).first
            metrics[f"{of_set.name}/{of_set.measure}/{label}"] = float(means.mean())
        failed = [vote for vote in votes if vote.group is None]
        metrics[f"{of_set.name}/failed/{label}"] = float(len(failed))
        metrics[f"{of_set.name}/late/{label}"] = float(sum(vote.late for vote in failed))
        metrics[f"{of_set.name}/tokens/{label}"] = float(sum(of_set.tokens(at)))
    return metrics


def vote_metrics(of_set: VotedSet) -> Metrics:
    """Return what the votes of a set have shown, as metrics."""
    problems, name = of_set.problems, of_set.name
    tokens = [sum(of_set.tokens(at)) for at in range(len(of_set.labels))]
    metrics = Metrics(
        {
            f"{name}/ties": float(sum(problem.outcome.tied for problem in problems)),
            f"{name}/ties_by_order": float(len(of_set.decided("order"))),
            f"{name}/unanswered": float(sum(not problem.answer.answered for problem in problems)),
            f"{name}/no_votes": float(sum(problem.has_no_votes for problem in problems)),
            f"{name}/tokens": float(sum(tokens)),
            f"{name}/tokens_saved": sum(of_set.saved()),
            f"{name}/votes_saved": float(sum(len(problem.skipped) for problem in problems)),
        }
    )
    if not of_set.is_cascade:
        metrics[f"{name}/disagreement"] = of_set.disagreement
    if any_right := of_set.any_right():
        metrics[f"{name}/any_right"] = sum(any_right) / len(any_right)
    if of_set.abstentions and (decided := of_set.decided_scores):
        metrics[f"{name}/coverage"] = coverage_of(of_set).estimate
        metrics[f"{name}/selective_score"] = sum(decided) / len(decided)
    if found := of_set.calibration():
        metrics[f"{name}/calibration_error"] = found.expected_error
        metrics[f"{name}/overconfidence"] = found.overconfidence.estimate
    return metrics


def vote_rows(of_set: VotedSet) -> Iterator[tuple[str, ...]]:
    """Yield table rows on how the votes of a set were decided, and what they cost."""
    problems, name = of_set.problems, of_set.name
    n = len(problems)
    yield name, "decided by the votes", f"{len(of_set.decided('votes', 'function'))} of {n}"
    yield name, "ties, decided by log-probability", f"{len(of_set.decided('logprob'))} of {n}"
    yield name, "ties, decided by the order of members", f"{len(of_set.decided('order'))} of {n}"
    silent = sum(problem.has_no_votes for problem in problems)
    yield name, "votes without an answer that won", f"{of_set.abstentions} of {n}"
    yield name, "no votes", f"{silent} of {n}"
    if any_right := of_set.any_right():
        yield name, "some vote is right", interval(any_right).format()
    if of_set.abstentions:
        yield from _selective_rows(of_set)
    if not of_set.is_cascade:
        yield name, "pairs of votes that differ", f"{of_set.disagreement:.3f}"
    if found := of_set.calibration():
        bins = f"{len(found.bins)} bin" + "s" * (len(found.bins) != 1)
        value = f"{found.expected_error:.3f} (n = {found.n}, {bins})"
        yield name, "expected calibration error", value
        yield name, "share of votes minus accuracy", found.overconfidence.format(sign=True)
    if skipped := sum(len(problem.skipped) for problem in problems):
        read, answers = of_set.saved()
        asked = sum(len(problem.votes) for problem in problems)
        yield name, "votes saved by the cascade", f"{skipped} of {asked + skipped}"
        saved = f"{read:,} read, about {answers:,.0f} of answers"
        yield name, "tokens saved by the cascade", saved


def coverage_of(of_set: VotedSet) -> Interval:
    """Return the share of the problems with votes on which an answer won."""
    decided = [problem for problem in of_set.problems if not problem.has_no_votes]
    return interval([float(problem.answer.answered) for problem in decided])


def _selective_rows(of_set: VotedSet) -> Iterator[tuple[str, ...]]:
    """Yield table rows on the problems with an answer, if the vote abstained on others."""
    yield of_set.name, "coverage: problems with an answer", coverage_of(of_set).format()
    if decided := of_set.decided_scores:
        score = interval(decided, bounds=of_set.bounds).format()
        yield of_set.name, f"{of_set.measure_label} of these (selective)", score


def calibration_rows(of_set: VotedSet) -> Iterator[tuple[str, ...]]:
    """Yield a table row for each bin of the shares of votes."""
    found = of_set.calibration()
    for each in () if found is None else found.bins:
        accuracy = each.accuracy.format()
        yield of_set.name, f"{each.confidence:.3f}", accuracy, str(each.accuracy.n)


def disagreement_rows(of_set: VotedSet, shown: int) -> Iterator[tuple[str, ...]]:
    """Yield a table row for each of the problems whose votes differ most."""
    differing = [problem for problem in of_set.problems if problem.disagreement > 0]
    most = sorted(differing, key=lambda problem: -problem.disagreement)
    for problem in most[:shown]:
        answer = problem.answer
        place = answer.where or str(answer.row)
        share = f"{problem.disagreement:.2f}"
        yield of_set.name, place, share, _answers(problem), _short(answer.expected)


def _answers(problem: VotedProblem) -> str:
    """Return the answers to a problem with their numbers of votes, such as `4 (2), 5 (1)`."""
    counts: dict[int | None, int] = {}
    texts: dict[int | None, str] = {}
    for vote in problem.arrived:
        counts[vote.group] = counts.get(vote.group, 0) + 1
        texts.setdefault(vote.group, vote.text)
    groups = sorted(counts, key=lambda group: -counts[group])
    return ", ".join(f"{_short(texts[group])} ({counts[group]})" for group in groups)


def _short(text: str) -> str:
    """Return the beginning of a text, in one line."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[: SHOWN_CHARACTERS - 3]}..."


class CompareMembers(Stage):
    """Compare the ensemble with each member, on the problems that this member has answered.

    Abstentions of the ensemble count as wrong. Members that a cascade asked only some problems are
    not compared, as these are the hard ones.
    """

    def run(self, voted: VotedAnswers) -> tuple[ComparisonReport, Metrics, Table]:
        pairs: list[ComparedPair] = []
        for of_set in voted_sets(voted):
            pairs += [_compared(of_set, at) for at in range(len(of_set.labels))]
        comparisons = [pair.comparison for pair in pairs if pair.comparison is not None]
        corrected = iter(with_correction(comparisons, CORRECTION) if comparisons else ())
        pairs = [
            replace(pair, comparison=next(corrected)) if pair.comparison else pair for pair in pairs
        ]
        report = ComparisonReport(tuple(pairs), (), CORRECTION, Criteria().alpha)
        rows = tuple(map(_compared_cells, pairs))
        title = f"The ensemble compared with each member, 95 % intervals, p by {CORRECTION}"
        return report, comparison_metrics(report), Table(title, PAIR_COLUMNS, rows)


def _compared(of_set: VotedSet, member: int) -> ComparedPair:
    """Compare the ensemble with a member, over the problems that both have a score on."""
    label = of_set.labels[member]
    one, other = of_set.scores(member), of_set.scores()
    matched = match_items(*one, *other) if one[1] and other[1] else None
    n = 0 if matched is None else len(matched.items)
    every = {problem.item for problem in of_set.problems}
    asked = {
        problem.item
        for problem in of_set.problems
        if any(vote.member == member for vote in problem.votes)
    }
    failed = len(asked - set(one[0])), len(every - set(other[0]))
    items = ComparedItems(n, n, True, 0, len(every - asked), *failed, 0, 0)
    if of_set.is_selected(member):
        problem = f"the cascade asked {label} only problems that members before it left open"
        return ComparedPair(of_set.name, of_set.measure, label, ENSEMBLE, items, None, problem)
    if matched is None or not n:
        problem = f"there is no problem on which both {label} and {ENSEMBLE} have a score"
        return ComparedPair(of_set.name, of_set.measure, label, ENSEMBLE, items, None, problem)
    criteria = Criteria(measure=Measure(of_set.bounds))
    found = compare_paired(matched.first, matched.second, criteria=criteria)
    return ComparedPair(of_set.name, of_set.measure, label, ENSEMBLE, items, found)


def _compared_cells(pair: ComparedPair) -> tuple[str, ...]:
    """Return the row of a table for a comparison."""
    found = pair.comparison
    if found is None:
        return pair.set, pair.first, "0", "", "", "", "", f"not compared: {pair.problem}"
    p_value = f"{format_p(found.p_corrected)} ({found.test.method})"
    means = found.first.format(), found.second.format(), found.difference.format(sign=True)
    verdict = found.verdict if found.verdict == "cannot tell" else f"{ENSEMBLE} is {found.verdict}"
    return pair.set, pair.first, str(found.n), *means, p_value, verdict
