"""`python -m benchmarks.encoders`: our encoder, in fp32 and int8, beside torch and fastembed.

The model is all-MiniLM-L6-v2 as `inflight up` has it. fastembed, which is no dependency, takes part where it
is installed, with the same weights exported by torch. All have the same texts and threads and compute each
case once in a round, so that what else runs on the machine disturbs all of them alike, in another order each
time and after a rest, so that none always follows the same; shown is the median.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from launcher.packaging.models.embeddings import ALL_MINILM
from launcher.settings import default_data_dir
from python_backend.embeddings.model import EmbeddingModel
from python_backend.host.cores import available_cores

Embed = Callable[[Sequence[str]], Any]
ROWS = (1, 8, 32, 128)
_WORDS = "the cat sat on a mat and then went home to sleep for some time in its own bed"
# Threads of some spin for a while after a call, on a core that the next contestant needs: without a rest,
# ours looked 1.5 times as slow as it is on two x86 cores.
_REST_S = 0.2
# Words of one token each, between two special ones.
LENGTHS: dict[str, Callable[[int], int]] = {
    "12 tokens": lambda row: 10,
    "256 tokens": lambda row: 254,
    "4 to 60": lambda row: 2 + row * 37 % 57,
}


def text(row: int, words: int) -> str:
    known = _WORDS.split()
    return " ".join(known[(row + place * (1 + row % 5)) % len(known)] for place in range(words))


def with_torch(path: Path, threads: int) -> Embed:
    """sentence-transformers' own steps: sorted by length, 32 rows at a time, padded to their longest."""
    import torch
    from transformers import AutoTokenizer, BertModel

    torch.set_num_threads(threads)
    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    bert: Any = BertModel.from_pretrained(path, attn_implementation="sdpa").eval()

    def embed(texts: Sequence[str]) -> Any:
        order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
        vectors = np.empty((len(texts), 384), np.float32)
        with torch.inference_mode():
            for start in range(0, len(order), 32):
                chosen = order[start : start + 32]
                batch = tokenizer(
                    [texts[index] for index in chosen],
                    padding=True, truncation=True, max_length=256, return_tensors="pt",
                )  # fmt: skip
                states = bert(**batch).last_hidden_state
                mask = batch["attention_mask"].unsqueeze(-1).float()
                pooled = (states * mask).sum(1) / mask.sum(1)
                vectors[chosen] = torch.nn.functional.normalize(pooled).numpy()
        return vectors

    return embed


@contextmanager
def with_fastembed(path: Path, threads: int) -> Iterator[Embed]:
    import torch
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType
    from transformers import BertModel

    with tempfile.TemporaryDirectory() as folder:
        for file in path.glob("*.json"):
            (Path(folder) / file.name).write_bytes(file.read_bytes())
        _write_tokenizer_config(Path(folder))
        bert: Any = BertModel.from_pretrained(path, attn_implementation="eager").eval()

        class Whole(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.bert = bert

            def forward(self, ids: Any, mask: Any, types: Any) -> Any:
                return self.bert(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state

        names = ["input_ids", "attention_mask", "token_type_ids"]
        example = tuple(torch.ones((2, 8), dtype=torch.int64) for _ in names)
        torch.onnx.export(
            Whole(), example, str(Path(folder) / "model.onnx"), input_names=names,
            output_names=["last_hidden_state"], dynamo=False, opset_version=17,
            dynamic_axes={name: {0: "rows", 1: "tokens"} for name in [*names, "last_hidden_state"]},
        )  # fmt: skip
        name = "inflight/minilm"
        TextEmbedding.add_custom_model(
            model=name, pooling=PoolingType.MEAN, normalization=True,
            sources=ModelSource(hf=name), dim=384, model_file="model.onnx",
        )  # fmt: skip
        model = TextEmbedding(name, threads=threads, specific_model_path=folder)
        yield lambda texts: np.array(list(model.embed(list(texts))))


def _write_tokenizer_config(folder: Path) -> None:
    import json

    config = {"model_max_length": 256, "pad_token": "[PAD]", "tokenizer_class": "BertTokenizer"}
    special = {
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "unk_token": "[UNK]",
        "mask_token": "[MASK]",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, **special}))
    (folder / "special_tokens_map.json").write_text(json.dumps(special))


def ours(path: Path, threads: int, precision: str = "fp32") -> Embed:
    model = EmbeddingModel.load(path, threads, precision=precision)
    return lambda texts: model.embed(model.word_pieces.encode(texts))


def compare(contestants: dict[str, Embed], rounds: int, rows: Sequence[int]) -> bool:
    """Whether ours in fp32 is at least level with the fastest of the others in each case, within a tenth."""
    met, order = True, random.Random(1)
    for length, words in LENGTHS.items():
        for count in rows:
            texts = [text(row, words(row)) for row in range(count)]
            took_ms: dict[str, list[float]] = {name: [] for name in contestants}
            most = max(3, rounds if count * words(1) < 4000 else rounds // 3)
            for attempt in range(most + 1):
                for name in order.sample(list(contestants), len(contestants)):
                    time.sleep(_REST_S)
                    began_s = time.perf_counter()
                    contestants[name](texts)
                    if attempt:  # the first one allocates
                        took_ms[name].append(1000 * (time.perf_counter() - began_s))
            medians = {name: median(each) for name, each in took_ms.items()}
            others = [took for name, took in medians.items() if not name.startswith("ours")]
            ratio, in_int8 = (min(others) / medians[name] for name in ("ours", "ours int8"))
            met &= ratio >= 0.9
            shown = "  ".join(f"{name} {took:8.1f}" for name, took in medians.items())
            ratios = f"fastest other / ours {ratio:.2f}, int8 {in_int8:.2f}"
            print(f"{length:>10} {count:4} rows, ms: {shown}   {ratios}", flush=True)
    return met


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.encoders")
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    asked = parser.parse_args()
    path = default_data_dir() / "models" / ALL_MINILM.name
    if not path.is_dir():
        sys.exit(f"{path} was not found: run `inflight up` once")
    rows = [int(each) for each in asked.rows.split(",")]
    contestants = {
        "ours": ours(path, asked.threads),
        "ours int8": ours(path, asked.threads, "int8"),
        "torch": with_torch(path, asked.threads),
    }
    texts = [text(row, 3 + 9 * row) for row in range(20)]
    exact = contestants["torch"](texts)
    try:
        with with_fastembed(path, asked.threads) as fastembed:
            _agree(contestants | {"fastembed": fastembed}, texts, exact)
            met = compare(contestants | {"fastembed": fastembed}, asked.rounds, rows)
    except ImportError:
        print("fastembed is not installed, and is left out")
        _agree(contestants, texts, exact)
        met = compare(contestants, asked.rounds, rows)
    sys.exit(0 if met else "another library is faster")


def _agree(contestants: dict[str, Embed], texts: Sequence[str], exact: Any) -> None:
    """That all compute the same: the least cosine to torch, and the largest difference of a value."""
    for name, embed in contestants.items():
        vectors = embed(texts)
        cosine, difference = (vectors * exact).sum(1).min(), np.abs(vectors - exact).max()
        print(f"{name}: cosine to torch at least {cosine:.6f}, values differ by at most {difference:.1e}")


if __name__ == "__main__":
    main()
