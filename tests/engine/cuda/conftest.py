"""What makes the GPU's engine quick enough to be interpreted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import pytest


@pytest.fixture(scope="module")
def few_programs(request: pytest.FixtureRequest) -> Iterator[None]:
    """For engines: the interpreter runs programs one after the other, so that many would keep nothing busy.

    What attention in dozens of parts and the tiles of a GPU give is tested without an engine.
    """
    if request.config.getoption("--device") == "cuda":
        yield
        return
    from python_backend.engine.cuda.kernels import adapters, decode_attention, matvec, prefill_attention

    with pytest.MonkeyPatch.context() as patch:
        for kernel in (decode_attention, prefill_attention):
            patch.setattr(kernel, "_WANTED_PROGRAMS", 2)
        patch.setattr(matvec, "_tiling", lambda *kind: matvec.MatvecTiling(64, 64, 4))
        patch.setattr(adapters, "shrink_tiling", lambda *kind: adapters.ShrinkTiling(64, 2))
        yield


@pytest.fixture(scope="session", autouse=True)
def quick_interpreter(request: pytest.FixtureRequest) -> Iterator[None]:
    """Triton-lang's interpreter does for every operation what once is enough for: a fourth of the time."""
    from triton.runtime import interpreter

    if request.config.getoption("--device") == "cuda" or not hasattr(interpreter, "_LangPatchScope"):
        yield  # nothing is interpreted, or by an older triton-lang
        return
    with pytest.MonkeyPatch.context() as patch:
        call_builtins_directly(patch, interpreter)
        exchange_back = exchange_language_once(patch, interpreter)
        look_up_dtypes_once(patch, interpreter)
        name_tuple_types_when_asked(patch)
        describe_blocks_once(patch)
        describe_tensors_once(patch)
        leave_equal_shapes_as_they_are(patch)
        compute_no_overflow_that_nobody_asserts(patch)
        convert_fp8_as_torch_does(patch, interpreter)
        yield
        exchange_back()


def exchange_language_once(patch: pytest.MonkeyPatch, interpreter: Any) -> Callable[[], None]:
    """It exchanges the whole language at each call of a function within a kernel, and back after a kernel.

    Returns what exchanges it back.
    """
    from triton import language

    exchange, seen, exchanged = interpreter._patch_lang, set[Any](), set[str]()
    scopes = list[Any]()

    def exchange_once(function: Any) -> Any:
        if function not in seen:
            modules = {
                each.__name__
                for each in function.__globals__.values()
                if each is language or each is language.core
            }
            if modules - exchanged:
                scopes.append(exchange(function))
            exchanged.update(modules)
            seen.add(function)
        return interpreter._LangPatchScope()

    def exchange_back() -> None:
        while scopes:
            scopes.pop().restore()

    patch.setattr(interpreter, "_patch_lang", exchange_once)
    return exchange_back


def call_builtins_directly(patch: pytest.MonkeyPatch, interpreter: Any) -> None:
    """Two functions between a call and what is called look through all that is given."""

    def exchange(place: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        called = getattr(member, "__wrapped__", member)

        def call(*given: Any, **named: Any) -> Any:
            named["_semantic"] = interpreter.interpreter_semantic
            return called(*given, **named)

        scope.set_attr(place, name, call)

    patch.setattr(interpreter, "_patch_attr", exchange)


def look_up_dtypes_once(patch: pytest.MonkeyPatch, interpreter: Any) -> None:
    """It makes the table of all types anew for every look."""
    find, found = interpreter._get_np_dtype, dict[str, Any]()

    def find_once(dtype: Any) -> Any:
        if dtype.name not in found:
            found[dtype.name] = find(dtype)
        return found[dtype.name]

    patch.setattr(interpreter, "_get_np_dtype", find_once)


def name_tuple_types_when_asked(patch: pytest.MonkeyPatch) -> None:
    """Each tensor has a shape, which is a tuple, whose type has a name that nobody reads."""
    from triton.language import core

    begin = core.tuple.__init__

    def begin_untyped(self: Any, args: Any, type: Any = None) -> None:
        if type is None:
            self.__dict__["values"] = list(args)
        else:
            begin(self, args, type)

    def type_of(self: Any) -> Any:
        if "type" not in self.__dict__:
            self.__dict__["type"] = core._type_for_tuple_values(self.values)
        return self.__dict__["type"]

    patch.setattr(core.tuple, "__init__", begin_untyped)
    patch.setattr(
        core.tuple, "type", property(type_of, lambda self, type: self.__dict__.update(type=type)), False
    )


def describe_blocks_once(patch: pytest.MonkeyPatch) -> None:
    """It checks and names the same few shapes for every operation."""
    from triton.language import core

    begin, begun = core.block_type.__init__, dict[Any, dict[str, Any]]()

    def begin_once(self: Any, element_ty: Any, shape: Any) -> None:
        lengths = (each.value if isinstance(each, core.constexpr) else each for each in shape)
        key = str(element_ty), *lengths
        if key not in begun:
            begin(self, element_ty, shape)
            begun[key] = dict(self.__dict__)
        self.__dict__.update(begun[key], element_ty=element_ty)

    patch.setattr(core.block_type, "__init__", begin_once)


def describe_tensors_once(patch: pytest.MonkeyPatch) -> None:
    """Each result of an operation has its shape wrapped and multiplied anew."""
    from triton.language import core

    described = dict[Any, tuple[Any, Any]]()

    def begin(self: Any, handle: Any, type: Any) -> None:
        lengths = tuple(type.shape) if type.is_block() else ()
        if lengths not in described:
            wrapped = core.tuple([core.constexpr(each) for each in lengths])
            described[lengths] = wrapped, core.constexpr(prod(lengths))
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = described[lengths]

    patch.setattr(core.tensor, "__init__", begin)


def leave_equal_shapes_as_they_are(patch: pytest.MonkeyPatch) -> None:
    """It compares them length by length, each wrapped, and most are equal."""
    from triton.language.semantic import TritonSemantic

    broadcast = TritonSemantic.broadcast_impl_value

    def broadcast_others(self: Any, lhs: Any, rhs: Any) -> Any:
        return (lhs, rhs) if lhs.shape is rhs.shape else broadcast(self, lhs, rhs)

    patch.setattr(TritonSemantic, "broadcast_impl_value", broadcast_others)


def compute_no_overflow_that_nobody_asserts(patch: pytest.MonkeyPatch) -> None:
    """It computes sums and products again in 64 bits, for an assertion that it makes in debug mode alone."""
    from triton.language.semantic import TritonSemantic
    from triton.runtime.interpreter import InterpreterOptions

    if not InterpreterOptions.debug:
        patch.setattr(
            TritonSemantic, "binary_op_sanitize_overflow_impl", lambda self, lhs, rhs, operation: None
        )


def convert_fp8_as_torch_does(patch: pytest.MonkeyPatch, interpreter: Any) -> None:
    """It halves what is rounded up to a power of two, and takes NaN for a number."""
    import torch
    from triton import language

    convert, fp8 = interpreter._convert_float, language.float8e4nv

    def convert_exactly(numbers: Any, of: Any, to: Any, rounding: Any) -> Any:
        if fp8 not in (of, to):
            return convert(numbers, of, to, rounding)
        given = torch.from_numpy(numbers)
        if to == fp8:
            return given.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
        return given.view(torch.float8_e4m3fn).to(getattr(torch, interpreter._get_np_dtype(to).name)).numpy()

    patch.setattr(interpreter, "_convert_float", convert_exactly)
