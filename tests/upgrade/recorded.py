"""What the version before this one says on the wire, kept in a file so that tests need not start it.

`make upgrade` starts it, and finds out whether the file still tells the truth; it writes one that is missing.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.upgrade.versions import Version

FOLDER = Path(__file__).parent
SAID = FOLDER / "said.py"


def recorded() -> tuple[str, dict[str, Any]]:
    """The version, and what it says; the newest that there is."""
    names = [file.stem.removeprefix("recorded-") for file in FOLDER.glob("recorded-*.json")]
    newest = max(names, key=lambda name: tuple(map(int, name.split("."))))
    return newest, json.loads(file_of(newest).read_text())


def file_of(version: str) -> Path:
    return FOLDER / f"recorded-{version}.json"


def decoded(text: str) -> bytes:
    return base64.b64decode(text)


def said_by(version: Version) -> dict[str, Any]:
    """By its router."""
    done = subprocess.run(
        [sys.executable, SAID],
        cwd=version.root,
        env={**os.environ, "PYTHONPATH": str(version.root)},
        check=True,
        capture_output=True,
        text=True,
    )
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def answered_by(url: str, said: dict[str, Any]) -> dict[str, list[str]]:
    """The responses of a Triton without certificates to what its router says."""
    with grpc.insecure_channel(url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        everything = {**said["requests"], "report": said["controls"]["report"]}
        answers = {}
        for name, text in everything.items():
            request = service_pb2.ModelInferRequest.FromString(decoded(text))
            answers[name] = [_text(each) for each in stub.ModelStreamInfer(iter([request]))]
    return answers


def messages_in(said: dict[str, str]) -> dict[str, Any]:
    """To be compared: the same message may be written in several ways."""
    return {name: service_pb2.ModelInferRequest.FromString(decoded(text)) for name, text in said.items()}


def shape_of(answers: dict[str, list[str]]) -> dict[str, set[tuple[str, str]]]:
    """The tensors in them, by name and type: their values are of one run."""
    found = {}
    for name, responses in answers.items():
        messages = [service_pb2.ModelStreamInferResponse.FromString(decoded(each)) for each in responses]
        assert not [each.error_message for each in messages if each.error_message], name
        outputs = [output for each in messages for output in each.infer_response.outputs]
        found[name] = {(each.name, each.datatype) for each in outputs}
    return found


def _text(message: Any) -> str:
    return base64.b64encode(message.SerializeToString()).decode()
