"""Where chat templates are rendered: within a budget, because whoever wrote a checkpoint wrote its template.

Templates are rendered on the event loop, in microseconds, so neither a process nor a timer can watch each
one. Instead the code that Jinja compiles looks at the clock wherever a template can repeat itself (loops,
calls, filters), and asks before each operation that can make a value larger than those it is given. No
single operation takes long then, and all of them together have a limit. Values that share parts count each
time they are in there, as they would when they are printed. What is left out of Jinja has no use in a prompt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter, thread_time
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from jinja2.compiler import CodeGenerator, optimizeconst
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.nodes import Add, And, ContextReference, ExprStmt, Impossible, Not
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_context

if TYPE_CHECKING:
    from jinja2.compiler import Frame
    from jinja2.nodes import BinExpr, Block, Concat, Dict, Expr, For, Getattr, List, Output, Tuple

# A prompt of a few messages takes 20 µs. A long conversation has more time, by its characters.
RENDER_S = 0.003
RENDER_S_PER_CHAR = 5e-7
_LOOK_AGAIN_S = 0.001
FREE_CHARS, COPIES = 1 << 20, 8
MOST_CHARS = 32 << 20
_MOST_BITS = 4096
_MOST_DIGITS = 300
_MOST_ROWS = 100_000
_CHAIN = 8

_DICT_NAMES = frozenset(dir(dict))
_VIEWS: tuple[Any, ...] = (type({}.items()), type({}.keys()), type({}.values()))
_CONTAINERS: tuple[Any, ...] = (list, tuple, dict, set, frozenset, *_VIEWS)
_WIDE = re.compile(r"\d{4,}|\*")
_NESTED_FIELD = re.compile(r"\{[^{}]*\{")
_LEFT_OUT = ("pprint", "striptags", "urlize", "wordwrap")
# With these Jinja tells a function of its own where it is called.
_SCOPES = ("_loop_vars", "_block_vars")
# Those make containers of containers.
_NESTING = ("batch", "slice")


class TemplateOverrun(TemplateRuntimeError):
    """The template does more than any prompt needs."""


class BudgetedContext(Context):
    """One rendering: its deadline, and how large its values are."""

    look_at_s = 0.0  # when the clock is to be looked at more closely: at first, to begin with
    _cpu_deadline_s = None
    _weights: dict[int, tuple[Any, int]] | None = None

    def look_again(self) -> None:
        """Time that others had the processor for is not the template's."""
        if self.look_at_s == 0.0:
            self.look_at_s = perf_counter() + RENDER_S
            return
        now_s = thread_time()
        if self._cpu_deadline_s is None:
            self._cpu_deadline_s = now_s + RENDER_S + self._given_chars() * RENDER_S_PER_CHAR
        if now_s > self._cpu_deadline_s:
            raise TemplateOverrun("it does not come to an end in time")
        self.look_at_s = perf_counter() + _LOOK_AGAIN_S

    def require(self, chars: int) -> None:
        """A value may be as large as some copies of all that the template is given."""
        if chars > FREE_CHARS and chars > min(MOST_CHARS, FREE_CHARS + COPIES * self._given_chars()):
            raise TemplateOverrun(f"it makes a value of {chars:,} characters")

    def _given_chars(self) -> int:
        return sum(map(self.weigh, self.parent.values()))

    def concat(self, pieces: Iterable[str]) -> str:
        """The output of a macro or a block."""
        pieces = list(pieces)
        self.require(sum(map(len, pieces)))
        return "".join(pieces)

    def grown(self, value: Any) -> Any:
        """Return the value, unless it has become too large."""
        if type(value) is str and len(value) <= FREE_CHARS:
            return value
        self.require(self.weigh(value))
        return value

    def add(self, left: Any, right: Any) -> Any:
        """A list that grows in a loop is not weighed again in each turn, and what it was is not kept."""
        result = left + right
        if type(result) is list:
            weight = self.weigh(left) + self.weigh(right)
            self.require(weight)
            if self._weights is not None:
                self._weights.pop(id(left), None)
                self._weights.pop(id(right), None)
                self._weights[id(result)] = (result, weight)
            return result
        return self.grown(result)

    def tick(self) -> None:
        if perf_counter() > self.look_at_s:
            self.look_again()

    def weigh(self, value: Any) -> int:
        """Return how many characters it has when it is printed, about; what was weighed once is known."""
        if isinstance(value, str):
            return len(value) + 1
        if not isinstance(value, _CONTAINERS):
            return 1
        if self._weights is None:
            self._weights = {}
        known = self._weights.get(id(value))
        if known is None:
            inside = sum(map(self.weigh, value)) + 1
            if isinstance(value, dict):
                inside += sum(map(self.weigh, value.values()))
            known = self._weights[id(value)] = (value, inside)  # kept, so that nothing else gets its id
        return known[1]


class _Code(CodeGenerator):
    """Jinja's code with a look at the clock in each turn of a loop, and a check of what grows.

    It also finds `message.role` in a dict at once, where Jinja looks for an attribute of that name first.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._inside: set[int] = set()

    def visit_Getattr(self, node: Getattr, frame: Frame) -> None:
        if node.attr in _DICT_NAMES:
            super().visit_Getattr(node, frame)
            return
        found, name = self.temporary_identifier(), repr(node.attr)
        self.write(f"({found}[{name}] if type({found} := ")
        self.visit(node.node, frame)
        self.write(f") is dict and {name} in {found} else environment.getattr({found}, {name}))")

    def visit_For(self, node: For, frame: Frame) -> None:
        if node.test is not None:
            node.test = And(Not(ContextReference()), node.test, lineno=node.lineno)
        node.body.insert(0, ExprStmt(ContextReference(), lineno=node.lineno))
        super().visit_For(node, frame)

    def visit_ContextReference(self, node: ContextReference, frame: Frame) -> None:
        # No template has such a node of its own.
        self.write("(clock() > context.look_at_s and context.look_again())")

    def write_commons(self) -> None:
        super().write_commons()
        self.writeline("clock = environment.clock")
        self.writeline("concat = context.concat")

    def visit_Output(self, node: Output, frame: Frame) -> None:
        for part in node.nodes:  # they are checked with the rest of what is written
            if isinstance(part, Add) and _terms(part) < _CHAIN:
                self._inside.add(id(part))
        super().visit_Output(node, frame)

    def visit_Block(self, node: Block, frame: Frame) -> None:
        if node.scoped:  # it would have a context of its own, and with it another budget
            self.fail("a chat template cannot have scoped blocks", node.lineno)
        super().visit_Block(node, frame)

    @optimizeconst
    def visit_Add(self, node: BinExpr, frame: Frame) -> None:
        """Checks a chain of a few at its end."""
        for part in (node.left, node.right):
            if isinstance(part, Add) and _terms(part) < _CHAIN:
                self._inside.add(id(part))
        if id(node) in self._inside:
            super().visit_Add(node, frame)
            return
        self.write("context.add(")
        self.visit(node.left, frame)
        self.write(", ")
        self.visit(node.right, frame)
        self.write(")")

    @optimizeconst
    def visit_Concat(self, node: Concat, frame: Frame) -> None:
        self._checked(super().visit_Concat, node, frame)

    def visit_List(self, node: List, frame: Frame) -> None:
        self._checked_unless_constant(super().visit_List, node, frame)

    def visit_Dict(self, node: Dict, frame: Frame) -> None:
        self._checked_unless_constant(super().visit_Dict, node, frame)

    def visit_Tuple(self, node: Tuple, frame: Frame) -> None:
        if node.ctx == "load":
            self._checked_unless_constant(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def _checked_unless_constant(self, visit: Callable[[Any, Frame], None], node: Expr, frame: Frame) -> None:
        try:
            node.as_const(frame.eval_ctx)
        except Impossible:
            self._checked(visit, node, frame)
        else:
            visit(node, frame)

    def _checked(self, visit: Callable[[Any, Frame], None], node: Expr, frame: Frame) -> None:
        self.write("context.grown(")
        visit(node, frame)
        self.write(")")


def _terms(node: Expr) -> int:
    return _terms(node.left) + _terms(node.right) if isinstance(node, Add) else 1


class _Namespace(Namespace):
    """Prints nothing of what it holds, which may be other ones."""

    def __repr__(self) -> str:
        return "<Namespace>"


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    code_generator_class = _Code
    context_class = BudgetedContext
    intercepted_binops = frozenset({"*", "**", "%"})
    clock = staticmethod(perf_counter)

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        del self.globals["lipsum"]
        self.globals["namespace"] = _Namespace
        for name in _LEFT_OUT:
            del self.filters[name]
        for name, function in self.filters.items():
            self.add_filter(name, function)
        for name in self.tests.keys() - {*_QUICK_TESTS}:
            test: Any = self.tests[name]
            self.tests[name] = _guarded(name, test)

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        self.filters[name] = _guarded(name, function)

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """The output of a template."""
        pieces = list(pieces)
        if sum(map(len, pieces)) > MOST_CHARS:
            raise TemplateOverrun(f"it writes more than {MOST_CHARS:,} characters")
        return "".join(pieces)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        __context.tick()
        kind = type(__obj)
        if kind is BuiltinFunctionType or (kind is MethodType and isinstance(__obj.__self__, str)):
            for name in _SCOPES:
                kwargs.pop(name, None)
            args = _checked_method(__context, __obj.__name__, __obj.__self__, args)
            result = __obj(*args, **kwargs)
            return __context.grown(result) if __obj.__name__ in _GROWING else result
        if kind is FunctionType and (method := getattr(__obj, "__wrapped__", None)) is not None:
            _check_format(__context, str(method.__self__), (args, kwargs))  # Jinja's own str.format
        result = super().call(__context, __obj, *args, **kwargs)
        return __context.grown(result) if kind is type or isinstance(result, str) else result

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            _check_numbers(operator, left, right)
        elif operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(value, (str, list, tuple)) and isinstance(times, int):
                    context.require(context.weigh(value) * times)
        elif operator == "%" and isinstance(left, str):
            _check_percent(context, left, right)
        return super().call_binop(context, operator, left, right)


def _check_numbers(operator: str, left: int, right: int) -> None:
    if operator == "*":
        bits = left.bit_length() + right.bit_length()
    else:
        bits = left.bit_length() * max(right, 1) if operator == "**" else 0
    if bits > _MOST_BITS:
        raise TemplateOverrun("it makes a number of more than a thousand digits")


def _check_percent(context: BudgetedContext, text: str, values: Any) -> None:
    if _WIDE.search(text):
        raise TemplateOverrun("it makes a field of 1,000 characters or more")
    context.require(len(text) + text.count("%") * (context.weigh(values) + 1000))


def _check_format(context: BudgetedContext, text: str, values: Any) -> None:
    if _WIDE.search(text) or _NESTED_FIELD.search(text.replace("{{", "")):
        raise TemplateOverrun("it makes a field whose width is 1,000 or more, or another field")
    context.require(len(text) + text.count("{") * (context.weigh(values) + 1000))


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter or test that looks at the clock first; it never runs while the template is compiled."""
    wants = getattr(getattr(function, "jinja_pass_arg", None), "name", "")
    check = _CHECKS.get(name)

    if check is None and not wants and name not in _NESTING:

        @pass_context
        def quick(context: BudgetedContext, *args: Any, **kwargs: Any) -> Any:
            if perf_counter() > context.look_at_s:
                context.look_again()
            result = function(*args, **kwargs)
            return context.grown(result) if isinstance(result, str) else result

        return quick

    @pass_context
    def guarded(context: BudgetedContext, *args: Any, **kwargs: Any) -> Any:
        context.tick()
        if check is not None:
            args = check(context, *args, **kwargs) or args
        if wants:
            args = (_passed(context, wants), *args)
        result = function(*args, **kwargs)
        if name in _NESTING:
            result = list(result)
        return context.grown(result) if isinstance(result, str) or name in _NESTING else result

    return guarded


def _passed(context: BudgetedContext, wanted: str) -> Any:
    """As Jinja names what a filter wants before its value."""
    return {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}[wanted]


def _check_replace(context: BudgetedContext, text: Any, old: Any, new: Any, *_: Any, **__: Any) -> None:
    text = str(text)
    context.require(len(text) + text.count(str(old)) * len(str(new)))


def _check_indent(context: BudgetedContext, text: Any, width: int | str = 4, *_: Any, **__: Any) -> None:
    text = str(text)
    each = width if isinstance(width, int) else len(width)
    context.require(len(text) + (len(text.splitlines()) + 1) * each)


def _listed(
    context: BudgetedContext, values: Iterable[Any], between: Any = "", *rest: Any, **_: Any
) -> tuple[Any, ...]:
    values = list(values)
    context.require(context.weigh(values) + len(values) * len(str(between)))
    return (values, between, *rest)


def _check_width(context: BudgetedContext, text: Any, width: int = 80, *_: Any, **__: Any) -> None:
    context.require(int(width))


def _check_rows(context: BudgetedContext, values: Any, count: int, fill_with: Any = None, **_: Any) -> None:
    if int(count) > _MOST_ROWS:
        raise TemplateOverrun(f"it makes more than {_MOST_ROWS:,} rows")
    context.require(int(count) * context.weigh(fill_with))


def _check_round(context: BudgetedContext, value: Any, precision: int = 0, *_: Any, **__: Any) -> None:
    if abs(precision) > _MOST_DIGITS:
        raise TemplateOverrun(f"it rounds to more than {_MOST_DIGITS} digits")


def _check_sum(context: BudgetedContext, values: Any, attribute: Any = None, start: Any = 0) -> None:
    if not isinstance(start, (int, float)):
        raise TemplateOverrun("it adds up what is not numbers")


def _check_tabs(context: BudgetedContext, text: str, size: int = 8) -> None:
    context.require(len(text) + text.count("\t") * size)


def _check_formatted(context: BudgetedContext, text: Any, *args: Any, **kwargs: Any) -> None:
    _check_percent(context, str(text), (args, kwargs))


_CHECKS: Mapping[str, Callable[..., Any]] = {
    "batch": _check_rows,
    "center": _check_width,
    "format": _check_formatted,
    "indent": _check_indent,
    "join": _listed,
    "replace": _check_replace,
    "round": _check_round,
    "slice": _check_rows,
    "sum": _check_sum,
}
_QUICK_TESTS = (
    *("boolean", "callable", "defined", "even", "false", "filter", "float", "integer", "iterable"),
    *("mapping", "none", "number", "odd", "sameas", "sequence", "string", "test", "true", "undefined"),
)


def _join(context: BudgetedContext, text: str, values: Iterable[str]) -> Sequence[Any]:
    return _listed(context, values, text)[:1]


# Methods of texts, lists, dicts and numbers; those that grow with what checks them.
_METHODS: Mapping[str, Callable[..., Any] | None] = {
    **dict.fromkeys(
        (
            *("capitalize", "casefold", "copy", "count", "endswith", "find", "get", "index", "is_integer"),
            *("items", "keys", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "rfind"),
            *("rindex", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip"),
            *("swapcase", "title", "upper", "values"),
            *(name for name in dir(str) if name.startswith("is")),
        )
    ),
    "center": _check_width,
    "expandtabs": _check_tabs,
    "join": _join,
    "ljust": _check_width,
    "replace": _check_replace,
    "rjust": _check_width,
    "zfill": _check_width,
}
_GROWING = frozenset(name for name, check in _METHODS.items() if check is not None) | {"title", "upper"}


def _checked_method(
    context: BudgetedContext, name: str, owner: Any, args: tuple[Any, ...]
) -> tuple[Any, ...]:
    if name not in _METHODS:
        raise SecurityError(f"chat templates cannot call {name}()")
    check = _METHODS[name]
    changed = None if check is None else check(context, owner, *args)
    return args if changed is None else tuple(changed)
