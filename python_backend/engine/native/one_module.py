"""How the step is compiled: all of its functions as one module of LLVM, optimised and translated once.

numba does that for every function and again for everything it calls, although only the step itself is called
from Python. Here a function waits, as it was lowered, until someone asks for an address in it; whoever
is asked for one takes in all that it calls. It is the same code in half the time.
"""

from __future__ import annotations

from typing import Any, cast

from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.registry import cpu_target


class _Library(JITCodeLibrary):
    """One function; its `_linking_libraries` are those it calls."""

    _is_whole = False

    def finalize(self) -> None:
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        if not self._is_whole:
            if all(function.name != name for function in self.get_defined_functions()):
                return 0
            self._take_in_all_that_is_called()
        address: int = super().get_pointer_to_function(name)
        return address

    def serialize_using_object_code(self) -> Any:
        """To be kept: also of a function that nobody calls from Python."""
        if not self._is_whole:
            self._take_in_all_that_is_called()
        return super().serialize_using_object_code()

    def _take_in_all_that_is_called(self) -> None:
        self._linking_libraries = self._called()
        self._finalized = False
        super().finalize()
        cast("_Codegen", self._codegen).set_waiting_environments()

    def _finalize_final_module(self) -> None:
        """Also called for what comes from the cache of kernels."""
        self._is_whole = True
        super()._finalize_final_module()

    def _called(self) -> list[Any]:
        """By this function, by those it calls, and so on."""
        found, left = dict.fromkeys([self]), [self]
        while left:
            new = [each for each in left.pop()._linking_libraries if each not in found]
            found |= dict.fromkeys(new)
            left += new
        return [each for each in found if each is not self]

    def _optimize_functions(self, module: Any) -> None:
        """Left to the passes over the whole."""
        module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        # numba runs others before these to find references it need not count; here none are counted.
        passes, builder = self._codegen._module_pass_manager()
        passes.run(self._final_module, builder)


class _Codegen(JITCPUCodegen):
    _library_class = _Library
    _waiting: tuple[tuple[str, Any], ...] = ()

    def set_env(self, name: str, environment: Any) -> None:
        """An environment is what a function raises errors with; it has a place once the function has."""
        if self._engine.get_global_value_address(name):
            super().set_env(name, environment)
        else:
            self._waiting = (*self._waiting, (name, environment))

    def set_waiting_environments(self) -> None:
        waiting, self._waiting = self._waiting, ()
        for name, environment in waiting:
            self.set_env(name, environment)


def compile_as_one() -> None:
    """For all that this process compiles from now on."""
    cpu_target.target_context.codegen().__class__ = _Codegen
