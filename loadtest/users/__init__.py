"""Locust's users: what asks, how it asks, and what it notes of the answers."""
