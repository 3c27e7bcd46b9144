"""Schedules: never negative, exact at both ends, and equal to those of transformers."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchen.errors import ConfigError, RunFailed
from stages.train.schedules import SCHEDULES, Constant, Cosine, Linear, make_schedule

OWN = "tests.support.own_functions"


def rates(made, steps):
    return [made(step / steps, 1 / steps) for step in range(steps)]


RUNS = st.tuples(st.integers(1, 3000), st.integers(0, 3000), st.floats(1e-8, 10.0))


@given(st.sampled_from([Linear, Cosine]), RUNS, st.floats(0.0, 1.0))
def test_rates_rise_to_the_peak_and_fall_to_the_floor(kind, run, share):
    steps, warmup, peak = run
    floor = peak * share
    got = rates(kind(peak, warmup, floor), steps)
    warm, rest = got[:warmup], got[warmup:]
    assert all(0 < rate <= peak for rate in warm)
    assert all(floor <= rate <= peak for rate in rest)
    assert warm == sorted(warm)
    # but for rounding
    assert all(later <= earlier * (1 + 1e-15) for earlier, later in pairwise(rest))
    if rest:
        assert rest[0] == peak
        assert kind(peak, warmup, floor)(1.0, 1 / steps) == floor
    if warm and len(warm) == warmup:
        assert warm[-1] == peak


@given(RUNS)
def test_constant_warms_up_linearly_and_stays(run):
    steps, warmup, peak = run
    got = rates(Constant(peak, warmup), steps)
    assert got == pytest.approx(
        [peak * min(1.0, (step + 1) / max(1, warmup)) for step in range(steps)], rel=1e-12
    )
    assert all(rate == peak for rate in got[warmup:])


@pytest.mark.parametrize("name", ["linear", "cosine", "constant"])
@pytest.mark.parametrize(
    "steps, warmup",
    [
        (1, 0),
        (2, 1),
        (7, 0),
        (10, 3),
        (50, 10),
        (113, 5),
        (1000, 100),
        (999, 998),
    ],
)
def test_equals_transformers(name, steps, warmup):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    build = {
        "linear": lambda o: transformers.get_linear_schedule_with_warmup(o, warmup, steps),
        "cosine": lambda o: transformers.get_cosine_schedule_with_warmup(o, warmup, steps),
        "constant": lambda o: transformers.get_constant_schedule_with_warmup(o, warmup),
    }[name]
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=3e-4)
    theirs = []
    scheduler = build(optimiser)
    for _ in range(steps):
        theirs.append(scheduler.get_last_lr()[0])
        optimiser.step()
        scheduler.step()
    ours = rates(make_schedule(name, 3e-4, warmup), steps)
    assert ours[warmup:] == pytest.approx(theirs[warmup:], rel=1e-9, abs=1e-15)
    # theirs begins warm-up at 0, a step that trains nothing; ours is one stride further on
    assert ours[: max(0, warmup - 1)] == pytest.approx(theirs[1:warmup], rel=1e-9)


def test_peak_is_exact_despite_rounding():
    assert 0.29 + (0.85 - 0.29) != 0.85
    for kind in (Linear, Cosine):
        made = kind(0.85, floor=0.29)
        assert (made(0.0, 0.1), made(1.0, 0.1)) == (0.85, 0.29)


def test_step_is_recovered_despite_rounding():
    epochs, batches, made = 3, 7, Linear(1.0)
    for epoch in range(epochs):
        for batch in range(batches):
            done = epoch / epochs + (batch / batches) / epochs
            assert made(done, 1 / epochs / batches) == pytest.approx(
                1 - (epoch * batches + batch) / 21, abs=1e-15
            )


def test_a_schedule_by_name_has_a_stable_repr():
    assert (
        repr(make_schedule("cosine", 1e-3, 10)) == "Cosine(peak=0.001, warmup_steps=10, floor=0.0)"
    )
    assert {type(make_schedule(name, 1.0)) for name in SCHEDULES} == {Constant, Linear, Cosine}


@pytest.mark.parametrize(
    "make, expected",
    [
        (
            lambda: make_schedule("cosin", 1e-3),
            "schedule='cosin' is unknown; did you mean 'cosine'? (or a MODULE:function)",
        ),
        (lambda: make_schedule(f"{OWN}:fals", 1e-3), "no function 'fals'; did you mean 'falls'?"),
        (lambda: make_schedule(f"{OWN}:one_parameter", 1e-3), "is called as f(step, steps)"),
        (lambda: make_schedule(f"{OWN}:asynchronous", 1e-3), "define it without `async`"),
        (lambda: make_schedule(f"{OWN}:falls", -1.0), "learning rate -1.0 must be above 0"),
        (lambda: Constant(0.0), "learning rate 0.0 must be above 0"),
        (lambda: Linear(math.nan), "learning rate nan must be above 0"),
        (lambda: Cosine(-1.0), "learning rate -1.0 must be above 0"),
        (lambda: Linear(1.0, warmup_steps=-1), "warmup_steps=-1"),
        (lambda: Cosine(1.0, floor=2.0), "floor=2.0"),
        (lambda: Linear(1.0, floor=-0.1), "floor=-0.1"),
    ],
)
def test_invalid_numbers_are_refused(make, expected):
    with pytest.raises(ConfigError) as caught:
        make()
    assert expected in str(caught.value)


def test_function_is_a_factor_of_the_rate_after_warm_up():
    own = make_schedule(f"{OWN}:falls", 2.0, 2)
    assert rates(own, 4) == [2.0 * 1.0 / 2, 2.0 * 0.75, 2.0 * 0.5, 2.0 * 0.25]
    assert repr(own) == f"FunctionSchedule(function='{OWN}:falls', peak=2.0, warmup_steps=2)"


@pytest.mark.parametrize(
    ("function", "text"),
    [
        ("rises_too_far", r":rises_too_far returned inf for step 2 of 4; it must return a factor"),
        ("fails_at_2", r":fails_at_2: IndexError: .*own_functions.py:\d+ in fails_at_2"),
    ],
)
def test_wrong_factor_ends_the_run(function, text):
    with pytest.raises(RunFailed, match=f"^schedule={OWN}{text}"):
        rates(make_schedule(f"{OWN}:{function}", 1.0), 4)
