"""Commands of docker-compose.yml at the addresses and paths of a test."""

from __future__ import annotations


def replaced(command: list[str], *pairs: tuple[str, str]) -> list[str]:
    """A command of a container with other addresses and paths; each of them must be in it."""
    for old, new in pairs:
        assert any(old in word for word in command), f"{old} is not in {command}"
        command = [word.replace(old, new) for word in command]
    return command
