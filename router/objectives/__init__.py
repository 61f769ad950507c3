"""What a model's answers are to take at most, and what they do take."""
