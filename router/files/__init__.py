"""Files of tenants: uploaded in forms, kept in the store in pieces, read back as streams."""
