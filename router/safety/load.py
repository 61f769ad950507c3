"""Builds the check that the settings name."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, cast

from router.safety.check import AllChecks
from router.safety.guard import Safety
from router.settings import SettingsError

if TYPE_CHECKING:
    from collections.abc import Collection

    from router.safety.check import Check


def load_safety(rules: str, check: str, models: Collection[str], known: Collection[str]) -> Safety | None:
    """None where nothing is to be checked; `known` are the models of this router."""
    if unknown := sorted(set(models) - set(known)):
        raise SettingsError(f"safety_models: {', '.join(unknown)}: allowed are {', '.join(sorted(known))}")
    checks: list[Check] = []
    if rules:
        # Here, so that a router without rules needs neither automaton nor patterns.
        from router.safety.rule_check import RuleCheck
        from router.safety.rules import load_rules

        checks.append(RuleCheck(load_rules(Path(rules))))
    if check:
        checks.append(_from_import_path(check))
    if not checks:
        return None
    return Safety(checks[0] if len(checks) == 1 else AllChecks(checks), models)


def _from_import_path(path: str) -> Check:
    module, colon, factory = path.partition(":")
    if not (module and colon and factory):
        raise SettingsError(f"safety_check = {path!r}: expected package.module:factory")
    try:
        made = getattr(importlib.import_module(module), factory)()
    except Exception as error:
        raise SettingsError(f"safety_check = {path!r}: {type(error).__name__}: {error}") from error
    if not callable(getattr(made, "judge", None)) or not callable(getattr(made, "reader", None)):
        raise SettingsError(f"safety_check = {path!r}: what it returns has no judge and reader")
    return cast("Check", made)
