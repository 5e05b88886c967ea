"""Makes the data of RedisBloom with a server that has it: `python3 make.py PORT FOLDER`. FOLDER is `2.2` for the files of this
folder, or `1.0`, `2.0`, `8.8` for those of a folder below. Only local servers with `--rdbcompression no` are of use."""

import pathlib
import struct
import sys

import redis

HERE = pathlib.Path(__file__).parent
ITEMS = 1_000_000
COUNTED = 10_000
BATCH = 1000


def fnv(values):
    """FNV-1a with 64 bits, of values from 0 to 255."""
    digest = 0xCBF29CE484222325
    for value in values:
        digest = (digest ^ value) * 0x100000001B3 % (1 << 64)
    return digest


class Maker:
    """Fills filters and counts their items, because the oldest versions have no `INFO`."""

    def __init__(self, client):
        self.client, self.items = client, {}

    def run(self, *words):
        return self.client.execute_command(*words)

    def add(self, key, count, copies=1):
        command, added = f"{key[:2].upper()}.ADD", 0
        for first in range(0, count, BATCH):
            pipe = self.client.pipeline(transaction=False)
            for number in range(first, min(first + BATCH, count)):
                for _ in range(copies):
                    pipe.execute_command(command, key, f"i{number}")
            added += sum(pipe.execute())
        self.items[key] = self.items.get(key, 0) + added

    def reserve(self, key, *words):
        self.run(f"{key[:2].upper()}.RESERVE", key, *words)
        self.items[key] = 0

    def restore(self, key, path):
        self.client.restore(key, 0, path.read_bytes())

    def make_1_0(self):
        self.add("bf-default", 1000)
        self.reserve("bf-half", 0.01, 1000)
        self.add("bf-half", 500)
        self.reserve("bf-wide", 0.0001, 500)
        self.add("bf-wide", 6000)
        self.reserve("bf-empty", 0.01, 1000)
        self.reserve("bf-million", 0.2, 1_000_000)
        self.add("bf-million", ITEMS)

    def make_2_0(self):
        self.make_1_0()
        self.run("DEL", "bf-million")
        del self.items["bf-million"]
        self.restore("bf-old", HERE / "1.0" / "bf-wide.dump")
        self.items["bf-old"] = self.items["bf-wide"]
        self.reserve("cf-default", 1000)
        self.add("cf-default", 5000)
        self.reserve("cf-deleted", 2000)
        self.add("cf-deleted", 2000)
        for number in range(1000):
            self.items["cf-deleted"] -= self.run("CF.DEL", "cf-deleted", f"i{number}")
        self.reserve("cf-copies", 4000)
        self.add("cf-copies", 1000, copies=3)
        self.reserve("cf-empty", 1000)
        self.reserve("cf-million", ITEMS)
        self.add("cf-million", ITEMS)

    def make_2_2(self):
        self.add("bf-default", 1000)
        self.reserve("bf-fixed", 0.001, 1000, "NONSCALING")
        self.add("bf-fixed", 1000)
        self.reserve("bf-half", 0.01, 1000, "NONSCALING")
        self.add("bf-half", 500)
        self.reserve("bf-empty", 0.01, 1000)
        self.reserve("bf-wide", 0.0001, 500, "EXPANSION", 4)
        self.add("bf-wide", 6000)
        self.reserve("cf-default", 1000)
        self.add("cf-default", 5000)
        self.reserve("cf-one", 1024, "BUCKETSIZE", 1)
        self.add("cf-one", 500)
        self.reserve("cf-four", 1000, "BUCKETSIZE", 4, "EXPANSION", 2)
        self.add("cf-four", 4000)
        self.reserve("cf-deleted", 2000)
        self.add("cf-deleted", 2000)
        for number in range(1000):
            self.items["cf-deleted"] -= self.run("CF.DEL", "cf-deleted", f"i{number}")
        self.reserve("cf-copies", 4000)
        self.add("cf-copies", 1000, copies=3)
        self.reserve("cf-empty", 1000)

    def make_8_8(self):
        self.make_2_2()
        self.reserve("bf-million", 0.3, 500_000, "EXPANSION", 1)
        self.add("bf-million", ITEMS)
        self.reserve("cf-million", ITEMS, "BUCKETSIZE", 4, "MAXITERATIONS", 500)
        self.add("cf-million", ITEMS)

    def chunks(self, key):
        cursor, out = 0, b""
        while True:
            cursor, data = self.run(f"{key[:2].upper()}.SCANDUMP", key, cursor)
            if cursor == 0:
                return out
            out += struct.pack("<QQ", cursor, len(data)) + data

    def answers(self, key):
        """The number of answers 1, and the digests of `EXISTS` and of `CF.COUNT`."""
        asked = 2 * ITEMS if key.endswith("-million") else ITEMS
        family, found = key[:2].upper(), []
        for first in range(0, asked, BATCH):
            items = [f"i{number}" for number in range(first, first + BATCH)]
            if family == "BF":
                found += self.run("BF.MEXISTS", key, *items)
                continue
            pipe = self.client.pipeline(transaction=False)
            for item in items:
                pipe.execute_command("CF.EXISTS", key, item)
            found += pipe.execute()
        counts = []
        if family == "CF":
            counts = [self.run("CF.COUNT", key, f"i{number}") for number in range(COUNTED)]
        return sum(found), fnv(found), fnv(counts) if counts else 0


def main():
    port, version = sys.argv[1:]
    folder = HERE if version == "2.2" else HERE / version
    folder.mkdir(exist_ok=True)
    client = redis.Redis(port=int(port))
    client.flushall()
    maker = Maker(client)
    getattr(maker, f"make_{version.replace('.', '_')}")()
    lines = ["# name, items, answers 1 for i0 to i999999 (a million: to i1999999), their FNV-1a, FNV-1a of CF.COUNT of i0 to i9999"]
    for key in sorted(maker.items):
        (folder / f"{key}.dump").write_bytes(client.dump(key))
        if not key.endswith("-million"):
            (folder / f"{key}.chunks").write_bytes(maker.chunks(key))
        found, digest, counts = maker.answers(key)
        lines.append(f"{key} {maker.items[key]} {found} {digest:016x} {counts:016x}")
        print(lines[-1])
    (folder / "answers.txt").write_text("\n".join(lines) + "\n")
    for key in maker.items:
        if key.endswith("-million"):
            client.delete(key)
    client.save()


main()
