"""Models of fixed cost: one that sleeps as long as its batch takes, and embeddings of random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.safetensors_file import random_fill, write_safetensors
from python_backend.costs.batch_cost import BatchCost

MAX_BATCH = 32
_CONFIG = """
name: "%(name)s"
backend: "python"
max_batch_size: %(max_batch)d
dynamic_batching { max_queue_delay_microseconds: 0 }
instance_group [ { count: 1, kind: KIND_CPU } ]
input [ { name: "x", data_type: TYPE_FP32, dims: [ 1 ] } ]
output [ { name: "y", data_type: TYPE_FP32, dims: [ 1 ] } ]
"""
_MODEL = """
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        rows = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        time.sleep((BASE_MS + ROW_MS * sum(map(len, rows))) / 1000)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x.astype(np.float32))]) for x in rows]
"""


def write_sleeper(directory: Path, cost: BatchCost) -> Path:
    """A Triton model whose batch takes the time that `cost` says, and no processor."""
    (directory / "1").mkdir(parents=True)
    text = _MODEL.replace("BASE_MS", str(cost.base_ms)).replace("ROW_MS", str(cost.row_ms))
    (directory / "1" / "model.py").write_text(text)
    (directory / "config.pbtxt").write_text(_CONFIG % {"name": directory.name, "max_batch": MAX_BATCH})
    return directory


_LAYERS, _HIDDEN, _WIDE, _POSITIONS, _VOCABULARY = 6, 384, 1536, 512, 30522
_SPECIAL = {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102}


def write_random_minilm(directory: Path) -> Path:
    """The shape of all-MiniLM-L6-v2, whose speed does not depend on its weights: it can be had anywhere."""
    directory.mkdir(parents=True)
    config = {
        "model_type": "bert",
        "hidden_act": "gelu",
        "num_hidden_layers": _LAYERS,
        "hidden_size": _HIDDEN,
        "num_attention_heads": 12,
        "intermediate_size": _WIDE,
        "max_position_embeddings": _POSITIONS,
        "type_vocab_size": 2,
        "vocab_size": _VOCABULARY,
        "layer_norm_eps": 1e-12,
    }
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "sentence_bert_config.json").write_text('{"max_seq_length": 256, "do_lower_case": false}')
    (directory / "tokenizer.json").write_text(json.dumps(_word_pieces()))
    write_safetensors(directory / "model.safetensors", _bert_shapes(), random_fill())
    return directory


def _word_pieces() -> dict[str, Any]:
    words = {f"w{number}": number for number in range(_VOCABULARY)}
    taken = set(_SPECIAL.values())
    vocabulary = {**{word: number for word, number in words.items() if number not in taken}, **_SPECIAL}
    flags = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    around = [{"SpecialToken": {"id": token, "type_id": 0}} for token in ("[CLS]", "[SEP]")]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": token, **flags} for token, number in _SPECIAL.items()],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [around[0], {"Sequence": {"id": "A", "type_id": 0}}, around[1]],
            "pair": [around[0], {"Sequence": {"id": "A", "type_id": 0}}, around[1]],
            "special_tokens": {
                token: {"id": token, "ids": [_SPECIAL[token]], "tokens": [token]}
                for token in ("[CLS]", "[SEP]")
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocabulary,
        },
    }


def _bert_shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (_VOCABULARY, _HIDDEN),
        "embeddings.position_embeddings.weight": (_POSITIONS, _HIDDEN),
        "embeddings.token_type_embeddings.weight": (2, _HIDDEN),
        "embeddings.LayerNorm.weight": (_HIDDEN,),
        "embeddings.LayerNorm.bias": (_HIDDEN,),
    }
    parts = {f"attention.self.{name}": (_HIDDEN, _HIDDEN) for name in ("query", "key", "value")}
    parts["attention.output.dense"] = (_HIDDEN, _HIDDEN)
    parts["intermediate.dense"] = (_WIDE, _HIDDEN)
    parts["output.dense"] = (_HIDDEN, _WIDE)
    for layer in range(_LAYERS):
        of = f"encoder.layer.{layer}."
        for name, shape in parts.items():
            shapes[f"{of}{name}.weight"], shapes[f"{of}{name}.bias"] = shape, shape[:1]
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes[f"{of}{name}.weight"] = shapes[f"{of}{name}.bias"] = (_HIDDEN,)
    return shapes
