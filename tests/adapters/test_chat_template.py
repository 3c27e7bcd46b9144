"""Chat templates: limits on their work, and renderings that equal those of transformers."""

import pytest

from kitchen.errors import BackendError, ConfigError
from tests.support.tokenizers import trained_tokenizer

pytest.importorskip("transformers")
QUESTION = [{"role": "user", "content": "to be or not?"}]
TALK = [
    {"role": "system", "content": "be a cook"},
    *QUESTION,
    {"role": "assistant", "content": "that is\n the question"},
    {"role": "user", "content": "ä <b>"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
GROW = "{% set ns = namespace(x=START) %}{% for i in range(60) %}{% set ns.x = NEXT %}{% endfor %}"


def grow(start: str, following: str, output: str = "ns.x") -> str:
    template = GROW.replace("START", start).replace("NEXT", following)
    return f"{template}{{{{ {output} }}}}"


TOO_LONG = {
    "nested loops": "{% for a in range(9**5) %}{% for b in range(9**5) %}{% endfor %}{% endfor %}",
    "loops over nothing": "{% for a in range(99999) %}{% for b in range(99999) if false %}"
    "{% endfor %}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "recursive loops": "{% for a in [1, 2] recursive %}{% if loop.depth < 60 %}{{ loop([1, 2]) }}"
    "{% endif %}{% endfor %}",
    "lists": "{% set l = range(99999) | list %}{% for a in l %}{{ 1 if -1 in l }}{% endfor %}",
    "sums": "{% for a in range(99999) %}{{ range(99999) | sum }}{% endfor %}",
    "text in a loop": "{% for a in range(999) %}{% for b in range(999) %}"
    + "x" * 5000
    + "{% endfor %}"
    "{% endfor %}",
    "lists of lists": grow("[1]", "[ns.x, ns.x]", "ns.x | tojson"),
    "objects of objects": grow("{'a': 1}", "{'a': ns.x, 'b': ns.x}"),
}
TOO_LARGE = {
    "product": "{{ 'a' * 10000000000 }}",
    "product with a power": "{{ 'a' * 10**10 }}",
    "sum": grow("'a'", "ns.x + ns.x"),
    "concatenation": grow("'a'", "ns.x ~ ns.x"),
    "list": grow("[1]", "ns.x + ns.x"),
    "block": "{% set x = 'a' %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 60 + "{{ x }}",
    "filter": "{{ 'a' | center(10000000000) }}",
    "filter of a block": "{% filter center(10000000000) %}x{% endfilter %}",
    "method": "{{ 'a'.ljust(10000000000) }}",
    "percent": "{{ '%10000000000d' % 1 }}",
    "percent with a width": "{{ '%*d' % (10000000000, 1) }}",
    "format": "{{ '{:10000000000d}'.format(1) }}",
    "format filter": "{{ '%10000000000d' | format(1) }}",
    "number": grow("3", "ns.x * ns.x"),
    "power": "{{ 10 ** 100 ** 100 }}",
    "replacement": "{% set a = 'a' * 99999 %}{{ a | replace('a', a) }}",
    "replacing method": "{% set a = 'a' * 99999 %}{{ a.replace('a', a) }}",
    "separator": "{% set a = 'a' * 99999 %}{{ range(99999) | join(a) }}",
    "joined list": "{% set a = 'a' * 99999 %}{{ ([a] * 99999) | join }}",
    "indent": "{{ ('a\n' * 99999) | indent(99999) }}",
    "words": "{{ lipsum(1000000000) }}",
    "batch": "{{ [1] | batch(10000000000, 'x') | list }}",
}
SYNTAX = """{%- macro m(a, b='x') -%}{{ a|upper }}{{ b.replace('x', 'yy') }}
{{ caller() if caller }}{%- endmacro -%}
{% set ns = namespace(i=0, out='') %}
{% for message in messages if message.role != 'nobody' %}
    {% set ns.i = ns.i + 1 %}{% if loop.index0 % 2 == 0 %}even {{ loop.index * 3 }}{% endif %}
    {{- m(message.content, b="xx") ~ '|' ~ loop.index ~ none }}
    {% generation %}{{ message.content.strip() + eos_token + 'a' + "b" }}
    [{{ message.content.split('b') | join(', ') }}]{% endgeneration %}

    {% if 'a' in message.content and 1 not in [2] %}{{ message.content[1:3] }}{% endif %}
    {{ "%s-%d"|format(message.role, 3) }}{{ '%05.2f' % 2.5 }}{{ '{} {x}'.format(1, x=2) }}
    {{ message.nothing }}{{ [1, {'a': 2}] }}{{ 2 ** 5 }}{{ None }}{{ 7 // 2 - 1 }}
    {% call m('q') %}called{% endcall %}
    {%- filter upper|replace('A', 'b') %}abc{{ message.role }}{% endfilter %}
    {% set block | trim %} abc {% endset %}{{ block }}{{ message|tojson(indent=2) }}
    {{ message.content|replace('a', 'bb', 1)|replace(1, 2) }}
    {% if loop.last %}{% break %}{% endif %}
{% endfor %}
{% for k, v in {'a': [1, [2]]}.items() recursive %}{{ k }}{{ v }}{% else %}none{% endfor %}
{{ strftime_now is defined }}{{ messages|map(attribute='role')|join('-') }}{{ 'x'.join('ab') }}
{{ messages|selectattr('role', 'equalto', 'user')|list|length }}{{ nothing|default('d') }}
{% set l = messages[::-1] %}{{ l[0].role }}{{ (true and 'x') * 2 }}{% if not tools %}z{% endif %}
{% block title %}hello {{ tools|string }}{% endblock %}{% with a = 3 %}{{ a }}{% endwith %}
"""


@pytest.mark.parametrize("name", [*TOO_LONG, *TOO_LARGE])
def test_a_template_with_too_much_work_is_refused(name):
    problem = "takes more than 1,000,000 iterations" if name in TOO_LONG else "the chat template"
    tokenizer = trained_tokenizer("byte-level", template={**TOO_LONG, **TOO_LARGE}[name])
    with pytest.raises(BackendError, match=problem) as caught:
        tokenizer.render(QUESTION)
    assert "so it may never end; correct the template, or set another one" in str(caught.value)
    # the next conversation has the whole limit again
    own = tokenizer.with_template("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert own.render_text(QUESTION) == "to be or not?"


def test_limits_of_a_users_template_name_the_setting():
    tokenizer = trained_tokenizer("byte-level").with_template(TOO_LONG["nested loops"])
    with pytest.raises(ConfigError, match=r"^rendering\.template: .*1,000,000 iterations"):
        tokenizer.render_text(QUESTION)


@pytest.mark.parametrize("answer, tools", [(False, []), (True, []), (False, TOOLS), (True, TOOLS)])
def test_limits_do_not_change_what_is_rendered(answer, tools):
    tokenizer = trained_tokenizer("byte-level", template=SYNTAX)
    expected = tokenizer._inner.apply_chat_template(
        TALK, tools=tools or None, tokenize=False, add_generation_prompt=answer
    )
    assert tokenizer.render_text(TALK, answer=answer, tools=tools) == expected
    assert "even 3" in expected


def test_a_long_conversation_is_within_the_limits():
    template = (
        "{% for m in messages %}{% for n in messages %}{% set last = n %}{% endfor %}"
        "{{ m.role + ': ' + m.content | trim }}\n{% endfor %}"
    )
    talk = [{"role": "user", "content": "a" * 10_000}] * 600
    text = trained_tokenizer("byte-level", template=template).render_text(talk)
    assert text == ("user: " + "a" * 10_000 + "\n") * 600


def test_a_date_is_the_same_on_every_day():
    template = "{% set form = '%d %b %Y' %}{{ strftime_now(form) }}{{ strftime_now('%Y') }}"
    tokenizer = trained_tokenizer("byte-level", template=template)
    assert tokenizer.render_text(QUESTION) == "26 Jul 20242024"


def test_expressions_nested_too_deeply_are_refused():
    template = "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}"
    with pytest.raises(ConfigError, match="nested too deeply"):
        trained_tokenizer("byte-level").with_template(template)
