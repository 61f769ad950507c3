"""vLLM behind the contract: its `AsyncLLM`, whose core is a process of its own, as a `Runtime`."""
