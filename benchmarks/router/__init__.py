"""The router against its peers: CPU, latency and memory, side by side in one run."""
