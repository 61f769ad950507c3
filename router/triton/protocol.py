"""Triton's gRPC messages, from NVIDIA's client package but without the client.

The client imports numpy, which neither a router nor a launcher needs: a tenth of a router's start, and 18 MB.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["model_config_pb2", "service_pb2", "service_pb2_grpc"]


@contextmanager
def _bare(package: str, within: str) -> Iterator[None]:
    """Meanwhile both packages have their modules, but what they import themselves is not run."""
    found = find_spec(package)
    assert found is not None
    assert found.submodule_search_locations is not None
    places = {package: Path(found.submodule_search_locations[0])}
    places[f"{package}.{within}"] = places[package] / within
    stand_ins = {name: ModuleType(name) for name in places if name not in sys.modules}
    for name, module in stand_ins.items():
        module.__path__ = [str(places[name])]
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name in stand_ins:
            del sys.modules[name]


with _bare("tritonclient", "grpc"):
    from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc
