"""The final answer in a text, and its formulas in the notation that math-verify reads."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

_NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:(?<=\d)|\.(?=\d))(?:\.?\d+)?"
_BRACED = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"  # with at most two inner levels
_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_BETWEEN_BOXES = re.compile(r"[\s$]*(?:,|;|,?\s*(?:and|or)|\\text\{\s*(?:and|or)\s*\})[\s$]*")
_ANSWER_TAG = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL | re.IGNORECASE)
# a tag such as <b>, with attributes if any; a < b > c has no tag
_TAG = re.compile(r"</?(?:[a-zA-Z][\w-]+|[bipqsu])(?:\s+[\w-]+=[^<>]*)?\s*/?>")
_CALCULATION = re.compile(r"<<[^<>]*>>")  # GSM8K's: <<3*4=12>>
_EMPHASIS = re.compile(r"(?<![\w*\\])(\*{1,3}|__)(?=[^\s*])(.+?)(?<=[^\s*])\1(?![\w*])")
# as in "the answer is not 7, but 9"
_DENIED_ANSWER = re.compile(
    r"(?i)\banswer\s*(?:is|:|=)?\s*(?::\s*)?(?:not|isn['’]t)\s+(?:\$[^$]*\$|\S+)"
)
_ANSWER_IS = re.compile(r"(?i)\banswer\s*(?:is|:|=|：)(?:\s*:)?\s*([^\n]+)")
_LATEX_MATH = re.compile(r"\$|\\\(|\\\[")
_WORDS_IN_LATEX = re.compile(
    r"\\(?:text|textbf|textit|mbox|mathrm|mathbf|operatorname|begin|end)\s*\{[^{}]*\}|\\[a-zA-Z]+"
)
_FUNCTIONS = re.compile(r"\b(?:sin|cos|tan|cot|sec|csc|log|ln|exp|sqrt|lim|max|min|gcd|lcm|mod)\b")
_RAW_LATEX = re.compile(
    rf"(?<![\\$\w])[-+]?[\w.()^]*\\[a-zA-Z]+(?:{_BRACED}|\\[a-zA-Z]+|[\w.^_+\-*/=()!,|]|\s(?=\\|{{))*"
)
_TUPLE = re.compile(rf"(?<![\w)^])[(\[]\s*{_NUMBER}(?:\s*,\s*{_NUMBER})+\s*[)\]]")
_BRACKETED_NUMBER = re.compile(rf"(?<![\w)\]^*/])[(\[]\s*({_NUMBER}%?)\s*[)\]](?![\w^*/(])")
_UNARY_PLUS = re.compile(r"(^|[(\[{=:,>\"'`“‘\n]|[a-zA-Z]{2,}\s)(\s*)\+(?=[\d.])")
# a letter of a script other than the Latin and the Greek
_SCRIPT = r"[^\W\d_A-Za-z\u00c0-\u024f\u0370-\u03ff]"
# short words that show that a text is not a formula; products such as xy are not among them
_SHORT_WORDS = re.compile(
    r"(?i)(?<![a-z\\])(?:an|as|at|be|by|do|he|if|in|is|it|me|my|no|of|on|so|to|us|we)(?![a-z])"
    rf"|[a-z]['’][a-z]|(?:[a-z]|{_SCRIPT})\s*:\s*[-+]?\d"
)
# what may stand directly before a number: quotes, backticks, colons, arrows, the ends of tags
_BEFORE_NUMBER = re.compile(
    r"(?<![\d\w])[\"'“”‘’«»„`:;|~≈→⇒#>]+(?=[-$€£¥]?[.\d])|(?<=[a-zA-Z]):(?=[-$€£¥]?[.\d])"
)
# where a number meets such a letter
_SCRIPT_EDGE = re.compile(rf"(?<={_SCRIPT})(?=[-+]?[$€£¥]?[.\d])|(?<=\d)(?={_SCRIPT})")
_SUPERSCRIPTS = re.compile("[⁰¹²³⁴-⁹⁺⁻⁽⁾ⁱⁿ]+")
_POWER = re.compile(r"(?<=[\w)}])(?:\*\*|\^)\s*(-?\d+)(?![\w.])")  # 10^-3, and Python's 10**6
_SCIENTIFIC = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?|\.\d+)[eE]([-+]?\d{1,3})(?![\w.]*\d|[a-zA-Z])")
_REPEATING = re.compile(r"(?<![\w.])(\d*)\.(\d*)\\(?:overline|bar|dot)\s*\{?(\d+)\}?")
_SPACED_THOUSANDS = re.compile(r"(?<![\d.])\d{1,3}(?: \d{3})+(?!\d)")
_MIXED_NUMBER = re.compile(r"(?<![\d./])(\d+) (\d+)/(\d+)(?![\d/])")
_LONE_NUMBER = re.compile(
    rf"(?<![A-Za-z\d.])[a-zA-Z]{{2,}}({_NUMBER})(?![\w])|(?<![\w.])({_NUMBER})"
)

_SYMBOLS = {
    **dict.fromkeys("−﹣－‐‑‒", "-"),
    **dict.fromkeys("×·⋅∗∙", "*"),
    **dict.fromkeys("÷⁄∕", "/"),
    **dict.fromkeys("\u00a0\u2007\u2009\u200a\u202f", " "),
    **dict.fromkeys("\u200b\u200c\u200d\u200e\u200f\u2060\u2066\u2067\u2068\u2069\ufeff", ""),
    **dict.fromkeys("\u061c\u202a\u202b\u202c\u202d\u202e", ""),
    "π": r"\pi ",
    "∞": r"\infty ",
    "≤": r"\leq ",
    "≥": r"\geq ",
    "≠": r"\neq ",
    "±": r"\pm ",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "∈": r"\in ",
    "∅": r"\emptyset ",
    "°": r"^{\circ}",
}
_TABLE = str.maketrans(_SYMBOLS)


def final_answers(text: str) -> Sequence[str]:
    """Return the readings of a text's final answer; empty if a thought or its last box is open.

    The final answer follows the last </think>, and in that the last ####; within it, the content
    of the last <answer> tags or of the last box counts. Boxes joined by commas or "and" may also
    be one list.
    """
    text = text.rpartition("</think>")[2]
    if "<think>" in text:
        return ()
    text = text.rpartition("####")[2]
    if tagged := _ANSWER_TAG.findall(text):
        text = tagged[-1]
    boxes = _boxes(text)
    if boxes is None:
        return ()
    if not boxes:
        return (text.strip(),)
    listed = [boxes[-1][2]]
    for (_, end, content), (start, _, _) in zip(boxes[-2::-1], boxes[:0:-1], strict=True):
        if not _BETWEEN_BOXES.fullmatch(text[end:start]):
            break
        listed.insert(0, content)
    return (boxes[-1][2], ", ".join(listed)) if len(listed) > 1 else (boxes[-1][2],)


def _boxes(text: str) -> list[tuple[int, int, str]] | None:
    """Return start, end and content of each box that is not empty; None if one is not closed."""
    boxes = list[tuple[int, int, str]]()
    at = 0
    while match := _BOX.search(text, at):
        end = _end_of_argument(text, match.end())
        if end is None:
            return None
        content = text[match.end() : end]
        content = content[1:-1].strip() if content.startswith("{") else content
        if content:
            boxes.append((match.start(), end, content))
        at = end
    return boxes


def _end_of_argument(text: str, start: int) -> int | None:
    """Return the end of a LaTeX argument, braced or of one token; None if it is not closed."""
    if not text.startswith("{", start):
        token = re.compile(r"\\[a-zA-Z]+|.?", re.DOTALL).match(text, start)
        assert token is not None
        return token.end()
    depth = 0
    for token in re.finditer(r"\\.|[{}]", text[start:], re.DOTALL):
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if depth == 0 and token[0] == "}":
            return start + token.end()
    return None


def normalise(text: str) -> str:
    """Return a text with Unicode's signs, digits and powers as ASCII or LaTeX, without markup.

    An answer that it denies, as in "the answer is not 7, but 9", is left out.
    """
    text = _DENIED_ANSWER.sub(" ", text)
    text = _SUPERSCRIPTS.sub(_as_power, text.translate(_TABLE))
    text = "".join(map(_ascii, text))
    text = _POWER.sub(r"^{\1}", _SCRIPT_EDGE.sub(" ", text))
    text = re.sub(r"(?<![\w)\]}])–(?=\s?[\d.])", "-", text)
    text = re.sub(r"√\s*(?:\(([^()]*)\)|(\d+|[a-zA-Z]))", r"\\sqrt{\1\2}", text)
    text = _CALCULATION.sub("", text)
    text = _TAG.sub(" ", text)
    text = _EMPHASIS.sub(r"\2", text)
    text = re.sub(r"(?<=\d)\s*\\[,;:! ]\s*(?=\d{3})|(?<=\d)\{,\}(?=\d{3})", "", text)
    text = _SCIENTIFIC.sub(_written_out, text)
    text = _REPEATING.sub(_as_fraction, text)
    text = _SPACED_THOUSANDS.sub(lambda match: match[0].replace(" ", ""), text)
    text = _MIXED_NUMBER.sub(r"\1\\frac{\2}{\3}", text)
    return _UNARY_PLUS.sub(r"\1\2", text)


def _as_power(match: re.Match[str]) -> str:
    """Write raised signs, such as those of 10⁻³, as one exponent."""
    return f"^{{{unicodedata.normalize('NFKC', match[0]).translate(_TABLE)}}}"


def _ascii(letter: str) -> str:
    if letter.isascii():
        return letter
    decomposition = unicodedata.decomposition(letter)
    plain = unicodedata.normalize("NFKC", letter)
    if decomposition.startswith("<fraction>") and "⁄" in plain:
        top, _, bottom = plain.partition("⁄")
        return rf"\frac{{{top}}}{{{bottom}}}"
    if decomposition.startswith("<wide>"):
        return plain
    return str(unicodedata.digit(letter)) if unicodedata.category(letter) == "Nd" else letter


def _written_out(match: re.Match[str]) -> str:
    """Write 1.5e3 as 1500.0, so that its e is not Euler's number."""
    from decimal import Decimal

    return f"{Decimal(match[0]):f}"


def _as_fraction(match: re.Match[str]) -> str:
    """Write a repeating decimal as a fraction: 0.1 and a repeated 6 is 15/90."""
    whole, start, repeated = match.groups()
    top = int(whole + start + repeated) - int((whole + start) or "0")
    return rf"\frac{{{top}}}{{{(10 ** len(repeated) - 1) * 10 ** len(start)}}}"


def bare(text: str) -> str:
    """Return an answer without the quotes, dollars, emphasis and full stop around it."""
    before = ""
    while before != text:
        before, text = text, text.strip().removesuffix(".").strip("\"'“”‘’«»„`")
        for start, end in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**")):
            inner = text[len(start) : -len(end)]
            if text.startswith(start) and text.endswith(end) and inner and start not in inner:
                text = inner
        text = re.sub(r"^\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}$", r"\1", text)
        text = re.sub(r"^([-+]?)[#~≈=:→⇒]*\s*\\?[$€£¥₹]?\s*(?=[.\d])", r"\1", text)
    return " ".join(text.split())


def is_formula(text: str) -> bool:
    """Return whether a text is a formula by itself, rather than words around one."""
    if _LATEX_MATH.search(text) or re.search(r"\d\s+\d", text) or not text.strip():
        return False
    left = _FUNCTIONS.sub(" ", _WORDS_IN_LATEX.sub(" ", text))
    if _SHORT_WORDS.search(left) or re.fullmatch(r"[a-zA-Z]{2,}", text.strip(" .!?")):
        return False
    return not re.search(r"[^\W\d_]{3,}", left) and len(re.findall(r"[^\W\d_]{2,}", left)) < 3


def stated_answer(text: str) -> str | None:
    """Return what follows the last "answer is" or "answer:" on its line, if that is a formula."""
    found = _ANSWER_IS.findall(text)
    if not found:
        return None
    first_sentence = re.split(r"[.;!]\s", found[-1])[0]
    statements = map(bare, (found[-1], first_sentence))
    return next((statement for statement in statements if is_formula(statement)), None)


def spaced(text: str) -> str:
    """Return a text in which math-verify finds numbers and formulas beside other signs."""
    if not _LATEX_MATH.search(text):
        text = _RAW_LATEX.sub(lambda match: f" ${match[0].rstrip(',.')}$ ", text)
        text = _TUPLE.sub(lambda match: f" ${match[0]}$ ", text)
    text = _BRACKETED_NUMBER.sub(r" \1 ", text)
    return _BEFORE_NUMBER.sub(" ", text)


def last_number(text: str) -> str | None:
    """Return the last number of a text, whatever stands before it."""
    found = [match[1] or match[2] for match in _LONE_NUMBER.finditer(text)]
    return next((number for number in reversed(found) if number), None)


def half_unit(text: str) -> str | None:
    """Return half of the last place of a number in digits, as a decimal; None for other texts."""
    match = re.fullmatch(r"[-+]?[$€£¥]?([\d,]*)(?:\.(\d+))?%?", text)
    if match is None or not (match[1] or match[2]):
        return None
    return f"5e-{len(match[2] or '') + 1}"
