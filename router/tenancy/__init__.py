"""Who may call, what it costs, how much is left, and who changed what."""
