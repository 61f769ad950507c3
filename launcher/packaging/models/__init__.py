"""Where model checkpoints come from: fetched once, or a directory or GGUF file the user already has."""
