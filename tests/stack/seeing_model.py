"""A small Llava with random weights: the default model's tokenizer with a place for images before it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

IMAGE = "<image>"
SIDE = 56
PATCHES = (SIDE // 14) ** 2  # each a token of its image
_VOCABULARY = 49152  # the tokenizer's, and behind it the id of a place for images
_PREPROCESSOR = {
    "image_processor_type": "CLIPImageProcessor",
    "do_convert_rgb": True,
    "do_resize": True,
    "size": {"shortest_edge": SIDE},
    "do_center_crop": True,
    "crop_size": {"height": SIDE, "width": SIDE},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.25, 0.25, 0.25],
    "resample": 3,
}
_PROCESSOR = {
    "processor_class": "LlavaProcessor",
    "image_token": IMAGE,
    "patch_size": 14,
    "num_additional_image_tokens": 1,
    "vision_feature_select_strategy": "default",
}
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_seeing_model(directory: Path, tokenizer_from: Path) -> Any:
    """As it is in transformers."""
    import torch
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    torch.manual_seed(1)
    common: dict[str, Any] = {"num_hidden_layers": 2, "initializer_range": 0.2}
    text = LlamaConfig(
        vocab_size=_VOCABULARY + 64,
        hidden_size=128,
        intermediate_size=256,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        bos_token_id=1,
        eos_token_id=2,
        **common,
    )
    vision = CLIPVisionConfig(
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=2,
        image_size=SIDE,
        patch_size=14,
        projection_dim=64,
        **common,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=_VOCABULARY,
        vision_feature_layer=-1,
        image_seq_length=PATCHES,
    )
    model: Any = LlavaForConditionalGeneration(config).eval()
    model.save_pretrained(directory)
    _write_tokenizer(directory, tokenizer_from)
    (directory / "preprocessor_config.json").write_text(json.dumps(_PREPROCESSOR))
    (directory / "processor_config.json").write_text(json.dumps(_PROCESSOR))
    (directory / "chat_template.jinja").write_text(_TEMPLATE)
    return model


def _write_tokenizer(directory: Path, source: Path) -> None:
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer["added_tokens"].append({"id": _VOCABULARY, "content": IMAGE, **flags, "special": True})
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    shutil.copy(source / "tokenizer_config.json", directory / "tokenizer_config.json")


def random_picture(seed: int) -> PIL.Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    return PIL.Image.fromarray(pixels)


def expanded(prompt_ids: list[int]) -> list[int]:
    return [each for token in prompt_ids for each in [token] * (PATCHES if token == _VOCABULARY else 1)]


def greedy_ids(model: Any, prompt_ids: list[int], pictures: list[PIL.Image.Image], count: int) -> list[int]:
    """By transformers, of a prompt with one id for each picture."""
    import torch

    shown: dict[str, Any] = {}
    if pictures:
        mean, std = np.float32(0.5), np.float32(0.25)
        arrays = [(np.asarray(each, np.float32) / 255 - mean) / std for each in pictures]
        shown["pixel_values"] = torch.from_numpy(np.stack(arrays).transpose(0, 3, 1, 2))
    prompt = expanded(prompt_ids)
    with torch.no_grad():
        made = model.generate(
            torch.tensor([prompt]), max_new_tokens=count, min_new_tokens=count, do_sample=False, **shown
        )
    ids: list[int] = made[0, len(prompt) :].tolist()
    return ids
