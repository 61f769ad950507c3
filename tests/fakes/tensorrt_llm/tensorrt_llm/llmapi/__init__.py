"""What the real package has under this name, as far as anybody here uses it."""

from ..arguments import (
    CapacitySchedulerPolicy,
    GuidedDecodingParams,
    KvCacheConfig,
    KvCacheRetentionConfig,
    SamplingParams,
    SchedulerConfig,
)
from ..llm import LLM
from ..results import CompletionOutput, RequestError, RequestOutput

__all__ = [
    "LLM",
    "CapacitySchedulerPolicy",
    "CompletionOutput",
    "GuidedDecodingParams",
    "KvCacheConfig",
    "KvCacheRetentionConfig",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "SchedulerConfig",
]
