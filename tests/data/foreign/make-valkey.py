"""Makes the data of valkey-bloom with a local server that has it and `--rdbcompression no`: `python3 make-valkey.py PORT`."""

import pathlib
import struct
import sys

import redis

HERE = pathlib.Path(__file__).parent
ITEMS = 1_000_000
BATCH = 1000
FILTERS = [  # name, rate, capacity, expansion (0: does not grow), seed, items
    ("vb-default", 0.01, 100, 2, "random", 1000),
    ("vb-empty", 0.01, 1000, 2, "random", 0),
    ("vb-fixed", 0.001, 1000, 0, "random", 1000),
    ("vb-half", 0.01, 1000, 0, "random", 500),
    ("vb-seed", 0.01, 1000, 2, "fixed", 1500),
    ("vb-wide", 0.0001, 500, 4, "random", 6000),
    ("vb-million", 0.2, 500_000, 1, "random", ITEMS),
]


def fnv(values):
    """FNV-1a with 64 bits, of values from 0 to 255."""
    digest = 0xCBF29CE484222325
    for value in values:
        digest = (digest ^ value) * 0x100000001B3 % (1 << 64)
    return digest


def length(data, at):
    """A length of the RDB format, and the position behind it."""
    first = data[at]
    if first >> 6 == 0:
        return first & 63, at + 1
    if first >> 6 == 1:
        return (first & 63) << 8 | data[at + 1], at + 2
    size = {0x80: 4, 0x81: 8}[first]
    return int.from_bytes(data[at + 1 : at + 1 + size], "big"), at + 1 + size


def values(payload):
    """The numbers and strings of a module's value."""
    _, at = length(payload, 1)
    out = []
    while True:
        code, at = length(payload, at)
        if code == 0:
            return out
        if code == 4:  # a double
            out.append(struct.unpack_from("<Q", payload, at)[0])
            at += 8
            continue
        number, at = length(payload, at)
        if code == 5:  # a string
            out.append(payload[at : at + number])
            at += number
        else:
            out.append(number)


def parts(payload):
    """The numbers of the filter, then the capacity and the bitmap of each link."""
    count, expansion, rate, tightening, is_random, *links, last = values(payload)
    numbers = struct.pack("<QQQQQ", expansion, rate, tightening, is_random, last)
    records = [(0, numbers)] + [(links[2 * i + 1], links[2 * i]) for i in range(count)]
    return b"".join(struct.pack("<QQ", number, len(data)) + data for number, data in records)


def main():
    client = redis.Redis(port=int(sys.argv[1]))
    client.flushall()
    lines = ["# name, items, answers 1 for i0 to i999999 (a million: to i1999999), their FNV-1a"]
    for name, rate, capacity, expansion, seed, items in FILTERS:
        client.execute_command("BF.RESERVE", name, rate, capacity, expansion, seed)
        full = 0
        for first in range(0, items, BATCH):
            names = [f"i{number}" for number in range(first, min(first + BATCH, items))]
            full += len(names) - len(client.execute_command("BF.MADD", name, *names))
        assert full == 0
        asked = 2 * ITEMS if name.endswith("-million") else ITEMS
        found = []
        for first in range(0, asked, BATCH):
            names = [f"i{number}" for number in range(first, first + BATCH)]
            found += client.execute_command("BF.MEXISTS", name, *names)
        payload = client.dump(name)
        (HERE / f"{name}.dump").write_bytes(payload)
        if not name.endswith("-million"):
            (HERE / f"{name}.parts").write_bytes(parts(payload))
        lines.append(f"{name} {client.execute_command('BF.CARD', name)} {sum(found)} {fnv(found):016x} 0")
        print(lines[-1])
    (HERE / "answers-valkey.txt").write_text("\n".join(lines) + "\n")
    client.delete("vb-million")
    client.save()


main()
