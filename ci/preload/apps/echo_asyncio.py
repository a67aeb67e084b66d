"""Sends received bytes back, on asyncio or uvloop: echo_asyncio.py asyncio|uvloop PORT. SIGTERM ends it in order."""

import asyncio
import contextlib
import signal
import sys


async def echo(reader, writer):
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def main():
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await asyncio.start_server(echo, "127.0.0.1", int(sys.argv[2]), backlog=1024)
    await ended.wait()


if sys.argv[1] == "uvloop":
    import uvloop

    uvloop.run(main())
else:
    asyncio.run(main())
