"""What work costs in time, learned from what it took: standard library only, without clock or chance."""
