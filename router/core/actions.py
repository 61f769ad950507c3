"""What may be done here, each with the scope that a key needs for it and with whose affairs it concerns."""

from __future__ import annotations

from enum import Enum

from router.core.tenant import Scope


class Reach(Enum):
    """Whose affairs an action concerns, and so who may do it with the right scope."""

    OPEN = "the same for everybody: no key is needed"
    OWN = "what the key's own user and tenant use and keep: every role"
    TENANT = "one tenant: its users by their roles, and platform admins"
    PLATFORM = "all tenants, or the server itself: platform admins"


class Action(Enum):
    """Each route names one; `router.tenants.rbac.allows` decides about it."""

    HEALTH_READ = ("health.read", None, Reach.OPEN)
    ABOUT_READ = ("about.read", None, Reach.OPEN)
    SESSION_USE = ("session.use", None, Reach.OPEN)
    METRICS_READ_OPENLY = ("metrics.read_openly", None, Reach.OPEN)  # where the operator has said so

    INFERENCE_RUN = ("inference.run", Scope.INFERENCE, Reach.OWN)
    EMBEDDING_RUN = ("embedding.run", Scope.EMBEDDINGS, Reach.OWN)
    MODEL_READ = ("model.read", Scope.INFERENCE, Reach.OWN)
    CONVERSATION_READ = ("conversation.read", Scope.INFERENCE, Reach.OWN)
    CONVERSATION_WRITE = ("conversation.write", Scope.INFERENCE, Reach.OWN)
    REQUEST_READ_OWN = ("request.read_own", Scope.INFERENCE, Reach.OWN)
    FILE_READ = ("file.read", Scope.FILES, Reach.OWN)
    FILE_WRITE = ("file.write", Scope.FILES, Reach.OWN)
    BATCH_READ = ("batch.read", Scope.FILES, Reach.OWN)
    BATCH_WRITE = ("batch.write", Scope.FILES, Reach.OWN)

    ORGANISATION_READ = ("organisation.read", Scope.ADMIN_READ, Reach.TENANT)
    ORGANISATION_EXPORT = ("organisation.export", Scope.ADMIN_READ, Reach.TENANT)
    USER_READ = ("user.read", Scope.ADMIN_READ, Reach.TENANT)
    USER_WRITE = ("user.write", Scope.ADMIN_WRITE, Reach.TENANT)
    KEY_READ = ("key.read", Scope.ADMIN_READ, Reach.TENANT)
    KEY_READ_OWN = ("key.read_own", Scope.ADMIN_READ, Reach.TENANT)
    KEY_WRITE = ("key.write", Scope.ADMIN_WRITE, Reach.TENANT)
    KEY_WRITE_OWN = ("key.write_own", Scope.ADMIN_WRITE, Reach.TENANT)
    LIMITS_READ = ("limits.read", Scope.ADMIN_READ, Reach.TENANT)
    KEY_LIMITS_WRITE = ("limits.write_key", Scope.ADMIN_WRITE, Reach.TENANT)
    PRICE_READ = ("price.read", Scope.USAGE_READ, Reach.TENANT)
    USAGE_READ = ("usage.read", Scope.USAGE_READ, Reach.TENANT)
    AUDIT_READ = ("audit.read", Scope.ADMIN_READ, Reach.TENANT)
    REQUEST_READ = ("request.read", Scope.ADMIN_READ, Reach.TENANT)
    CONTENT_READ = ("request.read_content", Scope.ADMIN_READ, Reach.TENANT)

    # A tenant that could write these would set its own budget and prices, or leave before it has paid.
    ORGANISATION_CREATE = ("organisation.create", Scope.ADMIN_WRITE, Reach.PLATFORM)
    ORGANISATION_LIST = ("organisation.list", Scope.ADMIN_READ, Reach.PLATFORM)
    ORGANISATION_DELETE = ("organisation.delete", Scope.ADMIN_WRITE, Reach.PLATFORM)
    ORGANISATION_LIMITS_WRITE = ("limits.write_organisation", Scope.ADMIN_WRITE, Reach.PLATFORM)
    PRICE_WRITE = ("price.write", Scope.ADMIN_WRITE, Reach.PLATFORM)
    USAGE_READ_ALL = ("usage.read_all", Scope.USAGE_READ, Reach.PLATFORM)
    RELEASE_READ = ("release.read", Scope.ADMIN_READ, Reach.PLATFORM)
    RELEASE_WRITE = ("release.write", Scope.ADMIN_WRITE, Reach.PLATFORM)
    OBJECTIVE_READ = ("objective.read", Scope.ADMIN_READ, Reach.PLATFORM)
    OBJECTIVE_WRITE = ("objective.write", Scope.ADMIN_WRITE, Reach.PLATFORM)
    NOW_READ = ("now.read", Scope.ADMIN_READ, Reach.PLATFORM)
    SIMULATION_RUN = ("simulation.run", Scope.ADMIN_READ, Reach.PLATFORM)
    METRICS_READ = ("metrics.read", Scope.METRICS_READ, Reach.PLATFORM)

    def __init__(self, label: str, scope: Scope | None, reach: Reach) -> None:
        self.label = label
        self.scope = scope
        self.reach = reach
