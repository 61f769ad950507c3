"""What runtimes share whose package schedules and computes by itself: TensorRT-LLM and vLLM."""
