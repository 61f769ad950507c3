"""OpenTelemetry traces of requests; nothing of it is imported, or costs anything, while they are off."""
