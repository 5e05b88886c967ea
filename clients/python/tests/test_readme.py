"""The examples of the README run."""

import importlib.util
import json
import pathlib
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

from settings import PORT

README = pathlib.Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"^```python *([^\n]*)\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)


def code(name):
    """The examples of a name, for the server of the tests."""
    text = "\n".join(text for other, text in BLOCKS if other == name)
    options = f"port={PORT}, socket_timeout=60, "
    return text.replace("Redis(decode", f"Redis({options}decode").replace("ConnectionPool(max", f"ConnectionPool({options}max")


def start(name, folder, *arguments, **options):
    """Starts an example of the README."""
    program = folder / name
    program.write_text(code(name))
    source = pathlib.Path(importlib.util.find_spec("sluice").origin).parents[1]
    return subprocess.Popen([sys.executable, str(program), *arguments], env={"PYTHONPATH": str(source)}, **options)


def ask(url, **options):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, **options)) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_the_shop_sells_as_the_readme_says(admin, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    shop = start("shop.py", tmp_path, str(port), stderr=subprocess.DEVNULL)
    worker = None
    try:
        deadline = time.monotonic() + 60
        while socket.socket().connect_ex(("127.0.0.1", port)):
            assert shop.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        for request, reply in re.findall(r"^\| (`curl[^|]*|the same again) \| `(.*)`.* \|$", README.read_text(), re.MULTILINE):
            if request != "the same again":
                path = re.search(r"localhost:8000([^'`]*)", request)[1]
            method = "POST" if "buy" in path else "GET"
            assert ask(url + path, method=method)[1] == json.loads(reply), path
        assert ask(url + "/buy?user=ann&order=3", method="POST")[0] == 409
        assert any(ask(url + "/buy?user=ann&order=3", method="POST")[0] == 429 for _ in range(1000))
        for _ in range(20):  # a repetition uses no quota, and no other user can block an order
            assert ask(url + "/buy?user=ann&order=2", method="POST") == (200, {"available": 8})
        assert ask(url + "/buy?user=bob&order=2", method="POST") == (200, {"available": 7})
        assert admin.xlen("sku:1:events") == 4  # the creation and three sales
        worker = start("worker.py", tmp_path, stdout=subprocess.PIPE, text=True)
        assert [worker.stdout.readline() for _ in range(2)] == [f"sold to ann with order ann:{order}\n" for order in (1, 2)]
    finally:
        for program in filter(None, (shop, worker)):
            program.kill()
            program.wait()


def test_the_other_examples_run(admin, capsys):
    exec(compile(code(""), "README.md", "exec"), {})
    exec(compile(code("asyncio"), "README.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        "fencing token: True", "exclusive, fencing token: True", "1 holder", "available: 2", "Ann", "{'user:ann': 'Ann', 'user:bob': 'Ann'}", "Ann", "allowed",
        "receipt 17", "receipt 17", "receipt 18",
        "[201, 'ann:k1'] [201, 'ann:k1'] [422, 'the key was used for another request']",
        "[200, 'receipt 19'] [200, 'receipt 19'] [409, 'UNKNOWN']", "True False", "fencing token: True", "Ann",
    ]


def test_the_recipe_of_a_purchase(admin, capsys):
    readme = {}
    exec(compile(code(""), "README.md", "exec"), readme)
    buy, pay, stock, Declined = (readme[name] for name in ("buy", "pay", "sluice", "Declined"))
    stock = stock.stock
    # The first purchase was paid, and the next one is declined: the piece returns, and the order is closed.
    assert stock.get("sku:3") == 4 and buy("bob", "b1") == [201, "bob:b1"] and stock.get("sku:3") == 3

    def decline(order):
        raise Declined

    readme["charge_order"] = decline
    assert [pay("bob", "b1") for _ in range(2)] == [[402, "DECLINED"]] * 2 and stock.get("sku:3") == 4
    assert stock.order("sku:3", "bob:b1")["state"] == "cancelled"

    def refuse(order):
        raise AssertionError("nothing to charge")

    # No order of this user, and a canceled one: no charge.
    readme["charge_order"] = refuse
    assert pay("eve", "b1") == [409, "UNKNOWN"] and buy("eve", "e1") == [201, "eve:e1"]
    stock.cancel("sku:3", "eve:e1")
    assert pay("eve", "e1") == [409, "CLOSED"] and buy("eve", "e1") == [201, "eve:e1"]
    # The provider does not answer: the key is busy.

    def lose(order):
        raise TimeoutError

    readme["charge_order"] = lose
    assert buy("dan", "d1") == [201, "dan:d1"] and pay("dan", "d1")[0] == 503
    assert admin.pttl("pay:dan:d1") > 0 and stock.order("sku:3", "dan:d1")["state"] == "sold"
    # Refusals of stock are remembered, those of the limit are not.
    assert buy("tom", "t1", 2) == [201, "tom:t1"] and buy("tom", "t2") == [409, "OVER_USER_LIMIT"]
    assert buy("lea", "l1", 2) == [409, "SOLD_OUT"] and stock.add("sku:3", 5, order="more")
    assert buy("lea", "l1", 2) == [409, "SOLD_OUT"] and buy("lea", "l2", 2) == [201, "lea:l2"]
    statuses = {buy("tom", f"new {number}")[0] for number in range(50)}
    assert statuses == {409, 429}
    assert buy("tom", "t1", 2) == [201, "tom:t1"]  # a repetition uses no quota
