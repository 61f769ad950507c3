"""`python -m tests.fakes.compare_tensorrt_llm`, where TensorRT-LLM is installed: the stand-in against it.

A name that only the stand-in has would let a test pass that the real package fails: that is an error. What
only the real one has is listed, for whoever wants to use it.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any

STAND_IN = Path(__file__).parent / "tensorrt_llm"
# Of the LLM API: what is given by name.
GIVEN = ("SamplingParams", "GuidedDecodingParams", "KvCacheConfig", "SchedulerConfig")
CALLED = ("generate_async", "get_stats", "get_stats_async", "get_kv_cache_capacity", "shutdown")
OF_THE_EXECUTOR = ("fetch_stats", "fetch_kv_cache_capacity", "_stats_serializer")


def names_of(thing: Any) -> set[str]:
    """Of a pydantic model, a dataclass or a function."""
    if fields := getattr(thing, "model_fields", None) or getattr(thing, "__dataclass_fields__", None):
        return set(fields)
    return set(inspect.signature(thing).parameters) - {"self", "args", "kwargs"}


def differences(
    stand_in: Any, real: Any, arguments: Any, real_arguments: Any
) -> dict[str, tuple[set[str], set[str]]]:
    """By what differs: names that only the stand-in has, and names that only the real one has."""
    pairs = {name: (getattr(stand_in, name), getattr(real, name)) for name in GIVEN}
    pairs |= {
        f"LLM.{name}": (getattr(stand_in.LLM, name), getattr(real.LLM, name))
        for name in CALLED
        if hasattr(real.LLM, name)
    }
    pairs["LLM"] = arguments, real_arguments
    found = {}
    for name, (ours, theirs) in pairs.items():
        both = names_of(ours), names_of(theirs)
        found[name] = both[0] - both[1], both[1] - both[0]
    return found


def main() -> int:
    if importlib.util.find_spec("tensorrt_llm") is None:
        print("tensorrt_llm is not installed here: there is nothing to compare with", file=sys.stderr)
        return 2
    real = importlib.import_module("tensorrt_llm.llmapi")
    real_arguments = importlib.import_module("tensorrt_llm.llmapi.llm_args").TorchLlmArgs
    worker = importlib.import_module("tensorrt_llm.executor.base_worker").BaseWorker
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorrt_llm"]:
        del sys.modules[name]
    sys.path.insert(0, str(STAND_IN))
    stand_in = importlib.import_module("tensorrt_llm.llmapi")
    arguments = importlib.import_module("tensorrt_llm.arguments").LlmArguments
    invented = 0
    for name, (only_ours, only_theirs) in differences(stand_in, real, arguments, real_arguments).items():
        invented += len(only_ours)
        print(
            f"{name}: invented {sorted(only_ours) or 'nothing'}; left out {sorted(only_theirs) or 'nothing'}"
        )
    for name in OF_THE_EXECUTOR:
        if not hasattr(worker, name):
            invented += 1
            print(f"the executor has no {name}")
    return 1 if invented else 0


if __name__ == "__main__":
    sys.exit(main())
