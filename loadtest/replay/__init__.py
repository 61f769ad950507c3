"""A plan of requests, sent at its planned moments whatever became of the earlier ones."""
