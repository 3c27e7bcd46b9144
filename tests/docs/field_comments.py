"""Extension of griffe: the comment beside an assignment is its documentation in the API pages."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

import griffe

from kitchen.config.describe import comments_beside


class FieldComments(griffe.Extension):
    """Turns comments beside the attributes of classes and modules into docstrings."""

    def on_module_members(self, *, node: ast.Module, mod: griffe.Module, **_: Any) -> None:
        add_comments(mod, node.body, "\n".join(mod.lines))

    def on_class_members(self, *, node: ast.ClassDef, cls: griffe.Class, **_: Any) -> None:
        add_comments(cls, node.body, "\n".join(cls.module.lines))


def add_comments(owner: griffe.Object, statements: Iterable[ast.stmt], source: str) -> None:
    """Set the docstrings of attributes that have a comment and no docstring."""
    for name, comment in comments_beside(statements, source).items():
        attribute = owner.members.get(name)
        if isinstance(attribute, griffe.Attribute) and attribute.docstring is None:
            attribute.docstring = griffe.Docstring(comment, parent=attribute)
