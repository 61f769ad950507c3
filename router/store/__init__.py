"""What outlives the router: SQLite in the data directory, or PostgreSQL by URL."""
