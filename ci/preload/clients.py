"""Clients of the soak test. Each runs until it is stopped, counts its checks, and raises an exception at the first
wrong response."""

import random
import socket
import struct
import time


class Wrong(Exception):
    """A wrong response, or a connection that ended without a reason."""


class Client:
    """A connection with its received bytes, and checks of them."""

    def __init__(self, port, buffers=None):
        self.sock = socket.socket()
        if buffers:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffers)
        self.sock.settimeout(30)
        self.sock.connect(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rest = b""

    def send(self, data):
        self.sock.sendall(data)

    def more(self):
        data = self.sock.recv(1 << 16)
        if not data:
            raise Wrong("the server closed a connection before its last response")
        self.rest += data

    def expect(self, data):
        while len(self.rest) < len(data):
            self.more()
        if not self.rest.startswith(data):
            at = next(at for at, (one, other) in enumerate(zip(self.rest, data, strict=False)) if one != other)
            raise Wrong(f"{self.rest[max(0, at - 20):at + 40]!r} instead of {data[max(0, at - 20):at + 40]!r}, at {at}")
        self.rest = self.rest[len(data):]

    def line(self):
        while b"\r\n" not in self.rest:
            self.more()
        line, self.rest = self.rest.split(b"\r\n", 1)
        return line

    def reset(self):
        """Closes the connection with a reset, with or without unread responses."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def close(self):
        self.sock.close()


def payload(tag, length):
    """Returns bytes that repeat the name of their owner."""
    return (tag * (length // len(tag) + 1))[:length]


def keyed(rng, name, number, keys, most):
    """Returns a key and a new value. The length of a key's value never changes, so the stored size is constant."""
    which = rng.randrange(keys)
    key = b"%s:%d" % (name, which)
    return key, payload(b"%s=%d;" % (key, number), (3, 100, 1024, most)[which % 4])


def command(*words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def bulk(value):
    return b"$%d\r\n%s\r\n" % (len(value), value)


def echo(rng, name, number, most=2000):
    """Returns a numbered redis command and its response."""
    value = payload(b"%s:%d;" % (name, number), rng.choice((3, 30, 300, rng.randrange(1, most))))
    return command(b"ECHO", value), bulk(value)


def redis_pipelines(port, rng, name, until):
    """Sends pipelines of every length on one connection, with values up to 200 KB."""
    client, number = Client(port), 0
    while not until.is_set():
        asked = [echo(rng, name, number + nth, 200_000 if rng.random() < 0.02 else 2000)
                 for nth in range(rng.choice((1, 1, 4, 16, 100)))]
        client.send(b"".join(question for question, _ in asked))
        for _, answer in asked:
            client.expect(answer)
        number += len(asked)
        yield len(asked)
    client.close()


def redis_values(port, rng, name, until):
    """Reads values that another connection has set. A value contains the number of times it was set."""
    writer, reader, number = Client(port), Client(port), 0
    while not until.is_set():
        key, value = keyed(rng, name, number, 100, 20_000)
        writer.send(command(b"SET", key, value))
        writer.expect(b"+OK\r\n")
        reader.send(command(b"GET", key))
        reader.expect(bulk(value))
        number += 1
        yield 2
    writer.close()
    reader.close()


def redis_comes_and_goes(port, rng, name, until):
    """Opens short connections and ends them in all ways."""
    number = 0
    while not until.is_set():
        client = Client(port)
        asked = [echo(rng, name, number + nth) for nth in range(rng.randrange(1, 6))]
        number += len(asked)
        data, checked = b"".join(question for question, _ in asked), len(asked)
        match rng.randrange(6):
            case 0:
                client.send(data)
                client.reset()
                checked = 0
            case 1:
                client.send(data[: rng.randrange(1, len(data))])
                client.close()
                checked = 0
            case 2:
                # The server responds to the requests before the end, and closes.
                client.send(data)
                client.sock.shutdown(socket.SHUT_WR)
                for _, answer in asked:
                    client.expect(answer)
                if client.sock.recv(1):
                    raise Wrong("bytes after the last response")
                client.close()
            case 3:
                # In pieces, as from a slow network.
                for at in range(0, len(data), max(1, len(data) // 7)):
                    client.send(data[at:at + max(1, len(data) // 7)])
                for _, answer in asked:
                    client.expect(answer)
                client.reset()
            case _:
                client.send(data)
                for _, answer in asked:
                    client.expect(answer)
                client.close()
        yield checked


def redis_reads_slowly(port, rng, name, until):
    """Requests megabytes and reads them slowly, while other clients are served."""
    value = payload(name + b" slowly;", 1_000_000)
    setter = Client(port)
    setter.send(command(b"SET", name, value))
    setter.expect(b"+OK\r\n")
    setter.close()
    while not until.is_set():
        client, times = Client(port, buffers=8192), rng.randrange(1, 6)
        client.send(command(b"GET", name) * times)
        for _ in range(times):
            wanted = bulk(value)
            while wanted:
                time.sleep(0.002)
                piece = client.sock.recv(min(32768, len(wanted)))
                if not piece:
                    raise Wrong("the server closed a connection before its last response")
                if not wanted.startswith(piece):
                    raise Wrong(f"wrong bytes {len(wanted)} before the end of a value of {len(value)}")
                wanted = wanted[len(piece):]
        client.close()
        yield times


def redis_is_killed(port, rng, name, until):
    """Runs a client whose connection the server kills (CLIENT KILL by the next client)."""
    number = 0
    while not until.is_set():
        client = Client(port)
        try:
            client.send(command(b"CLIENT", b"SETNAME", b"victim"))
            client.expect(b"+OK\r\n")
            while not until.is_set():
                asked = [echo(rng, name, number + nth, 50_000) for nth in range(10)]
                number += len(asked)
                client.send(b"".join(question for question, _ in asked))
                for _, answer in asked:
                    client.expect(answer)
                yield len(asked)
        except (Wrong, ConnectionError) as ended:
            if isinstance(ended, Wrong) and "closed" not in str(ended):
                raise
        client.close()


def redis_kills_and_saves(port, rng, name, until):
    """Kills the previous client at random times; runs BGSAVE every few seconds."""
    client, turn = Client(port), 0
    while not until.wait(0.5):
        turn += 1
        client.send(command(b"CLIENT", b"LIST"))
        header = client.line()
        text = b""
        while len(text) < int(header[1:]) + 2:
            if not client.rest:
                client.more()
            take = int(header[1:]) + 2 - len(text)
            text, client.rest = text + client.rest[:take], client.rest[take:]
        checked = 1
        for line in text.splitlines():
            if b"name=victim" in line and rng.random() < 0.5:
                client.send(command(b"CLIENT", b"KILL", b"ID", line.split()[0].split(b"=")[1]))
                client.line()
                checked += 1
        if turn % 8 == 0:
            client.send(command(b"BGSAVE"))
            said = client.line()
            if b"started" not in said and b"in progress" not in said:
                raise Wrong(f"BGSAVE: {said!r}")
            checked += 1
        yield checked
    client.close()


def http_answer(client):
    """Returns the status, whether the server closes, and the body."""
    while b"\r\n\r\n" not in client.rest:
        client.more()
    head, client.rest = client.rest.split(b"\r\n\r\n", 1)
    lines = head.split(b"\r\n")
    fields = {line.split(b":", 1)[0].lower(): line.split(b":", 1)[1].strip() for line in lines[1:]}
    length = int(fields[b"content-length"])
    body = bytearray(client.rest[:length])
    client.rest = client.rest[length:]
    while len(body) < length:
        client.more()
        take = length - len(body)
        body += client.rest[:take]
        client.rest = client.rest[take:]
    return lines[0].split()[1], fields.get(b"connection") == b"close", bytes(body)


def http_gets(files, port, rng, name, until):
    """Requests pages of every size, pipelined, kept or closed, and sometimes aborted."""
    while not until.is_set():
        client, checked, kept = Client(port), 0, True
        while kept and not until.is_set() and rng.random() < 0.9:
            paths = [rng.choice(list(files)) for _ in range(rng.choice((1, 1, 1, 4, 16)))]
            kept = rng.random() < 0.7
            if not kept:
                paths = paths[:1]
            close = "" if kept else "Connection: close\r\n"
            client.send("".join(f"GET {path} HTTP/1.1\r\nHost: x\r\n{close}\r\n" for path in paths).encode())
            if rng.random() < 0.05:
                client.sock.recv(1000)
                client.reset()
                break
            for path in paths:
                status, closes, body = http_answer(client)
                if status != b"200" or body != files[path] or closes == kept:
                    raise Wrong(f"GET {path}: status {status}, {len(body)} bytes, closes {closes}")
                checked += 1
            if not kept and client.sock.recv(1):
                raise Wrong("bytes after the last response")
        client.close()
        yield checked


def memcached_keeps(port, rng, name, until):
    """Sets and gets many keys at once, sometimes on a new connection."""
    known = {}
    while not until.is_set():
        client = Client(port)
        for _ in range(rng.choice((1, 5, 200))):
            if until.is_set():
                break
            keys, data = [], b""
            for _ in range(rng.randrange(1, 8)):
                key, value = keyed(rng, name, rng.randrange(10**6), 50, 30_000)
                known[key] = value
                keys.append(key)
                data += b"set %s 7 0 %d\r\n%s\r\n" % (key, len(known[key]), known[key])
            client.send(data)
            client.expect(b"STORED\r\n" * len(keys))
            asked = list(dict.fromkeys(keys + rng.sample(list(known), min(3, len(known)))))
            client.send(b"get " + b" ".join(asked) + b"\r\n")
            found = b"".join(b"VALUE %s 7 %d\r\n%s\r\n" % (key, len(known[key]), known[key]) for key in asked)
            client.expect(found + b"END\r\n")
            yield len(keys) + len(asked)
        if rng.random() < 0.5:
            client.reset()
        else:
            client.close()


def name(kind, number):
    return f"{kind.__name__}{number}".encode()


def run(kind, phase, number, port, seed, until, report, checks):
    """Runs one client until it is stopped, and adds its checks to `checks`, by its name."""
    rng, who = random.Random(f"{seed}-{phase}-{kind.__name__}-{number}"), name(kind, number)
    try:
        for more in kind(port, rng, who, until):
            checks[who] += more
    except Exception as wrong:  # Whatever it is, it is told and ends the soak.
        report(f"{who.decode()}: {type(wrong).__name__}: {wrong}")
        until.set()
