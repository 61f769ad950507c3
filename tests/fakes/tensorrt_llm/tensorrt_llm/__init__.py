"""A stand-in for TensorRT-LLM: the published signatures of its LLM API, and our own engine behind them.

Names, defaults and types are those of `tests/unittest/api_stability/references` and of
`llmapi/llm_args.py`, `sampling_params.py` and `executor/result.py` in NVIDIA/TensorRT-LLM, between 1.2 and
1.3 (commits ea35fd67, a98a9061, a678b91a). What they do not know is refused, as the real one refuses it.
"""

from .llmapi import LLM, SamplingParams

__version__ = "1.3.0"
__all__ = ["LLM", "SamplingParams", "__version__"]
