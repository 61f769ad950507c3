"""Several Triton servers behind one router: which of them a request goes to, and what if one fails."""
