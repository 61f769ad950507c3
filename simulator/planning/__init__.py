"""The cheapest fleet that keeps the objectives, and what would change it."""
