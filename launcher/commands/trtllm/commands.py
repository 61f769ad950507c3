"""`inflight trtllm build`, `repository` and `check`."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from client.terminal import print
from launcher.packaging.trtllm.build_plan import SOURCE, BuildError, BuildPlan
from launcher.packaging.trtllm.build_plan import commands as build_commands
from launcher.packaging.trtllm.edition import EDITIONS, NEWEST, Edition
from launcher.paths import PROJECT_ROOT

EditionName = Annotated[
    str, typer.Option("--edition", help=f"NVIDIA's container: {', '.join(EDITIONS)}.", show_default=True)
]


def build(
    checkpoint: Annotated[Path, typer.Argument(help="A Hugging Face checkpoint.")],
    out: Annotated[Path, typer.Option(help="Where the engine is written: OUT/engine.")],
    examples: Annotated[
        Path, typer.Option(help="`examples` of TensorRT-LLM's source, of the edition's version.")
    ] = Path("TensorRT-LLM/examples"),
    dtype: Annotated[str, typer.Option(help="auto, float16, bfloat16 or float32.")] = "auto",
    gpus: Annotated[int, typer.Option(min=1, help="Tensor parallelism.")] = 1,
    max_batch_size: Annotated[int, typer.Option(min=1, help="Sequences in flight.")] = 256,
    max_num_tokens: Annotated[int, typer.Option(min=1, help="Tokens of one step.")] = 8192,
    max_seq_len: Annotated[int | None, typer.Option(min=2, help="[default: the model's own]")] = None,
    gather_logits: Annotated[bool, typer.Option(help="Allow requests for logits.")] = False,
    edition: EditionName = NEWEST.name,
    run: Annotated[bool, typer.Option("--run", help="Run the commands as well as print them.")] = False,
) -> None:
    """Print the commands that build an engine for NVIDIA's C++ backend, to be run in its container.

    An engine serves GPUs of the kind it was built on, and the version of TensorRT-LLM that built it.
    """
    chosen = _edition(edition)
    plan = BuildPlan(
        *(checkpoint, out, examples, dtype, gpus),
        *(max_batch_size, max_num_tokens, max_seq_len, gather_logits),
    )
    try:
        lines = build_commands(plan)
    except BuildError as error:
        _refuse(str(error))
    print(f"# In {chosen.image}, with a GPU of the kind that will serve.")
    if not examples.is_dir():
        clone = ["git", "clone", "--depth", "1", "--branch", f"v{chosen.tensorrt_llm}", SOURCE]
        print(f"{shlex.join(clone)}  # for --examples")
    for line in lines:
        print(shlex.join(line))
        if run and (status := _run(line)):
            raise typer.Exit(status)


def repository(
    engine_dir: Annotated[str, typer.Option(help="The engine's folder in the container.")],
    tokenizer_dir: Annotated[str, typer.Option(help="The checkpoint's folder in the container.")],
    out: Annotated[Path, typer.Option(help="A new folder: OUT/models and OUT/python_backend.")],
    edition: EditionName = NEWEST.name,
) -> None:
    """Write our four models for NVIDIA's container, and print how to start it with them."""
    from launcher.packaging.repository import RepositoryError
    from launcher.packaging.trtllm.repository import WritingError, write_for_nvidia

    chosen = _edition(edition)
    try:
        models = write_for_nvidia(PROJECT_ROOT, out, engine_dir, tokenizer_dir)
    except (WritingError, RepositoryError, OSError) as error:
        _refuse(str(error))
    mount = f"{out.absolute()}:/inflight:ro"
    start = ["docker", "run", "--rm", "--gpus", "all", "--shm-size", "1g", "-v", mount]
    start += ["-v", f"{engine_dir}:{engine_dir}:ro", "-v", f"{tokenizer_dir}:{tokenizer_dir}:ro"]
    start += ["-e", "PYTHONPATH=/inflight", "-p", "8001:8001", "-p", "8002:8002", chosen.image]
    start += ["tritonserver", "--model-repository", "/inflight/models"]
    print(f"{models} is written. To serve it:\n{shlex.join(start)}")


def check(
    repositories: Annotated[list[Path], typer.Argument(metavar="REPOSITORY...", help="Folders with models.")],
    edition: EditionName = NEWEST.name,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Check the configs of a model repository against the contract of NVIDIA's C++ backend.

    Nothing needs to be running, and no GPU is needed. The exit status is 1 when something will fail.
    """
    from launcher.packaging.repository import ENGINE, RepositoryError
    from launcher.packaging.trtllm.check import check_models
    from launcher.packaging.trtllm.engines import check_engine_dir
    from launcher.packaging.trtllm.findings import by_weight, is_fit
    from launcher.packaging.trtllm.repository import look_for_strays, read_models

    chosen = _edition(edition)
    try:
        models = read_models(repositories)
    except RepositoryError as error:
        _refuse(str(error))
    if not models:
        _refuse(f"there is no model in {', '.join(map(str, repositories))}")
    findings = [*look_for_strays(repositories), *check_models(models, chosen)]
    if ENGINE in models and (path := models[ENGINE].parameters["gpt_model_path"].string_value):
        findings += check_engine_dir(Path(path), chosen)
    findings = by_weight(findings)
    if as_json:
        print(json.dumps({"is_fit": is_fit(findings), "findings": [asdict(each) for each in findings]}))
    else:
        for finding in findings:
            print(f"{finding.model}: {finding.verdict.value}: {finding.what}")
            print(f"  {finding.remedy}")
        _say_verdict(is_fit(findings), len(models), chosen)
    raise typer.Exit(0 if is_fit(findings) else 1)


def _say_verdict(fit: bool, models: int, edition: Edition) -> None:
    verdict = "serve" if fit else "not serve"
    print(f"{edition.name} (TensorRT-LLM {edition.tensorrt_llm}) would {verdict} these {models} models.")


def _edition(name: str) -> Edition:
    if name not in EDITIONS:
        _refuse(f"--edition is {name!r}; allowed: {', '.join(EDITIONS)}")
    return EDITIONS[name]


def _refuse(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    raise typer.Exit(2)


def _run(line: list[str]) -> int:
    try:
        return subprocess.run(line, check=False).returncode
    except FileNotFoundError:
        _refuse(f"{line[0]} is not installed here: run these commands in NVIDIA's container")
