"""The setting `reward`: one reward by name, or several with weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator

from kitchen.errors import ConfigError

_FORMS = (
    "name one reward, as in reward=math, a list of them in brackets, or weights by name, as in "
    "reward.math=1 reward.exact=0.5"
)


def _checked(value: Any) -> Any:
    """Return a value of the setting; raises ConfigError for one that names no rewards."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        names = list(value)
        repeated = next((name for at, name in enumerate(names) if name in names[:at]), None)
        if repeated is not None:
            raise ConfigError(f"{repeated!r} is in the list twice: give it a weight instead")
    elif isinstance(value, Mapping):
        names = list(value)
        _check_weights(value)
    else:
        raise ConfigError(f"{value!r} names no reward: {_FORMS}")
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong or not names:
        raise ConfigError(f"{wrong[0] if wrong else value!r} names no reward: {_FORMS}")
    return value


def _check_weights(weights: Mapping[Any, Any]) -> None:
    """Raise ConfigError for a weight that is no number, and if all are 0."""
    for name, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise ConfigError(f"the weight of {name!r} is {weight!r}, and must be a number")
    if weights and not any(weights.values()):
        raise ConfigError("all weights are 0, so that every answer would have the reward 0")


# a name, names that count equally, or weights by name
RewardSetting = Annotated[
    str | tuple[str, ...] | Mapping[str, float] | None, BeforeValidator(_checked)
]


def reward_weights(setting: RewardSetting) -> Mapping[str, float]:
    """Return the weight of each reward by name; none for null, which the data decides."""
    if setting is None:
        return {}
    if isinstance(setting, Mapping):
        return dict(setting)
    return dict.fromkeys((setting,) if isinstance(setting, str) else setting, 1.0)
