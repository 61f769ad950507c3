"""`inflight prices`, `inflight usage` and `inflight audit`."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from client.terminal import print
from launcher.commands.administration.lookup import find_tenant, opened_administration
from launcher.commands.option_values import microdollars
from launcher.commands.options import AsJson, Config, DataDir
from launcher.commands.output import dollars, moment, show, show_json
from router.tenants.rbac import SYSTEM

if TYPE_CHECKING:
    from router.core.tenant import AuditEntry

prices = typer.Typer(no_args_is_help=True, help="Prices of a model's tokens.")


@prices.command("set")
def set_price(
    model: str,
    prompt: Annotated[float, typer.Option(min=0, help="Dollars per million prompt tokens.")],
    completion: Annotated[float, typer.Option(min=0, help="Dollars per million generated tokens.")],
    cached_prompt: Annotated[
        float | None,
        typer.Option(
            min=0, help="Dollars per million prompt tokens found in the cache. [default: as --prompt]"
        ),
    ] = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Set the price of a model's tokens from now on."""
    from router.core.tenant import Price

    cached = prompt if cached_prompt is None else cached_prompt
    with opened_administration(data_dir, config) as admin:
        price = Price(model, microdollars(prompt), microdollars(cached), microdollars(completion))
        admin.set_price(SYSTEM, price)
    amounts = f"${prompt:g} prompt, ${cached:g} cached prompt, ${completion:g} generated"
    print(f"A million tokens of {model} cost: {amounts}.")


@prices.command("delete")
def delete_price(model: str, data_dir: DataDir = None, config: Config = None) -> None:
    """Remove a price: the model's tokens cost nothing from now on."""
    with opened_administration(data_dir, config) as admin:
        admin.delete_price(SYSTEM, model)
    print(f"Tokens of {model} cost nothing.")


@prices.command("list")
def list_prices(data_dir: DataDir = None, config: Config = None) -> None:
    """All prices, in dollars per million tokens."""
    with opened_administration(data_dir, config) as admin:
        found = admin.list_prices(SYSTEM)
    rows = ((each.model, *map(dollars, (each.prompt, each.cached_prompt, each.completion))) for each in found)
    show("Dollars per million tokens", ("model", "prompt", "cached prompt", "generated"), rows)


def usage(
    tenant: Annotated[
        str | None, typer.Option(help="One tenant, by name or id. [default: all, by tenant]")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="Group by any of organisation, user, key, model, day, with commas. [default: day,model]"
        ),
    ] = None,
    since: Annotated[str | None, typer.Option(help="YYYY-MM-DD. [default: the first of this month]")] = None,
    until: Annotated[str | None, typer.Option(help="YYYY-MM-DD, included. [default: today]")] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Requests, tokens and cost by tenant, user, key, model or day."""
    from router.tenants.budget import day_of

    today = day_of(time.time())
    groups = tuple((by or ("day,model" if tenant else "organisation,day,model")).split(","))
    with opened_administration(data_dir, config) as admin:
        names = {each.id: each.name for each in admin.list_organisations(SYSTEM)}
        chosen = find_tenant(admin, tenant).id if tenant else None
        found = admin.usage(SYSTEM, chosen, groups, since or f"{today[:7]}-01", until or today)
    if as_json:
        show_json([{**dict(zip(groups, each.group, strict=True)), **asdict(each)} for each in found])
        return
    rows = (
        (*(names.get(cell, cell) for cell in each.group), f"{each.requests:,}", f"{each.prompt_tokens:,}",
         f"{each.cached_tokens:,}", f"{each.completion_tokens:,}", dollars(each.cost))
        for each in found
    )  # fmt: skip
    show("Usage", (*groups, "requests", "prompt tokens", "of them cached", "generated", "cost"), rows)


def audit(
    tenant: Annotated[str | None, typer.Option(help="Of one tenant. [default: all]")] = None,
    most: Annotated[int, typer.Option(min=1, help="Number of entries.")] = 50,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Administrative actions, done and refused, newest first."""
    with opened_administration(data_dir, config) as admin:
        found = admin.audit_log(SYSTEM, find_tenant(admin, tenant).id if tenant else None, most)
    rows = (
        (moment(each.at_s), each.actor, each.key_id, each.address, each.action, each.target, _outcome(each))
        for each in found
    )
    show("Audit log", ("when", "who", "key", "from", "what", "on", ""), rows)


def _outcome(entry: AuditEntry) -> str:
    times = entry.detail.get("times", 1)
    return "done" if entry.allowed else "REFUSED" if times == 1 else f"REFUSED {times} times"
