"""Our four models as a repository for NVIDIA's container, with the Python packages that two of them need."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from launcher.packaging.repository import CONFIG, ENGINE, read_config, write_repository
from launcher.packaging.trtllm.check import MODELS
from launcher.packaging.trtllm.findings import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

# What our preprocessing and postprocessing import; the container brings tokenizers and numpy.
PACKAGES = ("costs", "host", "text", "triton_adapter", "wire")
OWN_MODELS = ("embeddings",)


class WritingError(Exception):
    """A repository that cannot be written there."""


def write_for_nvidia(project_root: Path, into: Path, engine_dir: str, tokenizer_dir: str) -> Path:
    """Paths are those of the container. Gives the folder with the models; beside it is `python_backend`."""
    if into.exists() and any(into.iterdir()):
        raise WritingError(f"{into} is not empty")
    models = into / "models"
    parameters = {
        "preprocessing": {"tokenizer_dir": tokenizer_dir},
        "postprocessing": {"tokenizer_dir": tokenizer_dir},
        ENGINE: {
            "gpt_model_path": engine_dir,
            "tokenizer_dir": tokenizer_dir,
            "enable_chunked_context": "true",
            "normalize_log_probs": "false",
        },
    }
    write_repository(project_root / "model_repository", models, parameters, OWN_MODELS)
    write_repository(project_root / "ensembles", into / "ensembles", {})
    shutil.move(into / "ensembles" / "ensemble", models / "ensemble")
    (into / "ensembles").rmdir()
    for model in MODELS:
        (models / model / "1").mkdir(exist_ok=True)  # Triton wants a version, be it empty
    for package in PACKAGES:
        shutil.copytree(
            project_root / "python_backend" / package,
            into / "python_backend" / package,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    shutil.copy(project_root / "python_backend" / "__init__.py", into / "python_backend")
    return models


def look_for_strays(repositories: list[Path]) -> Iterator[Finding]:
    """Triton takes each folder for a model and each model for a folder with versions, or does not start."""
    for repository in repositories:
        if not repository.is_dir():
            what = f"there is no folder {repository}"
            yield Finding(repository.name, Verdict.FAILS, what, "Triton does not start without it")
            continue
        for folder in sorted(each for each in repository.iterdir() if each.is_dir()):
            if not (folder / CONFIG).is_file():
                what = f"the folder {folder} has no config.pbtxt, and Triton does not start"
                yield Finding(folder.name, Verdict.FAILS, what, "move it out of the repository")
            elif not any(each.is_dir() and each.name.isdecimal() for each in folder.iterdir()):
                what = f"the folder {folder} has no version"
                yield Finding(folder.name, Verdict.FAILS, what, f"make {folder / '1'}, be it empty")


def read_models(repositories: list[Path]) -> dict[str, Any]:
    """Every config.pbtxt of these folders, by the names of their models."""
    return {
        config.parent.name: read_config(config)
        for repository in repositories
        for config in sorted(repository.glob("*/config.pbtxt"))
    }
