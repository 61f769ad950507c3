from __future__ import annotations

import asyncio
import socket
from contextlib import closing

import pytest

from tests.event_loops import ClosingLoop


def test_what_is_left_open_is_closed_and_told_of() -> None:
    loop = ClosingLoop()
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        work = loop.create_connection(asyncio.Protocol, *server.getsockname())
        loop.run_until_complete(work)
        with pytest.raises(ResourceWarning, match="unclosed resource <TCPTransport"):
            loop.close()
        other, _ = server.accept()
        with other:
            assert other.recv(1) == b""
    assert loop.is_closed()
    loop.close()  # as somebody does who closes it whatever happens
