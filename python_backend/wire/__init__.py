"""The contract between router, Triton and engine: tensors, parameters and errors, each as one table."""
