"""LoRA adapters: small additions to a model's weights, several of them in one batch."""
