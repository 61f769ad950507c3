"""Which files may come from an address."""

from __future__ import annotations

import pytest

from launcher.packaging.remote.data_files import is_data
from launcher.packaging.remote.source import RemoteFile, SourceError

DATA = """
model.safetensors model-00001-of-00002.safetensors model.safetensors.index.json q4.gguf Model.GGUF
onnx/model.onnx onnx/model.onnx_data model.onnx.data model.onnx_data_1 config.json 1_Pooling/config.json
tokenizer.json tokenizer.model tokenizer.model.v3 spiece.model sentencepiece.bpe.model qwen.tiktoken vocab.txt
merges.txt chat_template.jinja additional_chat_templates/tools.jinja adapter_config.json
adapter_model.safetensors
"""
OTHER = """
config.pbtxt CONFIG.PBTXT 1/model.py 1/MODEL.PY 1/libtriton_evil.so 1/LIBTRITON_EVIL.SO libops.so.1 x.pkl
x.PICKLE pytorch_model.bin model.pt model.pth model.ckpt model.plan model.engine x.sh x setup.cfg
.gitattributes README.md model.tar model.tar.gz model.zip x.whl model.json.py config.json.so json .json~
model.keras model.h5 tf_model.msgpack evil.model x.txt onnx json.so/x safetensors.exe x.jinja2 x.yaml
"""


@pytest.mark.parametrize("name", DATA.split())
def test_data_may_come_from_an_address(name: str) -> None:
    assert is_data(name)


@pytest.mark.parametrize("name", OTHER.split())
def test_nothing_else_may(name: str) -> None:
    assert not is_data(name)


@pytest.mark.parametrize(
    "name", ["../a.json", "/a.json", "a/../../b.json", "a\\b.json", "a\nb.json", "a\0.json"]
)
def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(SourceError, match="the source has a file"):
        RemoteFile(name, 1)
