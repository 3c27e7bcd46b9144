"""Dataflow checks of a plan: unread outputs, unused gradients, unsaved training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kitchen.engine.type_names import short_name, suggest_writers
from kitchen.ports.checkpointable import is_checkpointable
from kitchen.stage import Contract, Stage
from kitchen.types import Result


@dataclass
class _Output:
    """One value that a stage writes."""

    kind: Any
    stage: str
    read: bool = False
    followed_up: bool = False  # a stage has read it and written its `must_be_followed_by` type
    unreachable: bool = False  # its scope has ended


@dataclass
class Dataflow:
    """Tracks which outputs are read, which gradients are applied and which training is saved."""

    _outputs: list[_Output] = field(default_factory=list)
    # checkpointable types trained and not read since -> the stage that trained them
    _trained: dict[Any, str] = field(default_factory=dict)
    _conditional_depth: int = 0

    @contextmanager
    def conditional(self) -> Iterator[None]:
        """Mark a body that may not run: its reads do not count as saving what was trained."""
        self._conditional_depth += 1
        yield
        self._conditional_depth -= 1

    @contextmanager
    def scope(self, outputs: tuple[Any, ...] = ()) -> Iterator[None]:
        """Mark a loop body or a phase: only its `outputs` can be read afterwards."""
        start = len(self._outputs)
        yield
        for output in self._outputs[start:]:
            output.unreachable |= output.kind not in outputs

    def item(self, source: Stage) -> None:
        """Record the item that a loop provides to its body."""
        self._outputs.append(_Output(source.contract().yields, str(source)))

    def visit(self, stage: Stage) -> None:
        """Record what a stage reads, writes and trains."""
        contract = stage.contract()
        unmatched = {read.kind for read in contract.reads}
        for output in reversed(self._outputs):
            if output.kind in unmatched and not output.unreachable:
                output.read = True
                output.followed_up |= _follows_up(contract, output.kind)
                unmatched.discard(output.kind)
        self._outputs += [
            _Output(kind, str(stage)) for kind in contract.writes if not contract.rewrites(kind)
        ]
        self._visit_trained(stage, contract)

    def _visit_trained(self, stage: Stage, contract: Contract) -> None:
        kinds = {read.kind for read in contract.reads}
        trains = any(_follows_up(contract, kind) for kind in kinds)
        adds_gradient = any(hasattr(kind, "must_be_followed_by") for kind in contract.writes)
        for kind in filter(is_checkpointable, kinds):
            if trains:
                self._trained[kind] = str(stage)
            elif not self._conditional_depth and not adds_gradient:
                self._trained.pop(kind, None)

    def problems(self, outputs: tuple[Any, ...]) -> list[str]:
        """Return one text per mistake; `outputs` are the types that the recipe is to return."""
        texts = [self._problem(output, outputs) for output in self._outputs]
        texts += [
            f"{stage} trains {short_name(kind)}, and no later stage reads it: "
            "the training would be lost"
            for kind, stage in self._trained.items()
        ]
        return [text for text in texts if text]

    def _problem(self, output: _Output, outputs: tuple[Any, ...]) -> str:
        kind = output.kind
        name = short_name(kind)
        if hasattr(kind, "must_be_followed_by") and not output.followed_up:
            wanted = kind.must_be_followed_by
            return (
                f"{output.stage} writes {name}, and no later stage applies it: a stage is missing "
                f"that reads it and writes {short_name(wanted)}{suggest_writers(wanted)}"
            )
        is_result = isinstance(kind, type) and issubclass(kind, Result)
        if not output.read and not is_result and kind not in outputs:
            return f"{output.stage} writes {name}, which no later stage reads"
        return ""


def _follows_up(contract: Contract, read: Any) -> bool:
    """Return whether a stage writes the type that must follow `read`, as a step follows a loss."""
    by = getattr(read, "must_be_followed_by", None)
    return by is not None and any(
        isinstance(kind, type) and issubclass(kind, by) for kind in contract.writes
    )
