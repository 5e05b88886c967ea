"""Every method of redis-py's r.bf() and r.cf(), with real values: python filters.py <port> <protocol>.

Run by filters.rs, on a server that is empty.
"""

import sys

import redis

PORT, PROTOCOL = int(sys.argv[1]), int(sys.argv[2])
RESP3 = PROTOCOL == 3

client = redis.Redis(port=PORT, protocol=PROTOCOL)
bf, cf = client.bf(), client.cf()


def same(real, expected):
    # In RESP2 1 and 0 are what True and False are in RESP3; Python takes them for equal, so types are compared as well.
    assert repr(real) == repr(expected), f"{real!r}, not {expected!r}"


def truth(*truths):
    return [bool(truth) if RESP3 else int(truth) for truth in truths]


def refused(text, method, *arguments, **options):
    try:
        reply = method(*arguments, **options)
    except redis.ResponseError as error:
        assert str(error) == text, f"{error}, not {text}"
    else:
        raise AssertionError(f"{reply!r}, not {text}")


def fields(info, names):
    """The fields of an INFO, which is an object in RESP2 and a dictionary in RESP3."""
    if RESP3:
        return [info[name.encode() if name.encode() in info else name] for name in names.values()]
    return [info[name] for name in names]


BF_FIELDS = {
    "capacity": "Capacity",
    "filterNum": "Number of filters",
    "insertedNum": "Number of items inserted",
    "expansionRate": "Expansion rate",
}
CF_FIELDS = {
    "filterNum": "Number of filters",
    "insertedNum": "Number of items inserted",
    "deletedNum": "Number of items deleted",
    "bucketSize": "Bucket size",
    "expansionRate": "Expansion rate",
    "maxIteration": "Max iterations",
}


def copy_of(helper, key, copy):
    """Dumps and loads a filter as redis-py's documentation has it."""
    chunks, iterator = [], 0
    while True:
        iterator, data = helper.scandump(key, iterator)
        if iterator == 0:
            same(data, b"")
            break
        chunks.append((iterator, data))
    for iterator, data in chunks:
        reply = helper.loadchunk(copy, iterator, data)
        assert reply in (b"OK", True, "OK"), reply
    return len(chunks)


def test_bloom():
    same(bf.create("a", 0.001, 1000), True)
    same(bf.reserve("b", 0.01, 500, expansion=4), True)
    same(bf.create("c", 0.0001, 3, noScale=True), True)
    refused("item exists", bf.create, "a", 0.001, 1000)
    refused("bad error rate", bf.create, "new", "x", 1000)
    refused("error rate must be in the range (0.000000, 1.000000)", bf.create, "new", 1, 1000)
    refused("capacity must be in the range [1, 1073741824]", bf.create, "new", 0.1, 0)
    refused("Nonscaling filters cannot expand", bf.create, "new", 0.1, 5, expansion=2, noScale=True)

    same([bf.add("a", "x")], truth(1))
    same([bf.add("a", b"x")], truth(0))
    same([bf.add("a", b"\x00\xff")], truth(1))
    same(bf.madd("a", "x", "y", 5), truth(0, 1, 1))
    same([bf.exists("a", "y"), bf.exists("a", "z")], truth(1, 0))
    same(bf.mexists("a", "5", "z", b"\x00\xff"), truth(1, 0, 1))
    same([bf.exists("none", "y")], truth(0))
    same(bf.card("a"), 4)
    same(bf.card("none"), 0)

    same(bf.insert("d", ["x", "y", "x"]), truth(1, 1, 0))
    same(bf.insert("e", ["x"], capacity=50, error=0.5, expansion=8), truth(1))
    same(bf.insert("f", ["x"], capacity=7, noScale=True), truth(1))
    same(bf.insert("f", ["x", "y"], noCreate=True), truth(0, 1))
    refused("not found", bf.insert, "none", ["x"], noCreate=True)

    same(fields(bf.info("a"), BF_FIELDS), [1000, 1, 4, 2])
    same(fields(bf.info("b"), BF_FIELDS), [500, 1, 0, 4])
    same(fields(bf.info("d"), BF_FIELDS), [100, 1, 2, 2])
    same(fields(bf.info("e"), BF_FIELDS), [50, 1, 1, 8])
    same(fields(bf.info("f"), BF_FIELDS), [7, 1, 2, None])
    assert 1000 <= fields(bf.info("a"), {"size": "Size"})[0] < 4000
    refused("not found", bf.info, "none")

    # An error in the midst of a list is an exception as its element.
    same([bf.add("c", item) for item in "xyz"], truth(1, 1, 1))
    refused("non scaling filter is full", bf.add, "c", "w")
    replies = bf.madd("c", "x", "w", "y")
    same([replies[0], replies[2]], truth(0, 0))
    assert isinstance(replies[1], redis.ResponseError), replies
    assert str(replies[1]) == "non scaling filter is full", replies

    for item in range(3000):
        bf.add("a", item)
    assert copy_of(bf, "a", "copy") >= 2
    same(bf.card("copy"), bf.card("a"))
    same(bf.mexists("copy", *range(3000)), truth(*[1] * 3000))
    refused("received bad data", bf.loadchunk, "nonsense", 1, b"nonsense")
    refused("not found", bf.scandump, "none", 0)

    with client.pipeline() as pipe:
        pipe.bf().add("p", "x")
        pipe.bf().exists("p", "x")
        pipe.bf().card("p")
        same(pipe.execute(), [*truth(1, 1), 1])

    client.set("string", "v")
    wrong = "WRONGTYPE Operation against a key holding the wrong kind of value"
    refused(wrong, bf.add, "string", "x")
    refused(wrong, bf.exists, "string", "x")


def test_cuckoo():
    same(cf.create("a", 1000), True)
    same(cf.reserve("b", 1000, expansion=4, bucket_size=2, max_iterations=5), True)
    refused("item exists", cf.create, "a", 1000)
    refused("bad capacity", cf.create, "new", "x")

    same([cf.add("a", "x"), cf.add("a", "x")], truth(1, 1))
    same([cf.addnx("a", "x"), cf.addnx("a", b"\x00\xff")], truth(0, 1))
    same(cf.insert("c", ["x", "y", "x"]), truth(1, 1, 1))
    same(cf.insert("d", ["x"], capacity=5000), truth(1))
    same(cf.insert("d", ["x"], nocreate=True), truth(1))
    refused("Not found", cf.insert, "none", ["x"], nocreate=True)
    same(cf.insertnx("c", ["x", "z", "z"]), [0, 1, 0])
    same(cf.insertnx("e", ["x"], capacity=5000), [1])
    refused("Not found", cf.insertnx, "none", ["x"], nocreate=True)

    same([cf.exists("a", "x"), cf.exists("a", "z"), cf.exists("none", "z")], truth(1, 0, 0))
    same(cf.mexists("a", "x", "z", b"\x00\xff"), truth(1, 0, 1))
    same([cf.count("a", "x"), cf.count("a", "z"), cf.count("none", "x")], [2, 0, 0])
    same([cf.delete("a", "x"), cf.delete("a", "z")], truth(1, 0))
    same(cf.count("a", "x"), 1)
    refused("Not found", cf.delete, "none", "x")

    same(fields(cf.info("a"), CF_FIELDS), [1, 2, 1, 4, 1, 20])
    same(fields(cf.info("b"), CF_FIELDS), [1, 0, 0, 2, 4, 5])
    size, buckets = fields(cf.info("d"), {"size": "Size", "bucketNum": "Number of buckets"})
    assert 4 * buckets >= 5000 and size >= 8 * buckets, (size, buckets)
    refused("Not found", cf.info, "none")

    client.execute_command("CF.RESERVE", "full", 1, "EXPANSION", 0)
    replies = [cf.insert("full", [item])[0] for item in range(1000)]
    same(replies[0], truth(1)[0])
    assert (replies[-1] is False) if RESP3 else (replies[-1] == -1), replies[-1]
    same(cf.insertnx("full", ["new"]), [-1])
    refused("Filter is full", cf.add, "full", "new")
    refused("Filter is full", cf.addnx, "full", "new")

    cf.insert("b", list(range(5000)))
    assert copy_of(cf, "b", "copy") >= 2
    same(cf.mexists("copy", *range(5000)), truth(*[1] * 5000))
    same(fields(cf.info("copy"), CF_FIELDS), fields(cf.info("b"), CF_FIELDS))
    refused("received bad data", cf.loadchunk, "nonsense", 1, b"nonsense")
    refused("Not found", cf.scandump, "none", 0)

    client.set("string", "v")
    wrong = "WRONGTYPE Operation against a key holding the wrong kind of value"
    refused(wrong, cf.add, "string", "x")
    refused(wrong, cf.exists, "string", "x")


def test_nothing_is_left_out():
    """A method that a later redis-py has makes this fail, so that it is tried as well."""
    bloom = "create reserve add madd insert exists mexists scandump loadchunk info card"
    cuckoo = "create reserve add addnx insert insertnx exists mexists delete count scandump loadchunk info"
    for mixin, known in [("BFCommands", bloom), ("CFCommands", cuckoo)]:
        methods = vars(getattr(redis.commands.bf, mixin))
        methods = {name for name in methods if not name.startswith("_")}
        same(sorted(methods), sorted(known.split()))


TESTS = [
    test_bloom,
    test_cuckoo,
    test_nothing_is_left_out,
]

for test in TESTS:
    client.flushall()
    test()
    print(test.__name__, flush=True)
