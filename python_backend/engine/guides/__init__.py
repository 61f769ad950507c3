"""Structured output: which tokens may come next, so that an answer is a word of the language asked for."""

from python_backend.engine.guides.compiler import GuideCompiler
from python_backend.engine.guides.limits import GuideLimits
from python_backend.engine.guides.state import GuideState

__all__ = ["GuideCompiler", "GuideLimits", "GuideState"]
