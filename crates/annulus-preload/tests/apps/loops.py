"""Servers as Python's standard library writes them, each with its clients, chosen by argv.

The rule: a program that makes its calls from an interpreter sees what it would see without the library, whether its
loop is asyncio's, one of selectors', or threads that block. `--cases` lists the cases and what the library must have
counted in each."""

import asyncio
import hashlib
import http.server
import os
import select
import selectors
import socket
import socketserver
import subprocess
import sys
import threading
import urllib.request

HOST = "127.0.0.1"


def random_bytes(count, seed):
    """Bytes that are the same in every run."""
    block = b""
    while len(block) < count:
        seed = hashlib.sha256(str(seed).encode()).hexdigest()
        block += seed.encode()
    return block[:count]


async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
    await writer.wait_closed()


async def request(port, number, rounds):
    reader, writer = await asyncio.open_connection(HOST, port)
    digest = hashlib.sha256()
    for i in range(rounds):
        question = random_bytes(1 + (number * 7919 + i * 104729) % 20000, number * 1000 + i)
        writer.write(question)
        await writer.drain()
        response = await reader.readexactly(len(question))
        assert response == question
        digest.update(response)
    writer.write_eof()
    tail = await reader.read()
    writer.close()
    return f"client {number}: {digest.hexdigest()[:12]}, then {tail!r}"


def asyncio_serves_itself():
    """Server and clients in one loop: both ends of each connection may be served."""

    async def main():
        server = await asyncio.start_server(echo, HOST, 0)
        port = server.sockets[0].getsockname()[1]
        for line in await asyncio.gather(*(request(port, n, 15) for n in range(20))):
            print(line)
        server.close()
        await server.wait_closed()

    asyncio.run(main())


def asyncio_keeps_its_timers():
    """Timers, a child process, a pipe and a thread pool next to a connection, in one loop."""

    async def main():
        server = await asyncio.start_server(echo, HOST, 0)
        port = server.sockets[0].getsockname()[1]
        loop = asyncio.get_running_loop()
        start = loop.time()
        await asyncio.sleep(0.02)
        print("slept long enough:", loop.time() - start >= 0.02)
        child = await asyncio.create_subprocess_exec(
            "sh", "-c", "cat; echo to stderr >&2; exit 3",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        (out, err), line = await asyncio.gather(child.communicate(b"through a pipe"), request(port, 1, 5))
        print(out, err, child.returncode, line)
        print("from the pool:", await loop.run_in_executor(None, sum, range(1000)))
        try:
            reader, writer = await asyncio.open_connection(HOST, port)
            await asyncio.wait_for(reader.read(1), 0.02)
        except asyncio.TimeoutError:
            print("timed out")
        writer.close()
        try:
            await asyncio.open_connection(HOST, 1)
        except ConnectionRefusedError as error:
            print("refused:", error.errno)
        server.close()

    asyncio.run(main())


def serve_selected(selector, listener, until):
    """A small hand-written echo server; returns the number of echoed bytes."""
    total = 0
    listener.setblocking(False)
    selector.register(listener, selectors.EVENT_READ)
    ended = 0
    while ended < until:
        for key, _ in selector.select(20):
            if key.fileobj is listener:
                connection, _ = listener.accept()
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_READ)
                continue
            data = key.fileobj.recv(4096)
            if data:
                key.fileobj.sendall(data)
                total += len(data)
            else:
                selector.unregister(key.fileobj)
                key.fileobj.close()
                ended += 1
    return total


def blocking_client(port, number, responses):
    with socket.create_connection((HOST, port)) as connection:
        right = 0
        for i in range(10):
            question = random_bytes(1 + (number * 31 + i * 77) % 3000, number + i)
            connection.sendall(question)
            response = b""
            while len(response) < len(question):
                response += connection.recv(len(question) - len(response))
            right += response == question
        responses[number] = right


def with_clients(port, serve, count=6):
    responses = {}
    threads = [threading.Thread(target=blocking_client, args=(port, n, responses)) for n in range(count)]
    for thread in threads:
        thread.start()
    result = serve()
    for thread in threads:
        thread.join()
    print("right:", sorted(responses.items()), "result:", result)


def each_selector_serves():
    for kind in (selectors.EpollSelector, selectors.PollSelector, selectors.SelectSelector):
        with socket.create_server((HOST, 0)) as listener, kind() as selector:
            with_clients(listener.getsockname()[1], lambda: serve_selected(selector, listener, 6))


def a_bare_epoll_object_serves():
    """select.epoll as programs use it directly: numbers, masks and closing."""
    with socket.create_server((HOST, 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
        server.setblocking(False)
        epoll = select.epoll()
        epoll.poll(0)
        epoll.register(server, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
        for question in (b"one", b"two", b""):
            client.sendall(question) if question else client.shutdown(socket.SHUT_WR)
            print([mask for _, mask in epoll.poll(10)], server.recv(100), epoll.poll(0))
            server.send(b"result")
            print(epoll.poll(0.005), client.recv(100))
        epoll.unregister(server)
        try:
            epoll.modify(server, select.EPOLLIN)
        except OSError as error:
            print("modify:", error.errno)
        epoll.close()
        print("closed:", epoll.closed)
        server.close()
        print("the client gets", client.recv(100))


class Shout(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line.upper())


def threads_that_block_serve():
    """Blocking sockets, with one thread each, which the library does not serve."""
    socketserver.ThreadingTCPServer.allow_reuse_address = True
    with socketserver.ThreadingTCPServer((HOST, 0), Shout) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        for i in range(4):
            with socket.create_connection(server.server_address) as client, client.makefile("rwb") as stream:
                for word in ("hello", "world"):
                    stream.write(f"{word} {i}\n".encode())
                    stream.flush()
                    print(stream.readline())
        server.shutdown()


class Pages(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = random_bytes(int(self.path[1:]), 5)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def http_is_served_by_threads():
    with http.server.ThreadingHTTPServer((HOST, 0), Pages) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        for length in (0, 1, 1000, 300000):
            with urllib.request.urlopen(f"http://{HOST}:{server.server_port}/{length}", timeout=20) as response:
                body = response.read()
                print(response.status, len(body), hashlib.sha256(body).hexdigest()[:12])
        server.shutdown()


def a_served_process_starts_others():
    """subprocess uses vfork, pipes and close_range between two waits on a set."""
    with socket.create_server((HOST, 0)) as listener, select.epoll() as epoll:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
        server.setblocking(False)
        epoll.poll(0)
        epoll.register(server, select.EPOLLIN)
        for i in range(3):
            client.sendall(b"question")
            print([mask for _, mask in epoll.poll(10)])
            server.send(b"queued ")
            result = subprocess.run(["sh", "-c", f"cat; exit {i}"], input=b"text", capture_output=True, check=False)
            print(result.stdout, result.stderr, result.returncode, server.recv(100))
            server.send(b"result")
            epoll.poll(0)
            response = b""
            while len(response) < 13:
                response += client.recv(13 - len(response))
            print(response)
        child = os.fork()
        if child == 0:
            server.close()
            os._exit(4)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        client.sendall(b"after")
        print([mask for _, mask in epoll.poll(10)], server.recv(100))


CASES = {
    asyncio_serves_itself: "served:recv served:send served:epoll_wait",
    asyncio_keeps_its_timers: "served:recv served:send",
    each_selector_serves: "",
    a_bare_epoll_object_serves: "served:recv served:send",
    threads_that_block_serve: "passes",
    http_is_served_by_threads: "passes",
    a_served_process_starts_others: "served:recv served:send",
}

if __name__ == "__main__":
    if sys.argv[1:] == ["--cases"]:
        for case, counted in CASES.items():
            print(f"{case.__name__}\t{counted}")
    elif len(sys.argv) == 2 and sys.argv[1] in (case.__name__ for case in CASES):
        globals()[sys.argv[1]]()
        print("done", flush=True)
    else:
        sys.exit("usage: loops.py --cases | CASE")
