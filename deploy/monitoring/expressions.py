"""Reads PromQL: which metrics it names, and which labels its result has, held against what there is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import promql_parser as promql

from deploy.monitoring.board import EVERYTHING

# What stands for Grafana's variables so that an expression can be read: everything is chosen.
_DURATIONS = {"$__rate_interval": "5m", "$__range": "1h", "$__interval": "1m"}
# What Prometheus adds to whatever it reads.
OF_TARGETS = frozenset({"job", "instance"})
_SET_OPERATORS = ("and", "or", "unless")


@dataclass(frozen=True, slots=True)
class KnownMetric:
    """One metric as it can be asked for: its labels, and the values of those whose values are fixed.

    What is read from a target has the labels of that too; what a rule records has not.
    """

    labels: frozenset[str]
    values: Mapping[str, frozenset[str]] = field(default_factory=dict)
    is_recorded: bool = False

    @property
    def all_labels(self) -> frozenset[str]:
        return self.labels if self.is_recorded else self.labels | OF_TARGETS


class ExpressionError(ValueError):
    """An expression that cannot be read, or that names what there is not."""


def without_variables(expr: str) -> str:
    for variable, duration in _DURATIONS.items():
        expr = expr.replace(variable, duration)
    return re.sub(r"\$\{?\w+\}?", EVERYTHING, expr)


def metrics_in(expr: str) -> set[str]:
    """The names of all metrics of an expression."""
    found = set()

    def visit(node: promql.Expr) -> None:
        if isinstance(node, promql.VectorSelector) and node.name is not None:
            found.add(node.name)

    promql.walk(parse(expr), visit)
    return found


def parse(expr: str) -> promql.Expr:
    try:
        parsed: promql.Expr = promql.parse(without_variables(expr))
    except ValueError as error:
        raise ExpressionError(f"{expr}: {error}") from error
    return parsed


def labels_of(expr: str, known: Mapping[str, KnownMetric]) -> frozenset[str]:
    """The labels of an expression's result.

    Raises ExpressionError for an unknown metric, label or value, and for labels that never match.
    """
    return _Reader(known, expr).labels(parse(expr)) or frozenset()


class _Reader:
    """`labels` of a number are None: it has none, and goes with everything."""

    def __init__(self, known: Mapping[str, KnownMetric], text: str) -> None:
        self._known = known
        self._text = text

    def labels(self, node: promql.Expr) -> frozenset[str] | None:
        if isinstance(node, promql.VectorSelector):
            return self._of_selector(node)
        if isinstance(node, promql.MatrixSelector):
            return self._of_selector(node.vector_selector)
        if isinstance(node, promql.ParenExpr | promql.UnaryExpr | promql.SubqueryExpr):
            return self.labels(node.expr)
        if isinstance(node, promql.AggregateExpr):
            return self._of_aggregate(node)
        if isinstance(node, promql.BinaryExpr):
            return self._of_binary(node)
        if isinstance(node, promql.Call):
            return self._of_call(node)
        return None

    def _of_selector(self, node: promql.VectorSelector) -> frozenset[str]:
        known = self._known.get(node.name or "")
        if known is None:
            raise ExpressionError(f"{self._text}: there is no metric {node.name}")
        there = known.all_labels
        for matcher in node.matchers.matchers:
            if matcher.name == "__name__":
                continue
            self._need({matcher.name}, there, node.name or "")
            values = known.values.get(matcher.name)
            is_plain = matcher.op in (promql.MatchOp.Equal, promql.MatchOp.NotEqual)
            asked = [matcher.value] if is_plain else matcher.value.split("|")
            strange = set(asked) - values - {EVERYTHING} if values else set()
            if strange:
                raise ExpressionError(
                    f"{self._text}: {node.name} has no {matcher.name} {', '.join(sorted(strange))}"
                )
        return there

    def _of_aggregate(self, node: promql.AggregateExpr) -> frozenset[str]:
        inner = self.labels(node.expr) or frozenset()
        if node.modifier is None:
            return inner if str(node.op) in ("topk", "bottomk") else frozenset()
        named = frozenset(node.modifier.labels)
        self._need(named, inner, str(node.op))
        return named if node.modifier.type == promql.AggModifierType.By else inner - named

    def _of_call(self, node: promql.Call) -> frozenset[str] | None:
        inner = [found for each in node.args if (found := self.labels(each)) is not None]
        if not inner or node.func.name == "scalar":
            return None
        if node.func.name == "histogram_quantile":
            self._need({"le"}, inner[0], node.func.name)
            return inner[0] - {"le"}
        return inner[0]

    def _of_binary(self, node: promql.BinaryExpr) -> frozenset[str] | None:
        left, right = self.labels(node.lhs), self.labels(node.rhs)
        if left is None or right is None:
            return right if left is None else left
        matching = node.modifier.matching if node.modifier is not None else None
        is_set = str(node.op) in _SET_OPERATORS
        if matching is None or matching.type == promql.LabelModifierType.Exclude:
            ignored = frozenset(matching.labels) if matching is not None else frozenset()
            if left - ignored != right - ignored and str(node.op) != "or":
                raise ExpressionError(f"{self._text}: {sorted(left)} never match {sorted(right)}")
            return left & right if str(node.op) == "or" else left
        named = frozenset(matching.labels)
        self._need(named, left, str(node.op))
        self._need(named, right, str(node.op))
        assert node.modifier is not None
        if is_set or node.modifier.card == promql.VectorMatchCardinality.ManyToOne:
            added = frozenset(node.modifier.group_labels or ())
            self._need(added, right, "group_left")
            return left | added
        return named

    def _need(self, asked: set[str] | frozenset[str], there: frozenset[str], where: str) -> None:
        if missing := asked - there:
            raise ExpressionError(f"{self._text}: {where} has no label {', '.join(sorted(missing))}")
