"""Makes the data of this folder with a server that has RedisBloom: `python3 make.py PORT`. The server needs
`--rdbcompression no --enable-debug-command yes`, and a Redis version whose DUMP payloads all tested servers can restore (7.0)."""

import pathlib
import struct
import sys

import redis

FOLDER = pathlib.Path(__file__).parent
ITEMS = 1_000_000
COUNTED = 10_000
BATCH = 1000


def fnv(values):
    """FNV-1a with 64 bits, of values from 0 to 255."""
    digest = 0xCBF29CE484222325
    for value in values:
        digest = (digest ^ value) * 0x100000001B3 % (1 << 64)
    return digest


def add(client, key, command, count, copies=1):
    pipe = client.pipeline(transaction=False)
    for number in range(count):
        for _ in range(copies):
            pipe.execute_command(command, key, f"i{number}")
    pipe.execute()


def make(client):
    run = client.execute_command
    add(client, "bf-default", "BF.ADD", 1000)
    run("BF.RESERVE", "bf-fixed", 0.001, 1000, "NONSCALING")
    add(client, "bf-fixed", "BF.ADD", 1000)
    run("BF.RESERVE", "bf-half", 0.01, 1000, "NONSCALING")
    add(client, "bf-half", "BF.ADD", 500)
    run("BF.RESERVE", "bf-empty", 0.01, 1000)
    run("BF.RESERVE", "bf-wide", 0.0001, 500, "EXPANSION", 4)
    add(client, "bf-wide", "BF.ADD", 6000)
    run("CF.RESERVE", "cf-default", 1000)
    add(client, "cf-default", "CF.ADD", 5000)
    run("CF.RESERVE", "cf-one", 1024, "BUCKETSIZE", 1)
    add(client, "cf-one", "CF.ADD", 500)
    run("CF.RESERVE", "cf-four", 1000, "BUCKETSIZE", 4, "EXPANSION", 2)
    add(client, "cf-four", "CF.ADD", 4000)
    run("CF.RESERVE", "cf-deleted", 2000)
    add(client, "cf-deleted", "CF.ADD", 2000)
    for number in range(1000):
        run("CF.DEL", "cf-deleted", f"i{number}")
    run("CF.RESERVE", "cf-copies", 4000)
    add(client, "cf-copies", "CF.ADD", 1000, copies=3)
    run("CF.RESERVE", "cf-empty", 1000)


def chunks(client, key, family):
    cursor, out = 0, b""
    while True:
        cursor, data = client.execute_command(f"{family}.SCANDUMP", key, cursor)
        if cursor == 0:
            return out
        out += struct.pack("<QQ", cursor, len(data)) + data


def answers(client, key, family):
    pipe = client.pipeline(transaction=False)
    if family == "BF":
        for first in range(0, ITEMS, BATCH):
            items = [f"i{number}" for number in range(first, first + BATCH)]
            pipe.execute_command("BF.MEXISTS", key, *items)
        found = [bit for reply in pipe.execute() for bit in reply]
        return sum(found), fnv(found), 0
    for number in range(ITEMS):
        pipe.execute_command("CF.EXISTS", key, f"i{number}")
    found = pipe.execute()
    for number in range(COUNTED):
        pipe.execute_command("CF.COUNT", key, f"i{number}")
    return sum(found), fnv(found), fnv(pipe.execute())


def main():
    client = redis.Redis(port=int(sys.argv[1]))
    client.flushall()
    make(client)
    lines = ["# name, items, answers 1 for i0 to i999999, their FNV-1a, FNV-1a of CF.COUNT of i0 to i9999"]
    for key in sorted(key.decode() for key in client.keys()):
        family = key[:2].upper()
        info = client.execute_command(f"{family}.INFO", key)
        fields = dict(zip(info[::2], info[1::2])) if isinstance(info, list) else info
        items = {str(name, "ascii") if isinstance(name, bytes) else name: value for name, value in fields.items()}
        (FOLDER / f"{key}.dump").write_bytes(client.dump(key))
        (FOLDER / f"{key}.chunks").write_bytes(chunks(client, key, family))
        found, digest, counts = answers(client, key, family)
        lines.append(f"{key} {items['Number of items inserted']} {found} {digest:016x} {counts:016x}")
        print(lines[-1])
    (FOLDER / "answers.txt").write_text("\n".join(lines) + "\n")
    client.save()


main()
