"""`inflight perplexity` without its command line: what each precision costs a model, as a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from client.screen_parts import Table
from launcher.bundle import bundled_with
from launcher.console import StackConsole
from launcher.packaging.engine_task import PERPLEXITY, run_engine_task
from launcher.packaging.models.checkpoint import resolve_checkpoint
from launcher.packaging.remote.copies import local_path
from launcher.paths import PROJECT_ROOT
from launcher.settings import Settings, engine_settings, load_settings, packed_cache_dir, refusal
from launcher.stack.stop_signals import StopSignals
from launcher.stack.up import exit_status
from python_backend.wire.parameters import DEVICES, PRECISIONS, parse_engine_parameters

if TYPE_CHECKING:
    from collections.abc import Mapping

NOTABLE_PERCENT = 3.0


def run_perplexity(
    flags: Mapping[str, object],
    config: Path | None,
    text: Path | None,
    precisions: str | None,
    console: StackConsole | None = None,
    kv_precision: str | None = None,
) -> int:
    console = console or StackConsole()
    signals = StopSignals()

    def work() -> int:
        try:
            with signals.handled(), signals.interrupting():
                rows = measure(load_settings(config, flags), text, precisions, console, kv_precision)
        except KeyboardInterrupt:
            return 128 + signals.received[0]
        report(rows, console)
        return 0

    return exit_status(console, work)


def parse_precisions(text: str, device: str) -> list[str]:
    """What some device has may pass where the engine is to choose it: the engine refuses it then."""
    wanted = [name.strip() for name in text.split(",")]
    possible = DEVICES if device == "auto" else (device,)
    allowed = list(dict.fromkeys(name for device in possible for name in PRECISIONS[device]))
    for name in wanted:
        if name not in allowed:
            raise refusal("--precision", text, f"one or more of {', '.join(allowed)}, separated by commas")
    return wanted


def measure(
    settings: Settings,
    text: Path | None,
    precisions: str | None,
    console: StackConsole,
    kv_precision: str | None = None,
) -> list[dict[str, Any]]:
    stack = settings.stack
    asked = settings.engine
    if kv_precision is not None:
        asked = engine_settings({**asked, "inflight_kv_precision": kv_precision})
    engine = parse_engine_parameters({"gpt_model_type": "V1", "gpt_model_path": "-", **asked})
    wanted = None if precisions is None else parse_precisions(precisions, engine.inflight_device)
    bundled = bundled_with(PROJECT_ROOT)
    model = local_path(stack.model, stack.data_dir, console)
    checkpoint = resolve_checkpoint(model, stack.data_dir, console, bundled=bundled)
    told = {
        "gpt_model_path": str(checkpoint.model_path),
        "tokenizer_dir": str(checkpoint.directory),
        "inflight_packed_cache_dir": packed_cache_dir(settings),
        "inflight_device": engine.inflight_device,
        "gpu_device_ids": engine.gpu,
        "precisions": wanted,
        "inflight_kv_precision": engine.inflight_kv_precision,
        "text": None if text is None else str(text.resolve()),
    }
    return run_engine_task(PERPLEXITY, told, console, "The perplexity could not be measured")


def report(rows: list[dict[str, Any]], console: StackConsole) -> None:
    table = Table("precision", "weights", "perplexity", "against fp32", "tokens", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(
            row["precision"],
            f"{row['weights_bytes'] / 1e6:,.1f} MB",
            f"{row['perplexity']:.3f}",
            f"{row['change_percent']:+.2f} %" if row["precision"] != "fp32" else "",
            f"{row['tokens']:,}",
        )
    console.show(table)
    for row in rows:
        if row["change_percent"] > NOTABLE_PERCENT:
            console.say(
                f"{row['precision']} is more than {NOTABLE_PERCENT:g} % worse than fp32 on this text: "
                "its answers may suffer."
            )
