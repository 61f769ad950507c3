"""Decisions about the next step: standard library only, without clock, thread or device."""
