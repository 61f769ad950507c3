"""The door for Triton's own clients: KServe v2 over HTTP and gRPC, every tensor read and built anew."""
