"""The HTTP/1.1 server: what comes off a socket, what goes back, and the limits on both.

Written on httptools because a slow reader must hold back its own stream: granian's RSGI transport queues
without bound, and the servers that do push back cost three to five times the CPU per request.
"""
