"""GGUF files as both the engine and the launcher read them."""
