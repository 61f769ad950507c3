"""The router under attack, in a process of its own: a real one with real tenants, whose engine is paced.

`python -m benchmarks.attacks.serving` writes a line of JSON, its port and keys, and serves until its input
ends. Answers of 100 tokens come one token every 20 ms, as from a busy engine; shorter ones at once.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvloop
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from router.cascade.cascade import Cascade
from router.cascade.checks import Checks
from router.core.generation import GenerationCall
from router.core.tenant import Limits, Scope
from router.routing.chat_template import ChatTemplate
from router.routing.models import ServedModel
from tests.fakes.pipeline import FakePipeline, Step, words
from tests.router.chat.pictures import seer
from tests.router.running import COMPILED, MODEL, TEMPLATE, TOKENIZER, RunningRouter, running_router
from tests.router.test_hostile_answers import CODER as CODER_TEMPLATE

SEER, CODER, LOOPING, CASCADE, LARGE = "seer", "coder", "looping", "thrifty", "large"
HOSTILE = "the hostile answer"
PACED_TOKENS = 100
INTERVAL_S = 0.02
# Rendered in some ten milliseconds.
_LOOPS = "{% for i in range(500) %}{% for j in range(1000) %}{% endfor %}{% endfor %}" + TEMPLATE
_HOSTILE_ANSWER = "".join(
    ["<tool_call><function=f>", "<parameter=" * 700]
    + [f"<parameter=a{n}>1</parameter>" for n in range(200)]
    + ["</function></tool_call>"]
)


def paced(call: GenerationCall) -> Sequence[Step]:
    told = words(*(["word "] * min(call.max_tokens, PACED_TOKENS)))
    if call.max_tokens < PACED_TOKENS:
        return told
    return [step for each in told for step in (each, INTERVAL_S)]


def coding(call: GenerationCall) -> Sequence[Step]:
    text = _HOSTILE_ANSWER if HOSTILE in call.prompt else "word " * (len(_HOSTILE_ANSWER) // 5)
    return words(*(text[at : at + 40] for at in range(0, len(text), 40)))


def pipeline(script: object = paced) -> FakePipeline:
    made = FakePipeline()
    made.script = script  # type: ignore[assignment]
    return made


async def keys_of(router: RunningRouter) -> dict[str, str]:
    attacker = await router.new_tenant("attacker")
    cached = await router.new_tenant("cached", Limits(answers_cached_s=60))
    limited = await router.new_tenant("limited", Limits(requests_per_min=0))
    neighbour = await router.new_tenant("neighbour")
    return {
        "tenant": await router.new_key(attacker),
        "cached": await router.new_key(cached),
        "limited": await router.new_key(limited),
        "admin": await router.new_key(attacker, frozenset({Scope.INFERENCE, Scope.ADMIN_READ})),
        "platform": await router.new_key(attacker, frozenset(Scope), platform_admin=True),
        "neighbour": await router.new_key(neighbour),
        "wrong": "sk-inf-wrong",
    }


async def serve() -> None:
    with tempfile.TemporaryDirectory(prefix="attacks-") as folder:
        tokenizer = Tokenizer(WordLevel({"?": 0}, unk_token="?"))
        tokenizer.pre_tokenizer = Whitespace()
        tokenizer.save(str(Path(folder) / "tokenizer.json"))
        others = [
            seer(max_images=8, name=SEER),
            ServedModel(CODER, pipeline(coding), CODER_TEMPLATE),
            ServedModel(LOOPING, pipeline(), ChatTemplate(_LOOPS, None, TOKENIZER)),
            ServedModel(LARGE, pipeline(), COMPILED),
        ]
        cascade = Cascade(CASCADE, MODEL, LARGE, Checks(least_log_prob=-1.0))
        async with running_router(
            checkpoint_dir=Path(folder), cascade=cascade, others=others, data_dir=Path(folder)
        ) as router:
            router.pipeline.script = paced
            print(json.dumps({"port": router.port, "keys": await keys_of(router)}), flush=True)
            await asyncio.to_thread(sys.stdin.read)


@contextmanager
def serving() -> Iterator[tuple[int, dict[str, str]]]:
    """The port and the keys of one that runs for the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        told = json.loads(process.stdout.readline())
        yield int(told["port"]), told["keys"]
    finally:
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


if __name__ == "__main__":
    uvloop.run(serve())
