"""The engine's model on an NVIDIA GPU: torch for memory and matrix products, triton-lang for the rest."""
