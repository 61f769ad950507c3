"""Whether an answer is JSON of a given form."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any


def fault_of_schema(schema: object) -> str | None:
    """Why it is no JSON schema, in a sentence; None where it is one."""
    from jsonschema.exceptions import SchemaError  # takes a while, and few need it

    if not isinstance(schema, dict | bool):
        return "a JSON schema has to be an object"
    try:
        _validator_class(schema).check_schema(schema)
    except SchemaError as error:
        return f"{error.json_path}: {error.message}"
    except RecursionError:
        return "it is nested too deeply"
    return None


def fault_of_answer(text: str, schema: dict[str, Any] | bool) -> str | None:
    """Why a text is not JSON that is valid against the schema; None where it is."""
    from jsonschema.exceptions import ValidationError
    from referencing.exceptions import Unresolvable

    try:
        _validator(json.dumps(schema)).validate(json.loads(text))
    except ValidationError as error:
        return f"{error.json_path}: {error.message}"
    except ValueError as error:
        return f"it is not JSON: {error}"
    except RecursionError:
        return "it is nested too deeply"
    except Unresolvable as error:
        return f"the schema has a reference that cannot be resolved: {error}"
    return None


@lru_cache(maxsize=256)
def _validator(schema: str) -> Any:
    from referencing import Registry

    read = json.loads(schema)
    # An empty registry: what a schema refers to is in itself, and is not fetched from anywhere.
    return _validator_class(read)(read, registry=Registry())


def _validator_class(schema: dict[str, Any] | bool) -> Any:
    from jsonschema.validators import Draft202012Validator, validator_for

    return validator_for(schema, default=Draft202012Validator)
