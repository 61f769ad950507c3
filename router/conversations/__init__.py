"""What was said before: kept, cut to what a model can read, shown, taken away."""
