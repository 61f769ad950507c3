"""Where model checkpoints come from: fetched and converted once, or a directory the user already has."""
