"""Schemathesis: requests made of /openapi.json, thousands of them, and each answer held against it."""

# /// script
# requires-python = ">=3.11"
# dependencies = ["schemathesis==4.32.5"]
# ///

from __future__ import annotations

import os
import re

from tests.clients.uses import STACK, check, main, run, use

CASES = int(os.environ.get("INFLIGHT_CASES", "5000"))
OPERATIONS = 100  # about so many, each with as many cases
CHECKS = "not_a_server_error,content_type_conformance,response_schema_conformance"


@use("no 5xx, and nothing against its own schema")
def fuzz() -> None:
    shown = run(
        *("schemathesis", "run", f"{STACK.url}/openapi.json", "--url", STACK.url),
        *("--checks", CHECKS, "--phases", "fuzzing", "--mode", "all", "--seed", "1"),
        *("--max-examples", str(-(-CASES // OPERATIONS)), "--continue-on-failure"),
        *("-H", f"Authorization: Bearer {STACK.key}", "--request-timeout", "60"),
        timeout_s=3600,
    )
    print(shown[-2000:])
    found = re.search(r"(\d+) generated", shown)
    check(found is not None and int(found[1]) >= CASES, shown[-1000:])


if __name__ == "__main__":
    main()
