"""Gives the tests one tokenizer of each kind."""

import pytest

from python_backend.text.tokenizer import Tokenizer
from tests.text.tokenizer_kinds import TRAINED, smollm2_directory, tokenizer_of


@pytest.fixture(params=[*TRAINED, "smollm2"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "smollm2" and not (smollm2_directory() / "tokenizer.json").is_file():
        pytest.skip("the default model has not been fetched yet")
    return name


@pytest.fixture
def tokenizer(kind: str) -> Tokenizer:
    return tokenizer_of(kind)
