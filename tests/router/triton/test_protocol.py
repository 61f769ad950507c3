"""Triton's messages come from NVIDIA's client package, whose client a router does not load."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["router.server", "launcher.stack.triton_server"])
def test_neither_router_nor_launcher_loads_numpy_or_the_other_databases_dialect(module: str) -> None:
    program = f"""
import sys
import {module}
print(sorted({{"numpy", "sqlalchemy.dialects.postgresql", "tritonclient.grpc"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("first", ["tritonclient.grpc", "router.triton.protocol"])
def test_nvidias_client_works_beside_it_with_the_same_messages(first: str) -> None:
    program = f"""
import {first}
import tritonclient.grpc.aio
from router.triton.protocol import service_pb2
from tritonclient.grpc import InferInput, service_pb2 as of_the_client
print(service_pb2 is of_the_client, InferInput("x", [1], "INT32").name())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "True x\n"
