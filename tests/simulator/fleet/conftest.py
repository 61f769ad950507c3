"""Compiling takes longer than these tests: here the same functions are interpreted."""

from __future__ import annotations

import importlib

import numba

_was_disabled = numba.config.DISABLE_JIT  # type: ignore[attr-defined]
numba.config.DISABLE_JIT = True  # type: ignore[attr-defined]
importlib.import_module("simulator.fleet.play")
numba.config.DISABLE_JIT = _was_disabled  # type: ignore[attr-defined]
