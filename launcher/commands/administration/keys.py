"""`inflight keys`: create, list, rotate, revoke."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from client.terminal import print
from launcher.commands.administration.lookup import find_key, find_tenant, opened_administration
from launcher.commands.option_values import long_duration_s, one_of
from launcher.commands.options import AsJson, Config, DataDir
from launcher.commands.output import moment, show, show_json
from router.tenants.rbac import SYSTEM

if TYPE_CHECKING:
    from router.core.tenant import ApiKey, Role, User
    from router.tenants.administration import Administration

LOCAL = "local"

keys = typer.Typer(no_args_is_help=True, help="API keys: create, list, rotate, revoke.")


@keys.command("create")
def create_key(
    name: str,
    tenant: Annotated[str, typer.Option(help="Name or id of the tenant.")] = LOCAL,
    user: Annotated[str, typer.Option(help="The key's user; created if missing.")] = "owner",
    role: Annotated[
        str | None,
        typer.Option(help="Role of a new user: owner, admin, member or viewer. [default: owner]"),
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="inference, embeddings, files, usage:read, releases:pin, admin:read, admin:write or "
            "metrics:read; may be repeated. [default: the first four]"
        ),
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Allow only this model; may be repeated. [default: all]")
    ] = None,
    expires: Annotated[str | None, typer.Option(help="Lifetime: 12h, 90d. [default: never expires]")] = None,
    platform_admin: Annotated[
        bool, typer.Option(help="Create a platform admin: it administers all tenants and has all scopes.")
    ] = False,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Create a key and show it, this once. After the first key, every request needs one."""
    from router.core.tenant import Role, Scope
    from router.tenants.administration import DEFAULT_SCOPES

    scopes = frozenset(Scope) if platform_admin else DEFAULT_SCOPES
    with opened_administration(data_dir, config) as admin:
        if scope:
            scopes = frozenset(one_of(Scope, each) for each in scope)
        found = find_tenant(admin, tenant)
        wanted = None if role is None else one_of(Role, role)
        expires_s = None if expires is None else time.time() + long_duration_s("--expires", expires)
        models = frozenset(model) if model else None
        holder = _holder(admin, found.id, user, wanted, platform_admin)
        key, text = admin.create_key(SYSTEM, found.id, holder.id, name, scopes, models, expires_s)
    print(text)
    print(
        f"Key {key.id} of {holder.name} at {found.name}; it is not shown again. "
        "Clients send it as: Authorization: Bearer KEY",
        file=sys.stderr,
    )


def _holder(
    admin: Administration, tenant_id: str, name: str, role: Role | None, platform_admin: bool
) -> User:
    """The user of this name, created if missing; an existing one is never changed."""
    from router.core.tenant import Role

    there = {each.name: each for each in admin.list_users(SYSTEM, tenant_id)}
    if name not in there:
        return admin.create_user(SYSTEM, tenant_id, name, role or Role.OWNER, platform_admin)
    user = there[name]
    if role not in (None, user.role) or (platform_admin and not user.platform_admin):
        kind = "platform admin" if user.platform_admin else "no platform admin"
        raise ValueError(
            f"the user {name} already exists, as {user.role.value} and {kind}; choose another --user"
        )
    return user


@keys.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="[default: all]")] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """List keys by prefix, without their secrets."""
    with opened_administration(data_dir, config) as admin:
        chosen = [find_tenant(admin, tenant)] if tenant else admin.list_organisations(SYSTEM)
        found = [(each.name, key) for each in chosen for key in admin.list_keys(SYSTEM, each.id)]
    if as_json:
        hidden = ("digest", "previous_digest")
        show_json([{k: v for k, v in asdict(key).items() if k not in hidden} for _, key in found])
        return
    rows = (
        (tenant_name, key.name, key.id, f"ik-{key.prefix}-…", key_state(key), ", ".join(sorted(key.scopes)),
         ", ".join(sorted(key.models or ())) or "all", moment(key.expires_s))
        for tenant_name, key in found
    )  # fmt: skip
    show("Keys", ("tenant", "name", "id", "key", "state", "scopes", "models", "expires"), rows)


def key_state(key: ApiKey) -> str:
    if key.revoked_s is not None:
        return "revoked"
    if key.expires_s is not None and key.expires_s <= time.time():
        return "expired"
    return "rotating" if key.previous_ends_s > time.time() else "valid"


@keys.command("rotate")
def rotate_key(
    key: str,
    grace: Annotated[str, typer.Option(help="How long the old secret stays valid: 30m, 12h, 90d.")] = "24h",
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Give a key a new secret, shown this once."""
    with opened_administration(data_dir, config) as admin:
        found = find_key(admin, key)
        _, text = admin.rotate_key(SYSTEM, found.organisation_id, found.id, long_duration_s("--grace", grace))
    print(text)
    print(f"The previous secret of {found.name} works for {grace} more.", file=sys.stderr)


@keys.command("revoke")
def revoke_key(key: str, data_dir: DataDir = None, config: Config = None) -> None:
    """Revoke a key for good, with both its secrets."""
    with opened_administration(data_dir, config) as admin:
        found = find_key(admin, key)
        admin.revoke_key(SYSTEM, found.organisation_id, found.id)
    print(f"{found.name} ({found.id}) is revoked; routers refuse it within a second.")
