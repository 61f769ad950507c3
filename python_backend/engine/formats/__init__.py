"""How a checkpoint's weights are quantised, told from its configuration alone."""

from python_backend.engine.formats.scheme import READABLE, Scheme, scheme_of

__all__ = ["READABLE", "Scheme", "scheme_of"]
