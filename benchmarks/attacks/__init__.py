"""What one tenant's attacks cost a neighbour: `python -m benchmarks.attacks`."""
