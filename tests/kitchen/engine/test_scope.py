"""Scopes: lookup, replacement, futures, and which scope closes a value."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from kitchen.engine.scope import Scope
from kitchen.ports import Done
from kitchen.progress import NOWHERE


@dataclass(frozen=True)
class Value:
    name: str


class Other(Value):
    """Another type."""


def test_inner_scopes_shadow_outer_ones() -> None:
    outer = Scope({Value: Value("outer")})
    inner = outer.inner({Value: Value("inner")})
    assert (inner[Value].name, outer[Value].name) == ("inner", "outer")
    assert Other not in inner
    with pytest.raises(KeyError):
        inner[Other]


def test_replacement_reaches_the_scope_that_holds_the_value() -> None:
    outer = Scope({Value: Value("old")})
    inner = outer.inner()
    inner.replace(Value, Value("new"))
    assert outer[Value] == Value("new")


def test_location_is_inherited() -> None:
    recipe = NOWHERE.recipe("recipes.mine")
    outer = Scope({}, location=recipe)
    assert outer.inner().location == recipe
    assert str(outer.inner(location=recipe.recipe("Inner")).location) == "recipes.mine > Inner"


def test_only_values_put_by_stages_are_disposed_of() -> None:
    outer = Scope({Value: Value("port")})
    inner = outer.inner()
    first, second = Value("first"), Other("second")
    inner.put(Value, first)
    inner.put(Other, second)
    assert [value.name for value in inner.disposable()] == ["second", "first"]
    assert not list(inner.disposable())
    assert not list(outer.disposable())


def test_values_handed_out_are_disposed_of_outside() -> None:
    outer = Scope({})
    inner = outer.inner()
    inner.put(Value, Value("output"))
    inner.hand_out(Value, outer)
    assert not list(inner.disposable())
    assert [value.name for value in outer.disposable()] == ["output"]


def test_merged_branch_leaves_values_and_futures() -> None:
    outer = Scope({})
    branch = outer.inner()
    future = Done(Value("late"))
    branch.put(Value, future)
    branch.pending.append((future, "Ask"))
    outer.merge(branch)
    assert outer.requested_by(future) == "Ask"
    outer.resolve(future, future.value)
    assert outer[Value] == Value("late")
    assert list(outer.disposable()) == [Value("late")]
