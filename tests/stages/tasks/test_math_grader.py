"""The mathematics grader: where numbers are found, what is equal, and what is no answer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kitchen.errors import DataError
from stages.tasks.math_grader import math_reward

# all of these are right answers to themselves, and none may be passed over
GOLDS = (
    "B",
    "\\pi",
    "5",
    "-3",
    "1,000",
    "1000000",
    "0.5",
    "1/2",
    "\\frac12",
    "\\frac{1}{2}",
    "-\\frac{3}{4}",
    "\\dfrac{7}{9}",
    "2\\sqrt{3}",
    "\\sqrt{2}",
    "\\sqrt 2",
    "x",
    "x^2+1",
    "2x+3",
    "x = 5",
    "y=2x+1",
    "(3, 4)",
    "(3,4)",
    "[0, 1]",
    "[0,1)",
    "(-\\infty, 3)",
    "(-\\infty,-1)\\cup(1,\\infty)",
    "\\{1, 2, 3\\}",
    "1, 2, 3",
    "50%",
    "50\\%",
    "25\\%",
    "$5",
    "\\$5",
    "$12.50",
    "90^\\circ",
    "45°",
    "3\\text{ cm}",
    "12\\text{ inches}",
    "\\text{Evelyn}",
    "\\text{(C)}",
    "(C)",
    "\\text{east}",
    "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}",
    "\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}",
    "e",
    "i",
    "3+4i",
    "3 + 4i",
    "e^{i\\pi}",
    "\\ln 2",
    "\\log_2 3",
    "\\sin x",
    "10^{-7}",
    "1e-7",
    "1.5e10",
    "6.02 \\times 10^{23}",
    "2^{10}",
    "5!",
    "\\binom{5}{2}",
    "x \\le 3",
    "x > 2",
    "-1 < x < 3",
    "x \\in [1, 2]",
    "\\infty",
    "-\\infty",
    "a",
    "2ab",
    "n(n+1)/2",
    "\\frac{a+b}{c}",
    "f(x) = x^2",
    "\\emptyset",
    "0",
    "007",
    "-15",
    "−15",
    "+15",
    "π",
    "√2",
    "½",
    "x²",
    "1:2",
    "3:4",
    "12:30",
    "1 000",
    "10{,}000",
    "10,\\!000",
    "2 + 3",
    "7 apples",
    "It costs $5",
    "$x^2$",
    "$\\frac{1}{2}$",
    "\\boxed{7}",
    "$\\boxed{\\frac{1}{2}}$",
    "\\(x+1\\)",
    "\\[x+1\\]",
    "Two and two. #### 4",
    "The answer is 12.",
    "1_{2}",
    "10110_2",
    "4210_{5}",
    "\\triangle ABC",
    "\\overline{AB}",
    "A, B",
    "\\text{no solution}",
    "3 \\frac{1}{2}",
    "3\\frac{1}{2}",
    "\\frac{\\pi}{4}",
    "\\pi r^2",
    "2\\pi",
    "4\\pi",
    "0.333333",
    "0.\\overline{3}",
    "0.\\overline{12}",
    "1.2\\overline{3}",
    "|x|",
    "\\lfloor x \\rfloor",
    "\\pm 3",
    "x = \\pm 2",
    "1 \\pm \\sqrt{2}",
    "x=1, y=2",
    "x=1 \\text{ or } x=2",
    "1 \\text{ and } 2",
    "\\mathbb{R}",
    "\\mathbb{Z}",
    "\\alpha",
    "\\theta",
    "\\vec{v}",
    "\\hat{i}",
    "f'(x)",
    "x_1",
    "a_n",
    "\\int_0^1 x dx",
    "\\sum_{n=1}^{10} n",
    "\\lim_{x \\to 0} x",
    "\\frac{dy}{dx}",
    "8:00",
    "8:00 AM",
    "1st",
    "2024-01-05",
    "3/4/5",
    "1-2",
    "10 m/s",
    "5 km",
    "5km",
    "5 kg",
    "100 dollars",
    '"15"',
    "'15'",
    "`15`",
    "<answer>15</answer>",
    "**15**",
    "(15)",
)
REFUSED = (
    "a pinch",
    "yes",
    "no solution",
    "Monday",
    "",
    "\\boxed{7",
    "7 \\boxed{\\frac{1}{2}",
    "12 ####",
)

# beside quotes, brackets, tags, other letters and signs: answer, reference, reward
NUMBERS = (
    ("<answer>15</answer>", "15", 1),
    ("Answer:15", "15", 1),
    ('"15"', "15", 1),
    ("'15'", "15", 1),
    ("(15)", "15", 1),
    ("[15]", "15", 1),
    ("`15`", "15", 1),
    ("+15", "15", 1),
    ("It is fifteen (15).", "15", 1),
    ("<think>14</think>15", "15", 1),
    ("−15", "-15", 1),
    ("the result is “15”", "15", 1),
    ("{15}", "15", 1),
    ("<b>15</b>", "15", 1),
    ("result→15", "15", 1),
    ("*15*", "15", 1),
    ("__15__", "15", 1),
    ("**15**", "15", 1),
    ("It's **15**!", "15", 1),
    ("x:−15", "-15", 1),
    ("(-15)", "-15", 1),
    ("(−15)", "-15", 1),
    ("–15", "-15", 1),
    ("+0.5", "1/2", 1),
    ("１５", "15", 1),
    ("Answer15", "15", 1),
    ("USD15", "15", 1),
    ("€15", "15", 1),
    ("$15", "15", 1),
    ("15€", "15", 1),
    ("15 m", "15", 1),
    ("15kg", "15", 1),
    ("fifteen(15)", "15", 1),
    ("«15»", "15", 1),
    ("<final>15</final>", "15", 1),
    ("<answer>\n15\n</answer>", "15", 1),
    ("<answer>14</answer> no <answer>15</answer>", "15", 1),
    ("<answer>15", "15", 1),
    ("```\n15\n```", "15", 1),
    ("answer=15", "15", 1),
    ("Answer: 15.", "15", 1),
    ("The answer is: $15$.", "15", 1),
    ('{"answer": 15}', "15", 1),
    ("#15", "15", 1),
    ("~15", "15", 1),
    ("[-15]", "-15", 1),
    ("'-15'", "-15", 1),
    ("x=15", "15", 1),
    ("= 15", "15", 1),
    ("15,000", "15000", 1),
    ("15 000", "15000", 1),
    ("15\xa0000", "15000", 1),
    ("15\u202f000", "15000", 1),
    ("$15{,}000$", "15000", 1),
    ("$15,000", "15000", 1),
    ("5/3", "5/3", 1),
    ("14", "15", 0),
    ("<answer>14</answer>15", "15", 0),
    ("(14)", "15", 0),
    ("-15", "15", 0),
    ("−15", "15", 0),
    ("150", "15", 0),
    ("15", "150", 0),
    ("H2O", "2", 0),
    ("XDY2K", "2", 0),
    ("2\\pi", "2", 0),
    ("2x+3", "2", 0),
    ("3\\sqrt{2}", "3", 0),
    ("2.5", "2", 0),
    ("50\\%", "50", 1),
    ("½", "1/2", 1),
    ("3½", "7/2", 1),
    ("(3, 4)", "4", 0),
    ("x = 5", "5", 1),
    ("5 6", "30", 0),
    ("5 6", "6", 1),
    ("So 3 * 4 = <<3*4=12>>12 apples", "12", 1),
    ("I got 12 of 15 right, so the answer is 12.", "12", 1),
    ("-3 + 5", "2", 1),
    ("2 + 3 = 5", "5", 1),
    ("</think>15", "15", 1),
    ("15</think>", "15", 0),
    ("A = B + 2, so 15", "15", 1),
    ("Final Answer: The final answer is $15$. I hope it is correct.", "15", 1),
    ("f(2) = 15", "15", 1),
    ("f(15)", "15", 0),
    ("six", "6", 0),
    ("", "6", 0),
)
# the last box counts; one that is not finished is no answer: answer, reference, reward
BOXES = (
    ("\\boxed{7} hmm wait, it is \\boxed{9", "7", 0),
    ("\\boxed{7} hmm wait, it is \\boxed{9", "9", 0),
    ("\\boxed{7", "7", 0),
    ("\\boxed{", "7", 0),
    ("7 \\boxed{7", "7", 0),
    ("\\boxed{\\frac{1}{2}", "1/2", 0),
    ("so \\boxed{3} then \\boxed{7}", "7", 1),
    ("so \\boxed{7} then \\boxed{3}", "7", 0),
    ("$\\boxed{3}$, $\\boxed{7}$", "7", 1),
    ("$\\boxed{3}$ and $\\boxed{7}$", "3, 7", 1),
    ("$\\boxed{3}$ and $\\boxed{7}$", "3", 0),
    ("\\boxed{\\text{B}}", "B", 1),
    ("\\boxed{B}", "B", 1),
    ("\\boxed{\\left\\{1,2\\right\\}}", "\\{1,2\\}", 1),
    ("\\boxed{15} \\boxed{}", "15", 1),
    ("\\boxed 7", "7", 1),
    ("\\fbox{7}", "7", 1),
    ("$\\boxed{7}$ \n\n\\boxed{8", "7", 0),
    ("\\boxed{7}} x", "7", 1),
    ("<think>\\boxed{14} hmm \\boxed{</think>15", "15", 1),
)
# numbers that are nearly equal: answer, reference, reward
NEAR = (
    ("-5/3", "-5/3", 1),
    ("(5/3)", "5/3", 1),
    ("1e-7", "2e-7", 0),
    ("2e-7", "2e-7", 1),
    ("0.0000001", "0.0000002", 0),
    ("0.0000002", "2e-7", 1),
    ("2\\times 10^{-7}", "2e-7", 1),
    ("$2 \\times 10^{-7}$", "0.0000002", 1),
    ("0.333333", "1/3", 1),
    ("0.333", "1/3", 0),
    ("1/3", "0.333333", 1),
    ("3.141593", "\\pi", 1),
    ("3.14", "\\pi", 0),
    ("1.0000001e-7", "1e-7", 1),
    ("0", "1e-7", 0),
    ("1e-7", "0", 0),
    ("1000001", "1000000", 0),
    ("1234567.88", "1234567.89", 0),
    ("123456789.2", "123456789.1", 0),
    ("3.33333e-8", "1/30000000", 1),
    ("0.30000000000000004", "0.3", 1),
    ("(0.0000001, 2)", "(0.0000002, 2)", 0),
    ("(0.0000002, 2)", "(0.0000002, 2)", 1),
    ("x=0.0000001", "x=0.0000002", 0),
    ("\\pi \\cdot 10^{-20}", "2\\pi\\cdot 10^{-20}", 0),
    ("2.0000001", "2", 1),
    ("1000000000000000000000001", "1000000000000000000000000", 0),
    ("1e20", "100000000000000000000", 1),
    ("1e20", "1e21", 0),
    ("5e-324", "1e-323", 0),
    ("3 1/2", "3.5", 1),
    ("10^{-7}", "2\\cdot 10^{-7}", 0),
)
# formulas, sets, units and notation: answer, reference, reward
FORMS = (
    ("The answer is 2\\pi.", "2\\pi", 1),
    ("The answer is 2π", "2\\pi", 1),
    ("**B**", "B", 1),
    ("(B)", "B", 1),
    ("B.", "B", 1),
    ("The answer is B", "B", 1),
    ("ANSWER: B", "B", 1),
    ("A", "B", 0),
    ("The answer is A", "B", 0),
    ("50%", "0.5", 1),
    ("50", "50%", 1),
    ("0.125", "12.5%", 1),
    ("12.5", "12.5%", 1),
    ("51%", "50%", 0),
    ("51", "50%", 0),
    ("0", "0.\\overline{3}", 0),
    ("1/3", "0.\\overline{3}", 1),
    ("$\\frac{1}{6}$", "0.1\\overline{6}", 1),
    ("\\pi", "\\pi", 1),
    ("π", "\\pi", 1),
    ("\\sqrt{2}", "√2", 1),
    ("0.5", "½", 1),
    ("x²", "x^2", 1),
    ("x^2 + 1", "x^2+1", 1),
    ("1+x^2", "x^2+1", 1),
    ("x^2+2", "x^2+1", 0),
    ("(3, 4)", "(3,4)", 1),
    ("The point is (3, 4).", "(3,4)", 1),
    ("(4, 3)", "(3,4)", 0),
    ("[0,1)", "[0,1)", 1),
    ("[0,1]", "[0,1)", 0),
    ("5", "x = 5", 1),
    ("3, 1, 2", "1, 2, 3", 1),
    ("It costs 5 dollars", "It costs $5", 1),
    ("6", "It costs $5", 0),
    ("Evelyn", "\\text{Evelyn}", 1),
    ("Bob", "\\text{Evelyn}", 0),
    ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", 1),
    ("2", "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", 0),
    ("\\infty", "\\infty", 1),
    ("\\infty", "-\\infty", 0),
    ("8:30", "8:00", 0),
    ("8:00", "8:00", 1),
    ("3/4", "3:4", 1),
    ("\\(\\frac12\\)", "0.5", 1),
    ("\\[x+1\\]", "x+1", 1),
    ("$$x+1$$", "x+1", 1),
)


@pytest.mark.parametrize(("answer", "gold", "reward"), [*NUMBERS, *BOXES, *NEAR, *FORMS])
def test_math_reward(answer: str, gold: str, reward: float) -> None:
    assert math_reward(answer, gold).reward == reward


@pytest.mark.parametrize("gold", GOLDS)
def test_gold_is_worth_one_as_its_own_answer(gold: str) -> None:
    result = math_reward(gold, gold)
    assert (result.reward, result.parsed) == (1.0, True)


@pytest.mark.parametrize("gold", REFUSED)
def test_gold_without_mathematics_is_refused(gold: str) -> None:
    with pytest.raises(DataError, match=r"no number or formula|not closed"):
        math_reward("5", gold)


@pytest.mark.parametrize("answer", ["\\boxed{7", "7 then \\boxed{", "\\boxed{1} \\boxed{\\{7\\}"])
def test_unfinished_box_is_not_parsed(answer: str) -> None:
    assert not math_reward(answer, "7").parsed


_numbers = st.one_of(
    st.integers(-(10**9), 10**9).map(str),
    st.decimals(-1000, 1000, places=4).map(lambda number: f"{number:f}"),
    st.fractions(-50, 50, max_denominator=20).map(str),
)
_formulas = st.recursive(
    st.one_of(_numbers, st.sampled_from(("x", "B", r"\pi", r"\theta", "n", r"\infty"))),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*,"), inner).map(" ".join),
        st.tuples(inner, inner).map(lambda pair: rf"\frac{{{pair[0]}}}{{{pair[1]}}}"),
        inner.map(lambda text: rf"\sqrt{{{text}}}"),
        inner.map(lambda text: f"({text})"),
    ),
    max_leaves=4,
)


@settings(max_examples=40)
@given(
    gold=st.one_of(_formulas, st.text("0123x+-./()$ {}\\^_,%", max_size=12), st.text(max_size=8))
)
def test_any_gold_is_worth_one_or_refused(gold: str) -> None:
    try:
        result = math_reward(gold, gold)
    except DataError:
        return
    assert result.reward == 1


@settings(max_examples=40)
@given(
    number=_numbers,
    around=st.sampled_from(
        (
            "<answer>{}</answer>",
            "({})",
            "`{}`",
            '"{}"',
            "Answer:{}",
            "**{}**",
            r"so \boxed{{{}}}.",
            "${}$",
        )
    ),
)
def test_numbers_are_found_inside_of_signs(number: str, around: str) -> None:
    assert math_reward(around.format(number), number).reward == 1
    assert math_reward(around.format(number.replace("-", "\u2212")), number).reward == 1
    assert math_reward(around.format(f"1{number.removeprefix('-')}"), number).reward == 0


@settings(max_examples=40)
@given(digits=st.integers(1, 9), power=st.integers(-12, 6))
def test_tolerance_is_relative(digits: int, power: int) -> None:
    gold = f"{digits}.5e{power}"
    assert math_reward(f"{digits}.50000001e{power}", gold).reward == 1
    assert math_reward(f"{digits}.6e{power}", gold).reward == 0
    assert math_reward(f"{digits}.5e{power - 1}", gold).reward == 0
