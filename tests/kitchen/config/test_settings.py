"""Settings: YAML 1.2, precedence of sources, and errors with their source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, PositiveInt
from ruamel.yaml import YAML

from kitchen.config.describe import describe_settings, type_text
from kitchen.config.settings import ResolvedSettings, resolve_settings
from kitchen.config.sources import from_arguments, from_file, from_mapping
from kitchen.config.yaml import read_yaml, yaml_value
from kitchen.errors import ConfigError
from kitchen.recipe import Recipe
from kitchen.stage import Stage
from kitchen.workflow import Step, sequence


@dataclass(frozen=True)
class Oven:
    """The oven that bakes the cake."""

    heat: float = 180.0  # degrees Celsius
    fan: bool = False

    def __post_init__(self) -> None:
        if self.heat > 300:
            raise ConfigError(f"heat={self.heat} must be at most 300")


class Bake(Stage):
    """Bake it."""

    minutes: int

    def run(self) -> None: ...


class Cake(Recipe):
    """A cake."""

    minutes: PositiveInt = 40  # minutes in the oven
    oven: Oven = Oven(heat=200.0)
    size: Literal["small", "large"] = "small"
    name: str = "sponge"
    layers: int | None = None
    """The number of layers, if any."""

    def workflow(self) -> Step:
        return sequence(Bake(self.minutes))


def settled(*arguments: str) -> ResolvedSettings:
    return resolve_settings(Cake, from_arguments(arguments))


def cake(*arguments: str) -> Cake:
    found = settled(*arguments)
    assert isinstance(found.recipe, Cake), found.problems
    return found.recipe


def problems(*arguments: str) -> list[str]:
    return list(map(str, settled(*arguments).problems))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("true", True),
        ("null", None),
        ("~", None),
        ("", None),
        ("0777", 777),
        ("0o17", 15),
        ("2026-01-02", "2026-01-02"),
        ("12:30:45", "12:30:45"),
        ("'3'", "3"),
        ("[a, 1]", ["a", 1]),
    ],
)
def test_yaml_is_version_1_2(text: str, value: object) -> None:
    [found] = read_yaml(text, "here", ("key",))
    assert found.value == value
    assert type(found.value) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        "no",
        "true",
        "3",
        "",
        " ",
        "a: b",
        "a\nb",
        "½",
        1e-3,
        None,
        True,
        [1, "x"],
        float("inf"),
    ],
)
def test_value_is_shown_as_it_would_be_typed(value: object) -> None:
    [found] = read_yaml(yaml_value(value), "here", ("key",))
    assert found.value == value
    assert type(found.value) is type(value)


def test_nested_settings_keep_the_recipe_s_other_defaults() -> None:
    assert cake("oven.fan=true").oven == Oven(heat=200.0, fan=True)
    assert cake("oven={fan: true}", "oven.heat=150").oven == Oven(heat=150.0, fan=True)
    assert (
        cake("oven={fan: true}").oven
        == Cake.model_validate({"oven": {"fan": True}}).oven
        == Oven(200.0, fan=True)
    )


def test_command_line_overrides_file_overrides_default(tmp_path: Path) -> None:
    file = tmp_path / "cake.yaml"
    file.write_text("minutes: 10\noven:\n  heat: 90\n  fan: true\nsize: large\n")
    found = resolve_settings(
        Cake, [*from_file(file), *from_arguments(["oven.heat=100", "minutes=11"])]
    )
    assert found.recipe == Cake(minutes=11, oven=Oven(100.0, True), size="large")
    assert found.sources == {
        "minutes": "command line",
        "oven.heat": "command line",
        "oven.fan": f"{file}:4",
        "size": f"{file}:5",
        "name": "default",
        "layers": "default",
    }


def test_file_may_have_dotted_keys_and_merges_or_be_empty(tmp_path: Path) -> None:
    file = tmp_path / "cake.yaml"
    file.write_text("# nothing\n")
    assert from_file(file) == []
    file.write_text("oven.heat: 120\n")
    assert resolve_settings(Cake, from_file(file)).recipe == Cake(oven=Oven(120.0))
    file.write_text("oven: &warm\n  <<: {fan: true}\n  heat: 60\n")
    assert resolve_settings(Cake, from_file(file)).recipe == Cake(oven=Oven(60.0, True))


class Soup(Recipe):
    """A soup."""

    oven: Oven = Oven()
    names: Mapping[str, str] = {}

    def workflow(self) -> Step:
        return sequence(Bake(1))


def test_keys_of_a_mapping_may_contain_dots(tmp_path: Path) -> None:
    file = tmp_path / "soup.yaml"
    for text in ("names:\n  a.b: c\noven.heat: 9\n", "names.a.b: c\noven:\n  heat: 9\n"):
        file.write_text(text)
        given: Mapping[str, Any] = YAML(typ="safe").load(text)
        typed = ["names={a.b: c}" if "names.a.b" not in text else "names.a.b=c", "oven.heat=9"]
        for settings in (from_file(file), from_mapping(given, "here"), from_arguments(typed)):
            assert resolve_settings(Soup, list(settings)).recipe == Soup(
                names={"a.b": "c"}, oven=Oven(9.0)
            )


def test_all_mistakes_are_reported_at_once() -> None:
    assert problems("minute=3", "minutes=0", "oven.haet=1", "size=medium", "name=3", "heat=2") == [
        "command line: " + Cake.title() + " has no setting 'minute'; did you mean 'minutes'?",
        "command line: " + Cake.title() + " has no setting 'oven.haet'; did you mean 'heat'?",
        "command line: " + Cake.title() + " has no setting 'heat'; did you mean 'oven.heat'?",
        "command line: minutes=0: input should be greater than 0",
        "command line: size=medium is unknown; there are: large, small",
        "command line: name=3: input should be a valid string",
    ]


def test_unknown_choice_gets_a_suggestion() -> None:
    assert problems("size=larg") == ["command line: size=larg is unknown; did you mean 'large'?"]


def test_error_of_a_nested_setting_does_not_hide_others() -> None:
    assert problems("oven.heat=400", "minutes=0") == [
        "command line: oven: heat=400.0 must be at most 300",
        "command line: minutes=0: input should be greater than 0",
    ]


def test_errors_in_a_file_name_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "cake.yaml"
    file.write_text("minutes: 5\noven:\n  heat: hot\n  haet: 3\nnaem: x\n")
    assert [
        str(problem).removeprefix(str(file))
        for problem in resolve_settings(Cake, from_file(file)).problems
    ] == [
        f":4: {Cake.title()} has no setting 'oven.haet'; did you mean 'heat'?",
        f":5: {Cake.title()} has no setting 'naem'; did you mean 'name'?",
        ":3: oven.heat=hot: input should be a valid number, unable to parse string as a number",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"minutes: 5\nminutes: 6\n", ":2: not YAML: found duplicate key"),
        (b"minutes: [\n", ":2: not YAML"),
        (b"- minutes\n", ":1: settings are lines"),
        (
            b"name: !!python/object:os.system {}\n",
            ":1: not YAML: could not determine a constructor",
        ),
        (b"name: \xff\n", ": byte 6 is not UTF-8"),
    ],
)
def test_unreadable_file_is_named_with_its_line(
    tmp_path: Path, content: bytes, message: str
) -> None:
    file = tmp_path / "cake.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        from_file(file)
    assert str(error.value).startswith(f"{file}{message}")


def test_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: No such file"):
        from_file(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("minutes", "write it as key=value"),
        ("=3", "key=value"),
        ("name=[x", "quote what YAML"),
    ],
)
def test_argument_that_is_not_a_setting_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_arguments([text])


@pytest.mark.parametrize(
    "text",
    [
        "@x",
        "Answer: yes",
        "a # b",
        "# a",
        "3 # b",
        "first\nsecond",
        "- a\n- b",
        "a: b\nc: d",
        "*x",
        "!x",
        "%x",
        "2026-01-02",
        "no",
        " spaced ",
        "Answer with JSON:",
        "Rating: 5",
        "Be brief: true",
        "? x",
        "&a 3",
        "---\n3",
        "\n",
    ],
)
def test_text_on_the_command_line_is_taken_literally(text: str) -> None:
    [found] = from_arguments([f"name={text}"])
    assert (found.keys, found.value) == (("name",), text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("null", None),
        ("true", True),
        ("3", 3),
        ("1e-3", 1e-3),
        ("'3'", "3"),
        ('"a: b"', "a: b"),
        ("[a, 1]", ["a", 1]),
        (" [a]", ["a"]),
        ("{}", {}),
    ],
)
def test_other_values_on_the_command_line_are_yaml(text: str, value: object) -> None:
    [found] = from_arguments([f"name={text}"])
    assert found.value == value
    assert type(found.value) is type(value)


class Tart(Recipe):
    """Numbers at every depth."""

    layers: int | None = None
    sugar: float = 1.0  # g
    oven: Oven = Oven()
    sizes: tuple[int, ...] = ()
    each: dict[str, float] = Field(default={})
    share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    either: int | bool = 0

    def workflow(self) -> Step:
        return sequence()


@pytest.mark.parametrize(
    "text",
    [
        "layers=true",
        "layers=false",
        "sugar=true",
        "oven.heat=true",
        "sizes=[1, true]",
        "each.a=false",
        "each={a: true}",
    ],
)
def test_boolean_is_not_a_number(text: str) -> None:
    assert [
        str(problem).split(": ")[-1]
        for problem in resolve_settings(Tart, from_arguments([text])).problems
    ] == ["input should be a number, not true or false"]


def test_boolean_is_reported_unless_overridden() -> None:
    found = resolve_settings(Tart, from_arguments(["layers=true", "sugar=much"]))
    assert [str(problem).split(":")[1] for problem in found.problems] == [
        " sugar=much",
        " layers=true",
    ]
    assert resolve_settings(Tart, from_arguments(["layers=true", "layers=3"])).recipe == Tart(
        layers=3
    )


def test_integers_and_whole_floats_are_interchangeable() -> None:
    made = resolve_settings(
        Tart, from_arguments(["sugar=1", "layers=16.0", "either=true", "oven.fan=true"])
    ).recipe
    assert made == Tart(sugar=1.0, layers=16, either=True, oven=Oven(fan=True))
    assert resolve_settings(Tart, from_arguments(["layers=16.5"])).problems


@pytest.mark.parametrize(
    "text",
    [
        "sugar=.inf",
        "sugar=-.inf",
        "sugar=.nan",
        "each.a=.nan",
        "oven.heat=.inf",
        "oven.heat=-.inf",
        "sugar=inf",
        "each.a=-Infinity",
    ],
)
def test_numbers_must_be_finite(text: str) -> None:
    assert [
        str(problem) for problem in resolve_settings(Tart, from_arguments([text])).problems
    ] == [f"command line: {text}: input should be a finite number"]


@pytest.mark.parametrize("text", ["sugar=1e300", "each.a=-1e39", "oven.heat=3.5e+38"])
def test_numbers_must_be_finite_in_float32(text: str) -> None:
    [problem] = resolve_settings(Tart, from_arguments([text])).problems
    assert "input should be a number of at most 3.40282e+38" in str(problem)


@pytest.mark.parametrize("text", ["each=3", "each=a", "each=[1]", "oven=hot"])
def test_setting_with_nested_settings_takes_no_value(text: str) -> None:
    name = text.partition("=")[0]
    assert [
        str(problem) for problem in resolve_settings(Tart, from_arguments([text])).problems
    ] == [f"command line: {text}: {name} holds settings and has no value itself: {name}.NAME=VALUE"]


def test_bounds_of_a_field_are_described() -> None:
    assert {setting.name: setting.type for setting in describe_settings(Tart)}[
        "share"
    ] == "number > 0 and < 1"


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (tuple[str, ...], "list of text"),
        (list[int] | None, "list of whole numbers or null"),
        (Mapping[str, float], "mapping of text to number"),
        (tuple[int, str], "tuple[int, str]"),
    ],
)
def test_collections_are_described_in_words(annotation: Any, text: str) -> None:
    assert type_text(annotation) == text


def test_setting_without_default_is_required() -> None:
    class Pie(Cake):
        fruit: str

    assert [str(problem) for problem in resolve_settings(Pie, ()).problems] == [
        "fruit has no default: give it as fruit=VALUE"
    ]
    assert resolve_settings(Pie, from_arguments(["fruit=plum"])).problems == ()


def test_settings_are_described_by_their_comments() -> None:
    assert [
        (setting.name, setting.type, setting.default, setting.about)
        for setting in describe_settings(Cake)
    ] == [
        ("minutes", "whole number > 0", "40", "minutes in the oven"),
        ("oven.heat", "number", "200.0", "degrees Celsius"),
        ("oven.fan", "true or false", "false", ""),
        ("size", "small or large", "small", ""),
        ("name", "text", "sponge", ""),
        ("layers", "whole number or null", "null", "The number of layers, if any."),
    ]


# fmt: off
class Mousse(Recipe):
    """A mousse, with comments of several lines."""

    eggs: int = 4  # number of eggs, of which
                   # only the whites are beaten
    sugar: int = 80  # grams
    # hours in the fridge
    hours: int = 3

    def workflow(self) -> Step:
        return sequence(Bake(1))
# fmt: on


def test_comment_continues_on_lines_further_right() -> None:
    assert {setting.name: setting.about for setting in describe_settings(Mousse)} == {
        "eggs": "number of eggs, of which only the whites are beaten",
        "sugar": "grams",
        "hours": "hours in the fridge",
    }


@dataclass(frozen=True)
class Gas:
    flame: int = 3


@dataclass(frozen=True)
class Current:
    watts: int = 900
    grill: bool = False


@dataclass(frozen=True)
class Stove:
    left: Current = Current()
    right: Current = Current()


class Range(Recipe):
    stove: Stove = Stove(left=Current(100, grill=True))

    def workflow(self) -> Step:
        return sequence()


def test_nested_mapping_keeps_other_defaults() -> None:
    changed = Range.model_validate({"stove": {"left": {"watts": 5}}})
    assert changed.stove == Stove(left=Current(5, grill=True))


class Cooker(Recipe):
    bars: int = 2
    heat: Gas | Current = Gas()
    other: Gas = Field(default_factory=lambda data: Gas(data["bars"]))

    def workflow(self) -> Step:
        return sequence()


def test_mapping_may_be_of_another_type_than_the_default() -> None:
    assert Cooker(bars=5).other == Gas(5)
    assert Cooker.model_validate({"heat": {"watts": 5}}).heat == Current(5)
    assert Cooker.model_validate({"other": {"flame": 1}}).other == Gas(1)
