"""Schemathesis: requests made of /openapi.json, thousands of them, and each answer held against it."""

# /// script
# requires-python = ">=3.11"
# dependencies = ["schemathesis==4.32.5"]
# ///

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

import schemathesis

from tests.clients.uses import STACK, check, main, run, use

CASES = int(os.environ.get("INFLIGHT_CASES", "5000"))
_OPERATIONS = 35  # those that take as many as they are given; others have no input to vary
CHECKS = "not_a_server_error,content_type_conformance,response_schema_conformance"
# Or nothing but names that do not exist would be asked.
EXISTING = f"""
[parameters]
"path.name" = "{STACK.model}"
"path.id" = "{STACK.model}"
"path.version" = "1"
"""
_FEW = 4
_LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
# Where an answer is as long as the context unless the body says otherwise.
_UNLIMITED = {"/v1/chat/completions": "max_tokens", "/v1/responses": "max_output_tokens"}
_OLLAMAS = ("/api/chat", "/api/generate")


@schemathesis.hook  # type: ignore[untyped-decorator,unused-ignore]
def map_body(context: Any, body: Any) -> Any:
    """Half of the bodies that name a model name one that is served; answers have a few tokens."""
    if not isinstance(body, dict):
        return body
    path = context.operation.path
    if isinstance(body.get("model"), str) and len(body["model"]) % 2 == 0:
        body["model"] = STACK.embedder if "embed" in path else STACK.model
    if path in _UNLIMITED and not any(body.get(name) for name in _LENGTHS):
        body[_UNLIMITED[path]] = _FEW
    if path in _OLLAMAS and body.get("options") is None:
        body["options"] = {"num_predict": _FEW}
    for name in _LENGTHS:
        if type(body.get(name)) is int:
            body[name] = min(body[name], _FEW)
    return body


@use("no 5xx, and nothing against its own schema")
def fuzz() -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "schemathesis.toml"
        config.write_text(EXISTING)
        shown = run(
            *("schemathesis", "--config-file", str(config), "run", f"{STACK.url}/openapi.json"),
            *("--url", STACK.url, "-H", f"Authorization: Bearer {STACK.key}", "--request-timeout", "60"),
            *("--checks", CHECKS, "--phases", "fuzzing", "--mode", "all", "--seed", "1"),
            *("--max-examples", str(-(-CASES // _OPERATIONS)), "--continue-on-failure", "--no-color"),
            # Making up a body of many kinds of items takes a while, the more so on a busy machine.
            *("--suppress-health-check", "too_slow"),
            # It would make keys and take releases away; tests/router/test_fuzz.py has a router to lose.
            *("--exclude-path-regex", "^/admin"),
            timeout_s=3600,
            folder=folder,
            SCHEMATHESIS_HOOKS="tests.clients.schemathesis_client",
        )
    print(shown[-2000:])
    found = re.search(r"(\d+) generated", shown)
    check(found is not None and int(found[1]) >= CASES, shown[-1000:])


if __name__ == "__main__":
    main()
