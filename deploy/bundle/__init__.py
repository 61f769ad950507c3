"""One file that serves on x86_64 GPU hosts which reach no registry: `make bundle`."""
