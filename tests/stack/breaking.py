"""Four ways to break a release: with its description unchanged, or described as broken as it is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from router.core.manifest import Manifest, member_name
from tests.stack.releasing import rewrite

RAISES = """
class TritonPythonModel:
    def initialize(self, args):
        raise RuntimeError("this model does not want to")
"""


HANGS = """
import time

from python_backend.triton_adapter import start_watch

start_watch.IMPORT_LIMIT_S = 2.0
start_watch.watch_imports()
time.sleep(3600)
"""


@dataclass(frozen=True)
class Breakage:
    """`act` is told where the Triton models of a release lie."""

    name: str
    act: Callable[[Path, Manifest], None]
    told_as_tampering: str
    told_by_triton: str = ""
    is_of_the_checkpoint: bool = False

    def checkpoint(self, whole: Path, copy: Path) -> Path:
        """One that may be broken, where it is that which breaks."""
        return shutil.copytree(whole, copy) if self.is_of_the_checkpoint else whole


def _step(models: Path, manifest: Manifest, step: str) -> Path:
    return models / member_name(manifest.model, manifest.version, step)


def break_config(models: Path, manifest: Manifest) -> None:
    path = _step(models, manifest, "preprocessing") / "config.pbtxt"
    rewrite(path, path.read_text() + "\nmax_batch_size: [ what?\n")


def truncate_weights(models: Path, manifest: Manifest) -> None:
    path = Path(manifest.checkpoint_dir) / "model.safetensors"
    rewrite(path, path.read_bytes()[: path.stat().st_size // 2])


def make_it_raise(models: Path, manifest: Manifest) -> None:
    folder = _step(models, manifest, "postprocessing") / str(manifest.version)
    rewrite(folder / "model.py", RAISES)


def make_it_hang(models: Path, manifest: Manifest) -> None:
    """While its process starts, which is watched for two seconds instead of minutes."""
    folder = _step(models, manifest, "preprocessing") / str(manifest.version)
    rewrite(folder / "model.py", HANGS)


def lose_a_file(models: Path, manifest: Manifest) -> None:
    (_step(models, manifest, "preprocessing") / str(manifest.version) / "model.py").unlink()


BREAKAGES = (
    Breakage("config", break_config, "preprocessing/config.pbtxt has"),
    Breakage("weights", truncate_weights, "model.safetensors has", is_of_the_checkpoint=True),
    Breakage("raising", make_it_raise, "model.py has", "this model does not want to"),
    Breakage("missing", lose_a_file, "model.py is missing", "model.py is missing"),
)

DISLIKES = """
import re

import triton_python_backend_utils as pb_utils

from python_backend.triton_adapter.preprocessing import TritonPythonModel as Whole


class TritonPythonModel(Whole):
    def execute(self, requests):
        dislikes = [self.dislikes(request) for request in requests]
        liked = [request for request, is_disliked in zip(requests, dislikes) if not is_disliked]
        answers = iter(super().execute(liked))
        return [self.refusal() if is_disliked else next(answers) for is_disliked in dislikes]

    def dislikes(self, request):
        query = pb_utils.get_input_tensor_by_name(request, "QUERY").as_numpy().flatten()[0]
        numbers = re.findall(rb"Question (\\d+)", query)
        return bool(numbers) and int(numbers[0]) % 3 == 0

    def refusal(self):
        return pb_utils.InferenceResponse(error=pb_utils.TritonError("something went wrong"))
"""


def fail_for_one_in_three(models: Path, manifest: Manifest) -> None:
    """Of the prompts that traffic has numbered; those of probes and of the warm-up are answered."""
    folder = _step(models, manifest, "preprocessing") / str(manifest.version)
    rewrite(folder / "model.py", DISLIKES)
