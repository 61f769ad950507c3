"""Runs revisions on the connection that the migration lock is held on; Alembic loads this by its path."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=False)
context.run_migrations()
