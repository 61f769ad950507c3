"""What is kept of what users say: nothing unless asked for, without secrets, and not for longer than told."""
