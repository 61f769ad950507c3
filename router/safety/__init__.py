"""What the operator does not let pass: a check on prompts, and on answers while they stream."""
