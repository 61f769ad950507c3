"""Gives the tests one tokenizer of each kind."""

from pathlib import Path

import pytest

from python_backend.text.tokenizer import Tokenizer
from tests.text.tokenizer_kinds import TRAINED, tokenizer_of


@pytest.fixture(scope="session", autouse=True)
def default_model(default_checkpoint: Path) -> Path:
    """One of the kinds is the default model's own tokenizer."""
    return default_checkpoint


@pytest.fixture(params=[*TRAINED, "smollm2"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def tokenizer(kind: str) -> Tokenizer:
    return tokenizer_of(kind)
