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


@schemathesis.hook  # type: ignore[untyped-decorator,unused-ignore]
def map_body(context: Any, body: Any) -> Any:
    """Half of the bodies name a model that is served, and want a few tokens: those are answered."""
    if not isinstance(body, dict) or not isinstance(body.get("model"), str) or len(body["model"]) % 2:
        return body
    body["model"] = STACK.embedder if "embed" in context.operation.path else STACK.model
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
