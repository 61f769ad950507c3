"""TensorRT-LLM behind the contract: `tensorrt_llm.LLM`, which batches in flight itself, as a `Runtime`."""
