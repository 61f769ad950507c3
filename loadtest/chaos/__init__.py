"""Breaking a stack on purpose: which faults there are, in which order they come, and what must hold after."""
