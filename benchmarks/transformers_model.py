"""The model of a checkpoint as transformers runs it in fp32, also where the checkpoint is a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.initialization import no_init_weights

from python_backend.engine.checkpoint import Checkpoint


def load_in_transformers(path: str | Path) -> Any:
    """transformers itself reads GGUF only with a package more, and in many seconds; here the engine reads."""
    checkpoint = Checkpoint(path)
    (architecture,) = checkpoint.architectures
    configuration = getattr(transformers, architecture.replace("ForCausalLM", "Config"))
    with no_init_weights():  # by chance, which takes longest
        model = getattr(transformers, architecture)(configuration(**checkpoint.config))
    model.tie_weights()
    model = model.to(torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(checkpoint.tensor(name, *parameter.shape)))
    return model
