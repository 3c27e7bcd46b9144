"""Chat templates in Jinja: their variables, and their syntax trees with limits on their work."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.visitor import NodeTransformer

from adapters import template_limits

# filters that read whole texts and the lists within a list
_DEEP_FILTERS = ("format", "join", "map", "pprint", "string", "tojson", "urlencode", "xmlattr")
_PER_LINE = ("expandtabs", "indent", "join", "wordwrap")  # repeat their argument
_SUMMANDS = 16  # counted together
_LIMITED_OPERATORS = {"Mul": "multiply", "Pow": "power", "Mod": "modulo"}


class _Generation(Extension):
    """The tag that marks answers, which transformers adds to Jinja."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


# with the options of transformers
_ENVIRONMENT = Environment(
    trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
)


@cache
def parse_error(template: str) -> str:
    """Return why a template is not Jinja, with the line; empty if it is."""
    try:
        _ENVIRONMENT.parse(template)
    except TemplateSyntaxError as error:
        return f"line {error.lineno}: {error.message}"
    except RecursionError:
        return "its expressions are nested too deeply"
    return ""


@cache
def variables(template: str) -> frozenset[str]:
    """Return the variables that a template reads; none if it is not Jinja."""
    if parse_error(template):  # rendering reports it
        return frozenset()
    return frozenset(find_undeclared_variables(_ENVIRONMENT.parse(template)))


@cache
def limited(template: str) -> nodes.Template:
    """Return the syntax tree of a template, which counts its work; raises TemplateSyntaxError.

    Everything that a template can repeat or enlarge is counted: loops, macros, calls, filters, and
    operators that join or multiply. The date is replaced too.
    """
    tree = _Limits().visit(_ENVIRONMENT.parse(template))
    assert isinstance(tree, nodes.Template)
    return tree


class _Limits(NodeTransformer):
    """Adds the counters of `template_limits` to a syntax tree."""

    def visit_Name(self, node: nodes.Name) -> nodes.Node:
        is_date = node.name == "strftime_now" and node.ctx == "load"
        return _imported(node.name, node) if is_date else node

    def visit_For(self, node: nodes.For) -> Any:
        self.generic_visit(node)
        if node.test is not None:
            node.test = nodes.And(_step(node), node.test, lineno=node.lineno)
        return _with_step(node)

    def visit_Macro(self, node: nodes.Macro) -> Any:
        return _with_step(self.generic_visit(node))

    visit_Block = visit_Macro

    def visit_CallBlock(self, node: nodes.CallBlock) -> Any:
        call = node.call  # it must remain a call
        self._visit_call(call)
        node.call = nodes.Call(nodes.Const(None), [], [], None, None)
        self.generic_visit(node)
        node.call = call
        return _with_step(node)

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [_unless_constant("SIZES", child) for child in node.nodes]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [_unless_constant("SIZES", child) for child in node.nodes]
        return _counted("LENGTHS", node)

    def visit_Add(self, node: nodes.Add) -> nodes.Node:
        sums: list[Any] = [node]  # a + b + c is counted as one
        while isinstance(sums[-1].left, nodes.Add) and len(sums) < _SUMMANDS:
            sums.append(sums[-1].left)
        for each in sums:
            each.right = self.visit(each.right)
        sums[-1].left = self.visit(sums[-1].left)
        return _counted("LENGTHS", node)

    def visit_Mul(self, node: nodes.BinExpr) -> nodes.Node:
        self.generic_visit(node)
        name = _LIMITED_OPERATORS[type(node).__name__]
        return _call(name, [node.left, node.right], node)

    visit_Pow = visit_Mod = visit_Mul

    def visit_Operand(self, node: nodes.Operand) -> nodes.Node:
        self.generic_visit(node)
        if node.op in ("in", "notin"):  # these read the whole list
            node.expr = _unless_constant("LENGTHS", node.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _counted("LENGTHS", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_FilterBlock(self, node: nodes.FilterBlock) -> nodes.Node:
        node.body = [self.visit(child) for child in node.body]
        self._visit_filter(node.filter)  # it must remain a filter
        return node

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:
        node.body = [self.visit(child) for child in node.body]
        if node.filter is not None:
            self._visit_filter(node.filter)
        return node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        self._visit_filter(node)
        if node.name == "replace" and node.node and not (node.kwargs or node.dyn_args):
            texts = [_filter("string", value, node) for value in (node.node, *node.args[:2])]
            return _call("replace", [*texts, *node.args[2:]], node)
        return _counted("LENGTHS", node)

    def _visit_filter(self, node: nodes.Filter) -> None:
        if isinstance(node.node, nodes.Filter) and _is_in_block(node):
            self._visit_filter(node.node)
        elif node.node is not None:
            node.node = _counted(
                "SIZES" if node.name in _DEEP_FILTERS else "LENGTHS", self.visit(node.node)
            )
            if node.name == "format":
                node.node = _call("formatted", [node.node], node)
        self._visit_arguments(node, "SEPARATORS" if node.name in _PER_LINE else "WIDTHS")

    def visit_Call(self, node: Any) -> nodes.Node:
        self._visit_call(node)
        method = node.node.attr if isinstance(node.node, nodes.Getattr) else ""
        if method == "replace" and not (node.kwargs or node.dyn_args):
            return _call("replace", [node.node.node, *node.args], node)
        return _counted("LENGTHS", node)

    def _visit_call(self, node: Any) -> None:
        node.node = self.visit(node.node)
        method = node.node.attr if isinstance(node.node, nodes.Getattr) else ""
        if method in ("format", "format_map"):
            node.node.node = _call("formatted", [node.node.node], node)
        elif method == "join":
            node.node.node = _counted("SEPARATORS", node.node.node)
            self._visit_arguments(node, "SIZES")
            return
        self._visit_arguments(node, "SEPARATORS" if method in _PER_LINE else "WIDTHS")

    def _visit_arguments(self, node: Any, counter: str) -> None:
        """Add a counter to each argument of a call or filter."""
        node.args = [_unless_text(counter, self.visit(argument)) for argument in node.args]
        for pair in node.kwargs or ():
            pair.value = _unless_text(counter, self.visit(pair.value))
        for name in ("dyn_args", "dyn_kwargs"):
            if getattr(node, name) is not None:
                setattr(node, name, _counted(counter, self.visit(getattr(node, name))))


def _is_in_block(node: nodes.Filter) -> bool:
    """Return whether a chain of filters applies to a block, and to no expression."""
    while isinstance(node.node, nodes.Filter):
        node = node.node
    return node.node is None


def _with_step(node: Any) -> Any:
    """Count each execution of a body, and the text that it writes."""
    node.body = [nodes.ExprStmt(_step(node), lineno=node.lineno), *node.body]
    return node


def _step(node: Any) -> nodes.Expr:
    is_loop = isinstance(node, nodes.For) and not node.recursive
    base = template_limits.STEP if is_loop else template_limits.CALL
    work = base
    for statement in node.body:
        work += sum(len(data.data) for data in statement.find_all(nodes.TemplateData))
    return _counted("STEPS", nodes.Const(work, lineno=node.lineno))


def _counted(counter: str, node: Any) -> nodes.Expr:
    return nodes.Sub(_imported(counter, node), node, lineno=node.lineno)


def _unless_constant(counter: str, node: Any) -> nodes.Expr:
    if isinstance(node, nodes.TemplateData | nodes.Const):
        return node
    is_counted = isinstance(node, nodes.Sub) and isinstance(node.left, nodes.ImportedName)
    return _counted(counter, node.right if is_counted else node)


def _unless_text(counter: str, node: Any) -> nodes.Expr:
    is_text = isinstance(node, nodes.Const) and not isinstance(node.value, int)
    return node if is_text and counter == "WIDTHS" else _counted(counter, node)


def _call(function: str, arguments: list[nodes.Expr], node: Any) -> nodes.Expr:
    return nodes.Call(_imported(function, node), arguments, [], None, None, lineno=node.lineno)


def _filter(name: str, value: nodes.Expr, node: Any) -> nodes.Expr:
    return nodes.Filter(value, name, [], [], None, None, lineno=node.lineno)


def _imported(name: str, node: Any) -> nodes.Expr:
    return nodes.ImportedName(f"{template_limits.__name__}.{name}", lineno=node.lineno)
