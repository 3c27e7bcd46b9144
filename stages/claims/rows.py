"""Rows of claim extraction: a prompt with a hypothesis and documents, and the right answer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kitchen.errors import DataError
from stages.chat.conversations import Conversation
from stages.chat.messages import Message
from stages.claims.answer import ClaimAnswer, parse_answer
from stages.claims.scifact import Document, ScifactClaim

INSTRUCTION = "State the hypothesis, and the evidence for and against it."
WITHOUT_HYPOTHESIS = "State the main claim, and the evidence for and against it."
_DOCUMENT = re.compile(r"^Document (?P<id>[^\s:()]+)(?::[^\n]*)?$", re.M)


@dataclass(frozen=True)
class ClaimRow:
    """One prompt with its right answer; `answer` is None where the data does not say."""

    prompt: str
    documents: Mapping[str, str]  # document id -> text, of all documents in the prompt
    answer: ClaimAnswer | None
    id: str  # of the claim
    where: str  # its place in the data

    def conversation(self) -> Conversation:
        """Return the row as a prompt and its answer; raises DataError without an answer."""
        if self.answer is None:
            raise DataError(f"{self.where}: claim {self.id} has no evidence to learn from")
        messages = (Message("user", self.prompt), Message("assistant", self.answer.text()))
        return Conversation(messages, self.where, single_turn=True, prompt_length=1)

    @property
    def content(self) -> str:
        """The prompt and the right answer as text, the same wherever the data is stored."""
        return "\n".join([self.prompt, self.answer.text() if self.answer is not None else ""])

    def question(self) -> Conversation:
        """Return the row as a prompt and its answer, which is empty where the data has none."""
        return replace(self, answer=self.answer or ClaimAnswer()).conversation()


def scifact_row(
    claim: ScifactClaim, corpus: Mapping[str, Document], *, hypothesis: bool = True
) -> ClaimRow:
    """Build the row of a SciFact claim; without `hypothesis`, the prompt has only documents."""
    documents = {id: " ".join(map(str.strip, corpus[id].sentences)) for id in claim.cited}
    answer = claim.answer(corpus) if claim.evidence is not None else None
    parts = [INSTRUCTION if hypothesis else WITHOUT_HYPOTHESIS]
    if hypothesis:
        parts.append(f"Hypothesis: {claim.text}")
    for id, text in documents.items():
        title = f" {corpus[id].title}" if corpus[id].title else ""
        parts.append(f"Document {id}:{title}\n{text}")
    return ClaimRow("\n".join(parts), documents, answer, claim.id, claim.where)


def row_of_texts(prompt: str, completion: str, id: str, where: str) -> ClaimRow:
    """Build the row of a prompt and a completion whose documents are headed by `Document ID`.

    A prompt without such a line has no documents. Raises DataError for two documents with one id,
    and for a completion that does not follow the schema.
    """
    answer = parse_answer(completion)
    if answer.problems:
        raise DataError(f"{where}: completion: {'; '.join(answer.problems)}")
    heads = list(_DOCUMENT.finditer(prompt))
    ids = [head["id"] for head in heads]
    twice = [id for id, times in Counter(ids).items() if times > 1]
    if twice:
        raise DataError(
            f"{where}: prompt: two documents have the id {twice[0]}; give each its own id"
        )
    ends = [*(head.start() for head in heads), len(prompt)][1:]
    documents = {
        head["id"]: prompt[head.end() : end].strip() for head, end in zip(heads, ends, strict=True)
    }
    return ClaimRow(prompt, documents, answer, id, where)
