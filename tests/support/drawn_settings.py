"""Settings drawn at random from the types of a recipe, and what is wrong when it runs with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from tempfile import gettempdir
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

import kitchen
from adapters.fake.datasets import FakeDatasets
from kitchen import Kitchen, Recipe
from kitchen.config.discovery import build_workflow
from kitchen.config.settings import leaf_keys, nested_settings, resolve_settings
from kitchen.config.sources import from_mapping
from kitchen.engine.preview import preview
from kitchen.errors import KitchenError, QualityError
from kitchen.ports import BlobStore, Row, TrainingClient
from tests.support.killed_runs import DATA, MODELS

Drawn = Mapping[str, Any]  # dotted settings
JSON = {"prompt": "two", "completion": '{"a": 2}'}
CHOICE = {"prompt": "two", "completion": "b", "choices": ["a", "b"]}
ROWS: Mapping[str, Mapping[str, Sequence[Row]]] = {
    **DATA,
    "objects": {"train": [JSON] * 9},
    "choices": {"train": [CHOICE] * 9},
    "sums": {"train": [{"prompt": "1 + 1", "completion": "2"}] * 9},
}
PATTERNS = ("[A-D]", "(", "(b)|c", r"\d+")
REWARDS = ("exact", "math", "field_f1", "letters", "no such reward", "json:loads", "missing.py:f")
SPLITS = ("train", "held", "nothing")
WEIGHTS = (*MODELS, "path:nowhere", "run:nothing@best", "not a name")
DATASETS = (*ROWS, "game:guess", "game:calculator", "reasoning-gym:leg_counting", "nothing")
TEXTS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("model", "reference", "teacher", "teachers", "weights", "members"), WEIGHTS),
    **dict.fromkeys(("dataset", "preferences", "mixture"), DATASETS),
    **dict.fromkeys(("train", "test", "splits", "weigh_on"), SPLITS),
    "reward": REWARDS,
    "vote": ("majority", "weighted", "confidence", "unanimous", "no such vote", "missing.py:f"),
    "extract": PATTERNS,
    "template": ("missing.jinja",),
}
# files and folders that a run writes, never in the current folder
WRITTEN = {
    "checkpoint_dir": (f"{gettempdir()}/kitchen-drawn/adapter", "", "\0"),
    "predictions": (f"{gettempdir()}/kitchen-drawn/answers.jsonl", gettempdir(), " "),
}
ANY_TEXTS = ("", " ", "a", "é\n", "None", "{{", "0")
NUMBERS = (0, 1, 2, 3, 5, -1)
LARGE_NUMBERS = (100, 2**31, 2**63, 10**25)
FRACTIONS = (0.5, 100.0, 1e-3, 1e-30, 1e9, 1e300)
# of these, a large value is a long run rather than a wrong one
WORK = ("max_steps", "epochs", "max_tokens", "max_turns", "pairs")
# failures that depend on what a model answers, or on the learning rate
ONLY_KNOWN_IN_A_RUN = (
    "the weights diverged",
    "its gradient is not a finite number; no step was taken. Lower the learning rate",
    "of the teacher were truncated or empty",
    "have no rejected answer (sample more answers",
)
NONSENSE = st.sampled_from(["", "nonsense", -1, 1.5, True, None, [], {}, [None], {"": 1}])


def drawn_settings(cls: type[Recipe], base: Drawn) -> st.SearchStrategy[Drawn]:
    """Draw one to six settings of a recipe, added to those of `base`."""
    values = {".".join(keys): _values(keys[-1], _type_of(cls, keys)) for keys in leaf_keys(cls)}
    names = st.lists(st.sampled_from(sorted(values)), min_size=1, max_size=6, unique=True)
    drawn = names.flatmap(lambda some: st.fixed_dictionaries({name: values[name] for name in some}))
    return drawn.map(lambda settings: {**base, **settings})


def fault_of(cls: type[Recipe], settings: Drawn, training: TrainingClient, blobs: BlobStore) -> str:
    """Run a recipe; return why that must not happen, or "".

    Settings are refused by our own errors before the run, or the run completes. If the data does
    not fit the settings, a preview must say so.
    """
    data = FakeDatasets(ROWS)
    try:
        run = kitchen.submit(
            cls, settings=settings, training=training, datasets=data, blobs=blobs, name="drawn"
        )
    except KitchenError:
        return ""
    try:
        run.finish()
    except QualityError:  # evaluation.at_least
        return ""
    except KitchenError as failure:
        if any(text in str(failure) for text in ONLY_KNOWN_IN_A_RUN):
            return ""
        resolved = resolve_settings(cls, list(from_mapping(settings, "settings")))
        assert resolved.recipe is not None
        ports = Kitchen(training, data, None, blobs).ports()
        try:
            list(preview(build_workflow(resolved.recipe), ports))
        except KitchenError as error:
            return "" if type(error) is type(failure) else f"preview: {error}; run: {failure}"
        return f"{type(failure).__name__}: {failure}"
    return ""


def _type_of(cls: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        cls = nested_settings(cls)[key]
    return cls


def _values(name: str, kind: Any) -> st.SearchStrategy[Any]:
    """Return values of a type, most of them within its bounds; seldom of another type."""
    typed = _typed(name, kind)
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    valid = typed.filter(lambda value: _is_valid(adapter, value))
    others = {0: NONSENSE, 1: typed, 2: typed}
    return st.integers(0, 49).flatmap(lambda number: others.get(number, valid))


def _is_valid(adapter: TypeAdapter[Any], value: Any) -> bool:
    try:
        adapter.validate_python(value)
    except (ValidationError, KitchenError):
        return False
    return True


def _typed(name: str, kind: Any) -> st.SearchStrategy[Any]:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _typed(name, inner[0])
    if origin in (Union, UnionType):
        return st.one_of([_typed(name, member) for member in inner])
    if origin is Literal:
        return st.sampled_from(inner)
    if origin is tuple:
        return st.lists(_typed(name, inner[0]), max_size=2)
    if origin is not None:  # a mapping
        return st.dictionaries(_texts(name), _typed(name, inner[1]), max_size=2)
    return _scalars(name, kind)


def _scalars(name: str, kind: Any) -> st.SearchStrategy[Any]:
    if kind is NoneType:
        return st.none()
    if kind is bool:
        return st.booleans()
    if kind in (str, Any):
        return _texts(name)
    if kind is not int:
        return st.sampled_from((*NUMBERS, *FRACTIONS))
    return st.sampled_from(NUMBERS if name in WORK else (*NUMBERS, *LARGE_NUMBERS))


def _texts(name: str) -> st.SearchStrategy[str]:
    if name in WRITTEN:
        return st.sampled_from(WRITTEN[name])
    known = TEXTS.get(name, ())
    return st.sampled_from((*known, *known, *ANY_TEXTS))
