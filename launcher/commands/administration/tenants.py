"""`inflight tenants`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from client.terminal import confirm, print
from launcher.commands.administration.lookup import find_key, find_tenant, opened_administration
from launcher.commands.installation import open_installation
from launcher.commands.option_values import microdollars
from launcher.commands.options import AsJson, Config, DataDir
from launcher.commands.output import dollars, moment, show, show_json
from router.tenants.rbac import SYSTEM

if TYPE_CHECKING:
    from router.core.tenant import Limits

_LIMITS = ("requests/min", "tokens/min", "at once", "budget a month", "weight", "most slots", "cached for")
_UNSET = ("none", "none", "none", "none", "1", "100 %", "-")
tenants = typer.Typer(
    no_args_is_help=True, help="Organisations that use the models: create, limit, export, delete."
)


@tenants.command("create")
def create_tenant(name: str, data_dir: DataDir = None, config: Config = None) -> None:
    """Create a tenant; then create its first key with `inflight keys create`."""
    with opened_administration(data_dir, config) as admin:
        made = admin.create_organisation(SYSTEM, name)
    print(f"Tenant {made.name} has the id {made.id}.")
    print(f"A key for it: inflight keys create NAME --tenant {made.name}")


@tenants.command("list")
def list_tenants(as_json: AsJson = False, data_dir: DataDir = None, config: Config = None) -> None:
    """List tenants with their limits."""
    from router.core.tenant import NO_LIMITS

    with opened_administration(data_dir, config) as admin:
        found = [
            (each, admin.list_limits(SYSTEM, each.id).get(each.id, NO_LIMITS))
            for each in admin.list_organisations(SYSTEM)
        ]
    if as_json:
        show_json([{**asdict(each), "limits": asdict(limits)} for each, limits in found])
        return
    show(
        "Tenants",
        ("tenant", "id", "made", *_LIMITS),
        ((each.name, each.id, moment(each.created_s), *limit_cells(limits)) for each, limits in found),
    )


def limit_cells(limits: Limits) -> tuple[object, ...]:
    budget = dollars(limits.monthly_budget)
    if budget and not limits.budget_is_hard:
        budget += " (soft)"
    slots = None if limits.slot_percent is None else f"{limits.slot_percent} %"
    cached = None if limits.answers_cached_s is None else f"{limits.answers_cached_s} s"
    rates = (limits.requests_per_min, limits.tokens_per_min, limits.concurrent_requests)
    return *rates, budget, limits.weight, slots, cached


@tenants.command("limit")
def limit_tenant(
    tenant: str,
    key: Annotated[str | None, typer.Option(help="Limit one key of the tenant instead.")] = None,
    requests_per_min: Annotated[int | None, typer.Option(min=0, metavar="N")] = None,
    request_burst: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="[default: one minute's worth]")
    ] = None,
    tokens_per_min: Annotated[int | None, typer.Option(min=0, metavar="N")] = None,
    token_burst: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="[default: one minute's worth]")
    ] = None,
    concurrent_requests: Annotated[int | None, typer.Option(min=0, metavar="N")] = None,
    monthly_budget: Annotated[float | None, typer.Option(min=0, metavar="N", help="In dollars.")] = None,
    soft: Annotated[
        bool, typer.Option(help="Only report when the budget is exceeded; refuse nothing.")
    ] = False,
    weight: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1000,
            metavar="N",
            help="Its weight in fair sharing with other tenants. [default: 1]",
        ),
    ] = None,
    slot_percent: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=100,
            metavar="N",
            help="The most of a model's batch slots that it may hold. [default: 100]",
        ),
    ] = None,
    answers_cached_s: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=30 * 86400,
            metavar="N",
            help="How long its answers may be cached, for requests with Cache-Control: max-age. "
            "[default: not at all]",
        ),
    ] = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Replace all limits of a tenant or of a key; what is left out becomes unlimited."""
    from router.core.tenant import Limits

    with opened_administration(data_dir, config) as admin:
        budget = None if monthly_budget is None else microdollars(monthly_budget)
        limits = Limits(
            requests_per_min,
            request_burst,
            tokens_per_min,
            token_burst,
            concurrent_requests,
            budget,
            not soft,
            weight,
            slot_percent,
            answers_cached_s,
        )
        found = find_tenant(admin, tenant)
        key_id = None if key is None else find_key(admin, key).id
        admin.set_limits(SYSTEM, found.id, limits, key_id)
    whose = f"key {key}" if key else f"tenant {found.name}"
    show(
        f"Limits of {whose}",
        _LIMITS,
        [
            [
                unset if cell in (None, "") else cell
                for cell, unset in zip(limit_cells(limits), _UNSET, strict=True)
            ]
        ],
    )


@tenants.command("export")
def export_tenant(
    tenant: str,
    files: Annotated[
        Path | None,
        typer.Option(help="Also write the content of its files into this new directory, named by id."),
    ] = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Print everything stored about a tenant as JSON."""
    with opened_administration(data_dir, config) as admin:
        found = find_tenant(admin, tenant)
        if files is not None:
            files.mkdir(parents=True)
            admin.export_files(SYSTEM, found.id, lambda file_id, data: _append(files / file_id, data))
        show_json(admin.export_organisation(SYSTEM, found.id))


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


@tenants.command("delete")
def delete_tenant(
    tenant: str,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Delete a tenant, its keys and everything it stored; its usage and the audit log stay."""
    from router.telemetry.prompt_log import delete_prompts

    with open_installation(data_dir, config) as installation:
        admin = installation.administration
        found = find_tenant(admin, tenant)
        if not yes:
            confirm(f"Delete {found.name} ({found.id}) and everything it stored?")
        admin.delete_organisation(SYSTEM, found.id)
        if prompt_log := installation.settings.router.get("prompt_log_dir"):
            delete_prompts(Path(prompt_log), found.id)
    print(f"{found.name} is deleted; its keys stop working within a second.")
