"""What is done to a chat template's syntax tree before it is compiled.

Two things.  Loops and ``~`` are sent through the metered environment (see ``sandbox``).  And every
control token that the template *writes* is sealed (see ``seals``), while every one that it *looks for*
stays as it is spelled, because it looks for it in the client's text:

    {{- '<|im_start|>' ~ role -}}                          written: sealed
    {% if '</think>' in text %}, text.split('</think>')    looked for: left alone

The one thing a reader would get wrong: content is never touched, so the template trims, splits and
compares exactly what the client sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from ninfer.prompt.seals import Seals

_Expr = TypeVar("_Expr", bound=nodes.Expr)

_SEARCHES = frozenset(
    {"split", "rsplit", "partition", "rpartition", "startswith", "endswith", "find", "rfind", "get"}
    | {"index", "rindex", "count", "strip", "lstrip", "rstrip", "removeprefix", "removesuffix"}
)


def rewrite(tree: nodes.Template, seals: Seals) -> nodes.Template:
    """Return the tree of the template that is really run."""
    rewritten: nodes.Template = _Rewriter(seals).visit(tree)
    return rewritten


class _Rewriter(NodeTransformer):
    def __init__(self, seals: Seals) -> None:
        self._seals = seals
        self._looking = 0  # inside something that looks for text

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.TemplateData:
        node.data = self._seals.seal(node.data)
        return node

    def visit_Const(self, node: nodes.Const) -> nodes.Const:
        if isinstance(node.value, str) and not self._looking:
            node.value = self._seals.seal(node.value)
        return node

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = _through("watched", [node.iter], node)
        if node.recursive:  # what is looped over again never passes ``iter``
            step = _through("step", [], node)
            node.body.insert(0, nodes.ExprStmt(step, lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:
        self.generic_visit(node)
        return _through("tilde", node.nodes, node)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        return self._searching(node)

    def visit_Test(self, node: nodes.Test) -> nodes.Node:
        return self._searching(node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        node.node = self.visit(node.node)
        node.arg = self._looked_for(node.arg)
        return _through("cut", [node], node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Call(self, node: nodes.Call) -> nodes.Node:
        method = node.node.attr if isinstance(node.node, nodes.Getattr) else ""
        return self._with_arguments(node, method)

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        return self._with_arguments(node, node.name)

    def _with_arguments(self, node: nodes.Call | nodes.Filter, name: str) -> nodes.Node:
        """Visit a call: of its arguments, those that are looked for stay as they are spelled."""
        looked_for = len(node.args) if name in _SEARCHES else int(name == "replace")
        sought = [self._looked_for(argument) for argument in node.args[:looked_for]]
        rest, node.args = node.args[looked_for:], []
        self.generic_visit(node)
        node.args = sought + [self.visit(argument) for argument in rest]
        return node

    def _searching(self, node: nodes.Node) -> nodes.Node:
        """Visit what a comparison or a test compares."""
        self._looking += 1
        self.generic_visit(node)
        self._looking -= 1
        return node

    def _looked_for(self, node: _Expr) -> _Expr:
        self._looking += 1
        visited: _Expr = self.visit(node)
        self._looking -= 1
        return visited


def _through(method: str, arguments: Sequence[nodes.Node], place: nodes.Node) -> nodes.Call:
    """Call a method of the environment."""
    target = nodes.EnvironmentAttribute(method, lineno=place.lineno)
    return nodes.Call(target, list(arguments), [], None, None, lineno=place.lineno)
