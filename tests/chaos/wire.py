"""A client that does with its connection what it is told, not what is polite."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import h11


class Closed(Exception):
    """The server closed the connection where an answer was due."""


class Wire:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sock: socket.socket) -> None:
        self.reader, self.writer, self.sock = reader, writer, sock
        self.http = h11.Connection(h11.CLIENT)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def post(self, path: str, body: Any) -> None:
        """Sends a whole request; ``body`` is bytes or something that JSON can say."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        await self.request("POST", path, raw)

    async def request(self, method: str, path: str, raw: bytes = b"") -> None:
        headers = [("Host", "chaos"), ("Content-Length", str(len(raw))), ("Content-Type", "application/json")]
        head = self.http.send(h11.Request(method=method, target=path, headers=headers))
        data = self.http.send(h11.Data(data=raw)) if raw else b""
        await self.send((head or b"") + (data or b"") + (self.http.send(h11.EndOfMessage()) or b""))

    async def event(self) -> Any:
        while (event := self.http.next_event()) is h11.NEED_DATA:
            try:
                self.http.receive_data(await self.reader.read(65536))
            except OSError as e:
                raise Closed(str(e)) from e
        if isinstance(event, h11.ConnectionClosed):
            raise Closed("before the answer was complete")
        return event

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the next answer."""
        try:
            head = await self.event()
            while isinstance(head, h11.InformationalResponse):
                head = await self.event()
            body = b""
            while not isinstance(event := await self.event(), h11.EndOfMessage):
                body += event.data
        except h11.RemoteProtocolError as e:
            raise Closed(str(e)) from e
        if self.http.our_state is h11.DONE and self.http.their_state is h11.DONE:
            self.http.start_next_cycle()
        return head.status_code, {k.decode().lower(): v.decode() for k, v in head.headers}, body

    async def expect_answers(self) -> None:
        """For requests that were sent as raw bytes: the next answers belong to them."""
        self.http.send(h11.Request(method="POST", target="/", headers=[("Host", "chaos")]))
        self.http.send(h11.EndOfMessage())

    async def until_closed(self) -> bytes:
        found = b""
        try:
            while part := await self.reader.read(65536):
                found += part
        except OSError:
            pass
        return found

    def reset(self) -> None:
        """Ends the connection without a goodbye."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@asynccontextmanager
async def connected(port: int, receive_bytes: int | None = None) -> AsyncIterator[Wire]:
    sock = socket.socket()
    sock.setblocking(False)
    try:
        if receive_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        limit = receive_bytes or 65536
        reader, writer = await asyncio.open_connection(sock=sock, limit=limit)
    except BaseException:
        sock.close()
        raise
    try:
        yield Wire(reader, writer, sock)
    finally:
        writer.transport.abort()
        sock.close()
