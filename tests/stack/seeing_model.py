"""A small Idefics 3 with random weights: the default model's tokenizer with places for images.

One of the models that see whose code in vLLM works without torchvision.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

SIDE = 56
_PATCH, _SCALE = 14, 2
_TOKENS = (SIDE // _PATCH // _SCALE) ** 2  # of one image, without those around it
_VOCABULARY = 49152  # the tokenizer's; behind it are the ids of these
_IMAGE, _AROUND, _WHOLE = _VOCABULARY, _VOCABULARY + 1, _VOCABULARY + 2
_ADDED = {_IMAGE: "<image>", _AROUND: "<fake_token_around_image>", _WHOLE: "<global-img>"}
_MEAN, _DEVIATION = 0.5, 0.25
_PREPROCESSOR = {
    "image_processor_type": "Idefics3ImageProcessor",
    "do_convert_rgb": True,
    "do_resize": True,
    "size": {"longest_edge": SIDE},
    "do_image_splitting": False,
    "max_image_size": {"longest_edge": SIDE},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [_MEAN] * 3,
    "image_std": [_DEVIATION] * 3,
    "do_pad": True,
    "resample": 1,
}
_PROCESSOR = {"processor_class": "Idefics3Processor", "image_seq_len": _TOKENS}
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_seeing_model(directory: Path, tokenizer_from: Path) -> Any:
    """As it is in transformers."""
    import torch
    from transformers import Idefics3Config, Idefics3ForConditionalGeneration

    torch.manual_seed(1)
    common: dict[str, Any] = {"num_hidden_layers": 2, "initializer_range": 0.2}
    text = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": _VOCABULARY + 64,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 2048,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        **common,
    }
    vision = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 2,
        "image_size": SIDE,
        "patch_size": _PATCH,
        **common,
    }
    config = Idefics3Config(
        text_config=text, vision_config=vision, image_token_id=_IMAGE, scale_factor=_SCALE, pad_token_id=2
    )
    model: Any = Idefics3ForConditionalGeneration(config).eval()
    model.save_pretrained(directory)
    _write_tokenizer(directory, tokenizer_from)
    (directory / "preprocessor_config.json").write_text(json.dumps(_PREPROCESSOR))
    (directory / "processor_config.json").write_text(json.dumps(_PROCESSOR))
    (directory / "chat_template.jinja").write_text(_TEMPLATE)
    return model


def _write_tokenizer(directory: Path, source: Path) -> None:
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    for token_id, content in _ADDED.items():
        tokenizer["added_tokens"].append({"id": token_id, "content": content, **flags, "special": True})
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    shutil.copy(source / "tokenizer_config.json", directory / "tokenizer_config.json")


def random_picture(seed: int, side: int = SIDE) -> PIL.Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)
    return PIL.Image.fromarray(pixels)


def expanded(prompt_ids: list[int]) -> list[int]:
    """With each image's place as long as the image is."""
    shown = [_AROUND, _WHOLE, *[_IMAGE] * _TOKENS, _AROUND]
    return [each for token in prompt_ids for each in (shown if token == _IMAGE else [token])]


def greedy_ids(model: Any, prompt_ids: list[int], pictures: list[PIL.Image.Image], count: int) -> list[int]:
    """By transformers, of a prompt with one id for each picture."""
    import torch

    shown: dict[str, Any] = {}
    if pictures:
        pixels = [(np.asarray(each, np.float32) / 255 - _MEAN) / _DEVIATION for each in pictures]
        shown["pixel_values"] = torch.from_numpy(np.stack(pixels).transpose(0, 3, 1, 2)[None]).float()
    prompt = expanded(prompt_ids)
    with torch.no_grad():
        made = model.generate(
            torch.tensor([prompt]), max_new_tokens=count, min_new_tokens=count, do_sample=False, **shown
        )
    ids: list[int] = made[0, len(prompt) :].tolist()
    return ids
