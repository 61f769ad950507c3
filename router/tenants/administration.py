"""Commands on tenants, users, keys and terms: each allowed by role and scope, and audited."""

from __future__ import annotations

import secrets
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import sqlalchemy as sql

from router.core.actions import Action
from router.core.tenant import (
    NO_LIMITS,
    ApiKey,
    AuditEntry,
    Limits,
    Organisation,
    Price,
    Role,
    Scope,
    UsageSummary,
    User,
    check_model,
    check_name,
)
from router.store import content_tables
from router.store.schema import api_keys, facts, limits, organisations, prices, releases, users
from router.tenants import keys, records
from router.tenants.audited import Audited, Forbidden
from router.tenants.budget import END_OF_TIME_S, check_day
from router.tenants.rbac import Actor, allows, beyond, may_act_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.store.database import Store

DEFAULT_SCOPES = frozenset({Scope.INFERENCE, Scope.EMBEDDINGS, Scope.FILES, Scope.USAGE_READ})
GRACE_S = 24 * 3600.0


class Administration(Audited):
    """Changes run on the store's thread; reads may run on any."""

    def __init__(
        self,
        store: Store,
        pepper: bytes,
        changed: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(store, changed, clock)
        self._pepper = pepper

    # Organisations

    def create_organisation(self, actor: Actor, name: str) -> Organisation:
        check_name("name", name)
        organisation = Organisation(_new_id("org"), name, self._clock())
        detail = {"name": name}
        with self._act(actor, Action.ORGANISATION_CREATE, None, organisation.id, detail) as (to, version):
            to.execute(sql.insert(organisations).values(**asdict(organisation), version=version))
        return organisation

    def list_organisations(self, actor: Actor) -> list[Organisation]:
        with self._look(actor, Action.ORGANISATION_LIST, None) as at:
            rows = at.execute(sql.select(organisations).where(organisations.c.deleted_s.is_(None)))
            return sorted(map(records.organisation_of, rows.mappings()), key=lambda each: each.name)

    def export_organisation(self, actor: Actor, organisation_id: str) -> dict[str, Any]:
        """Everything kept of a tenant, but for the digests of its keys and what is in its files."""
        with self._look(actor, Action.ORGANISATION_EXPORT, organisation_id) as at:
            records.check_there(at, organisation_id)
        self._write(self._entry(actor, Action.ORGANISATION_EXPORT, organisation_id, organisation_id))
        # Not in the transaction of its entry: nobody else could write for as long as it takes.
        with self._store.read() as at:
            return records.export(at, organisation_id)

    def note_content_read(self, actor: Actor, organisation_id: str, request_id: str) -> None:
        """That somebody looks at what a tenant wrote: only who may, and never unseen."""
        self.check(actor, Action.CONTENT_READ, organisation_id, request_id)
        self._write(self._entry(actor, Action.CONTENT_READ, organisation_id, request_id))

    def export_files(self, actor: Actor, organisation_id: str, write: Callable[[str, bytes], object]) -> None:
        """What is in its files, by their ids, piece after piece: it may be more than fits in memory."""
        with self._look(actor, Action.ORGANISATION_EXPORT, organisation_id) as at:
            for file_id, _, data in content_tables.pieces(at, organisation_id):
                write(file_id, data)

    def delete_organisation(self, actor: Actor, organisation_id: str) -> None:
        """What it stored, its users and its keys; what it has used and what was done stays on record."""
        with self._act(actor, Action.ORGANISATION_DELETE, organisation_id, organisation_id) as (to, _):
            records.delete(to, organisation_id, self._clock())

    # Users

    def create_user(
        self, actor: Actor, organisation_id: str, name: str, role: Role, platform_admin: bool = False
    ) -> User:
        check_name("name", name)
        user = User(_new_id("user"), organisation_id, name, role, self._clock(), platform_admin)
        detail = {"name": name, "role": role.value, "platform_admin": platform_admin}
        with self._act(actor, Action.USER_WRITE, organisation_id, user.id, detail) as (to, _):
            _refuse_above(actor, user)
            to.execute(sql.insert(users).values(records.row_of_user(user)))
        return user

    def list_users(self, actor: Actor, organisation_id: str) -> list[User]:
        with self._look(actor, Action.USER_READ, organisation_id) as at:
            records.check_there(at, organisation_id)
            return sorted(
                map(records.user_of, records.all_of(at, users, organisation_id)), key=lambda each: each.name
            )

    def set_role(self, actor: Actor, organisation_id: str, user_id: str, role: Role) -> User:
        with self._act(actor, Action.USER_WRITE, organisation_id, user_id, {"role": role.value}) as (to, _):
            user = records.find_user(to, organisation_id, user_id)
            changed = replace(user, role=role)
            _refuse_above(actor, user)
            _refuse_above(actor, changed)
            records.keep_an_owner(to, user, role)
            to.execute(sql.update(users).where(users.c.id == user_id).values(role=role.value))
        return changed

    def delete_user(self, actor: Actor, organisation_id: str, user_id: str) -> None:
        """The user's keys end with it; what they were used for stays on record."""
        with self._act(actor, Action.USER_WRITE, organisation_id, user_id, None, "user.delete") as (to, _):
            user = records.find_user(to, organisation_id, user_id)
            _refuse_above(actor, user)
            records.keep_an_owner(to, user, None)
            own = sql.select(api_keys.c.id).where(api_keys.c.user_id == user_id)
            to.execute(sql.delete(limits).where(limits.c.subject.in_(own)))
            to.execute(sql.delete(api_keys).where(api_keys.c.user_id == user_id))
            to.execute(sql.delete(users).where(users.c.id == user_id))

    # Keys

    def create_key(
        self,
        actor: Actor,
        organisation_id: str,
        user_id: str,
        name: str,
        scopes: frozenset[Scope] | None = None,
        models: frozenset[str] | None = None,
        expires_s: float | None = None,
        text: str = "",
    ) -> tuple[ApiKey, str]:
        """The key as it is kept, and the text that its holder is shown, this once.

        It may nothing that the actor's own key may not; what is left out is taken from there. A `text` that
        is given was made elsewhere, and is the key from now on.
        """
        if scopes is None:  # and refused below where the two have nothing in common
            scopes = (DEFAULT_SCOPES & (actor.scopes or DEFAULT_SCOPES)) or DEFAULT_SCOPES
        models = actor.models if models is None else models
        expires_s = actor.expires_s if expires_s is None else expires_s
        check_name("name", name)
        for model in models or ():
            check_model(model)
        if expires_s is not None and not self._clock() < expires_s < END_OF_TIME_S:
            raise ValueError("expires: expected a time in the future, before the year 10000")
        text, prefix = (text, keys.prefix_of(text)) if text else keys.mint()
        if not prefix:
            raise ValueError(
                f"a key is {keys.KEY_CHARS} characters: ik-, {keys.PREFIX_CHARS}, - and its secret"
            )
        key = ApiKey(
            _new_id("key"), organisation_id, user_id, name, prefix, keys.digest(text, self._pepper), scopes,
            self._clock(), models, expires_s,
        )  # fmt: skip
        detail = {"name": name, "prefix": prefix, "user": user_id, "scopes": sorted(scopes)}
        action = Action.KEY_WRITE_OWN if actor.user_id == user_id else Action.KEY_WRITE
        with self._act(actor, action, organisation_id, key.id, detail) as (to, _):
            _refuse_above(actor, records.find_user(to, organisation_id, user_id))
            _refuse_beyond(actor, key, NO_LIMITS)
            to.execute(sql.insert(api_keys).values(records.row_of_key(key)))
            to.execute(self._store.insert_new(facts).values(name=records.KEYS_WERE_MADE, value="yes"))
        return key, text

    def list_keys(self, actor: Actor, organisation_id: str) -> list[ApiKey]:
        """All of the organisation, or the actor's own where it may not see the others'."""
        sees_all = allows(actor, Action.KEY_READ, organisation_id)
        with self._look(actor, Action.KEY_READ if sees_all else Action.KEY_READ_OWN, organisation_id) as at:
            records.check_there(at, organisation_id)
            found = map(records.key_of, records.all_of(at, api_keys, organisation_id))
            seen = [key for key in found if sees_all or key.user_id == actor.user_id]
        return sorted(seen, key=lambda key: key.created_s)

    def rotate_key(
        self, actor: Actor, organisation_id: str, key_id: str, grace_s: float = GRACE_S
    ) -> tuple[ApiKey, str]:
        """A new secret for the same key; the current one stays valid for the grace period."""
        text, prefix = keys.mint()
        detail = {"prefix": prefix, "grace_s": grace_s}
        action = self._key_action(actor, organisation_id, key_id)
        with self._act(actor, action, organisation_id, key_id, detail, "key.rotate") as (to, _):
            present = records.find_key(to, organisation_id, key_id)
            _refuse_above(actor, records.find_user(to, organisation_id, present.user_id))
            if key_id != actor.key_id:
                _refuse_beyond(actor, present, records.limits_in(to, organisation_id).get(key_id, NO_LIMITS))
            rotated = replace(
                present,
                prefix=prefix,
                digest=keys.digest(text, self._pepper),
                rotated_s=self._clock(),
                grace_s=grace_s,
                previous_prefix=present.prefix,
                previous_digest=present.digest,
            )
            to.execute(
                sql.update(api_keys).where(api_keys.c.id == key_id).values(records.row_of_key(rotated))
            )
        return rotated, text

    def revoke_key(self, actor: Actor, organisation_id: str, key_id: str) -> None:
        """Both secrets, for good."""
        action = self._key_action(actor, organisation_id, key_id)
        with self._act(actor, action, organisation_id, key_id, None, "key.revoke") as (to, _):
            _refuse_above(actor, records.find_holder(to, organisation_id, key_id))
            to.execute(sql.update(api_keys).where(api_keys.c.id == key_id).values(revoked_s=self._clock()))

    def _key_action(self, actor: Actor, organisation_id: str, key_id: str) -> Action:
        with self._store.read() as connection:
            own = records.holder_of(connection, organisation_id, key_id) == actor.user_id
        return Action.KEY_WRITE_OWN if own else Action.KEY_WRITE

    # Terms

    def set_limits(
        self, actor: Actor, organisation_id: str, allowed: Limits, key_id: str | None = None
    ) -> None:
        """The organisation's own, which only the platform sets, or those of one of its keys."""
        own = (allowed.weight, allowed.slot_percent, allowed.answers_cached_s)
        if key_id is not None and own != (None, None, None):
            message = (
                "weight, slot_percent and answers_cached_s are limits of a tenant and cannot be set for a key"
            )
            raise ValueError(message)
        action = Action.ORGANISATION_LIMITS_WRITE if key_id is None else Action.KEY_LIMITS_WRITE
        subject = key_id or organisation_id
        with self._act(actor, action, organisation_id, subject, asdict(allowed)) as (to, _):
            if key_id is not None:
                _refuse_above(actor, records.find_holder(to, organisation_id, key_id))
                if allowed.exceeds(actor.limits):
                    raise Forbidden("a key with its own limits cannot set limits above them for any key")
            row = {"subject": subject, "organisation_id": organisation_id, **asdict(allowed)}
            to.execute(self._store.insert_or_update(limits, row))

    def list_limits(self, actor: Actor, organisation_id: str) -> dict[str, Limits]:
        """By the id of the organisation or key that they hold for."""
        with self._look(actor, Action.LIMITS_READ, organisation_id) as at:
            records.check_there(at, organisation_id)
            return records.limits_in(at, organisation_id)

    def set_price(self, actor: Actor, price: Price) -> None:
        """Of a model that has a release; of any, while there are none at all."""
        with self._act(actor, Action.PRICE_WRITE, None, price.model, asdict(price)) as (to, version):
            known = to.scalars(sql.select(releases.c.model).distinct().order_by(releases.c.model)).all()
            if known and price.model not in known:
                raise records.NotFound(f"there is no model {price.model!r}; there are {', '.join(known)}")
            to.execute(self._store.insert_or_update(prices, {**asdict(price), "version": version}))

    def delete_price(self, actor: Actor, model: str) -> None:
        """Its tokens cost nothing from now on; what was used before stays as it was charged."""
        with self._act(actor, Action.PRICE_WRITE, None, model, None, "price.delete") as (to, _):
            if not to.execute(sql.delete(prices).where(prices.c.model == model)).rowcount:
                raise records.NotFound(f"there is no price for the model {model!r}")

    def list_prices(self, actor: Actor) -> list[Price]:
        with self._look(actor, Action.PRICE_READ, actor.organisation_id) as at:
            rows = at.execute(sql.select(prices).order_by(prices.c.model)).mappings()
            return [records.price_of(row) for row in rows]

    # What happened

    def usage(
        self, actor: Actor, organisation_id: str | None, by: tuple[str, ...], since_day: str, until_day: str
    ) -> list[UsageSummary]:
        """Summed by any of organisation, key, user, model, day; days are included at both ends."""
        check_day("since", since_day)
        check_day("until", until_day)
        action = Action.USAGE_READ_ALL if organisation_id is None else Action.USAGE_READ
        with self._look(actor, action, organisation_id) as at:
            return records.usage_summary(at, organisation_id, by, since_day, until_day)

    def audit_log(self, actor: Actor, organisation_id: str | None, most: int = 100) -> list[AuditEntry]:
        """The newest entries of one organisation, or of all of them, newest first."""
        with self._look(actor, Action.AUDIT_READ, organisation_id) as at:
            return records.audit_entries(at, organisation_id, most)


def _new_id(kind: str) -> str:
    return f"{kind}-{secrets.token_hex(8)}"


def _refuse_above(actor: Actor, user: User) -> None:
    if not may_act_for(actor, user.role, user.platform_admin):
        raise Forbidden("no permission: users with a higher role, and their keys, cannot be changed")


def _refuse_beyond(actor: Actor, key: ApiKey, limits: Limits) -> None:
    if why := beyond(actor, key, limits):
        raise Forbidden(f"the key in use cannot create a key with more permissions than its own: {why}")
