"""The page of examples/shop in a real browser: python page.py. Run by tests/shop/main.rs.

Starts the shop as `make shop` does, and ends it with Ctrl-C. Prints the name of each test that has passed.
`python page.py docs/shop.png` writes the picture of the documentation instead.
"""

import base64
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import subprocess
import sys
import time

from selenium import webdriver

RUN = pathlib.Path(__file__).parents[2] / "examples/shop/run.py"
PATIENCE_S = 120  # many times what a step takes
STOCK = 3


def program(*names):
    return next(path for name in names if (path := shutil.which(name)))


def start_browser(width=1280, height=1000):
    options = webdriver.ChromeOptions()
    options.binary_location = program("chromium", "chromium-browser", "google-chrome")
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                 "--force-prefers-reduced-motion", f"--window-size={width},{height}"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options, webdriver.ChromeService(program("chromedriver")))


class Page:
    def __init__(self, url, folder):
        self.url = url
        self.folder = folder
        self.browser = start_browser()
        self.browser.get(url)

    def js(self, script, *arguments):
        return self.browser.execute_script(script, *arguments)

    def text(self, selector):
        return self.js("return document.querySelector(arguments[0])?.textContent.trim() ?? ''", selector)

    def click(self, selector):
        """Clicks when the element is there and enabled."""
        eventually(lambda: self.js(
            "const e = document.querySelector(arguments[0]);"
            "return !!e && !e.disabled && e.offsetParent !== null && (e.click(), true)", selector))

    def fetch(self, path, body=None, user="somebody", key=None):
        """The status and the reply of a request from the page. With a body it is a POST."""
        return self.browser.execute_async_script(
            """const [path, body, user, key, done] = arguments;
            const headers = { "X-User": user, ...(key && { "Idempotency-Key": key }) };
            const options = body && { method: "POST", body: JSON.stringify(body) };
            fetch(path, { ...options, headers }).then(async (reply) => done([reply.status, await reply.json()]))""",
            path, body, user, key)

    def flash(self):
        return self.js("return document.getElementById('flash-buy').dataset.state")

    def states(self):
        """The states of my orders, newest first."""
        return self.js("return [...document.querySelectorAll('.order')].map((order) => order.dataset.state)")

    def rows(self):
        """The further numbers of the board, by their names."""
        return self.js("return Object.fromEntries([...document.querySelectorAll('#numbers div')]"
                       ".map((row) => [row.children[0].textContent, row.children[1].textContent]))")

    def number(self, name):
        text = self.text(f"#n-{name}")
        return int(text) if text.isdigit() else None


def eventually(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < deadline, "it never becomes true"
        time.sleep(0.05)
    return value


def keep_down(page, program, down_s):
    """Kills a program if it runs, and starts it `down_s` seconds from now. Tests use 60 s, which lasts until they have seen the outage."""
    eventually(lambda: page.fetch("/api/break", {"what": program, "down_s": down_s})[0] == 200)


def the_countdown_opens_the_button(page):
    status, sale = page.fetch("/api/sales", {"stock": STOCK, "in_s": 20})
    assert status == 201
    eventually(lambda: page.flash() == "countdown")
    assert re.fullmatch(r"Begins in 0:\d\d", page.text("#flash-buy")), page.text("#flash-buy")
    assert page.js("return document.getElementById('flash-buy').disabled")
    status, reply = page.fetch("/api/orders", {"product": sale["product"], "qty": 1}, key="too-early")
    assert status == 403 and "not begun" in reply["error"], (status, reply)
    eventually(lambda: page.flash() == "open")
    assert page.text("#flash-buy") == "Buy now" and page.text("#flash-stock") == str(STOCK)


def a_visitor_buys_and_pays(page):
    page.click("#flash-buy")
    eventually(lambda: page.states() == ["reserved"])
    eventually(lambda: "in the database" in page.text(".order small"))
    page.click(".order [data-verb=pay]")
    eventually(lambda: page.states() == ["sold"])
    eventually(lambda: page.number("sold") == 1)


def a_customer_gets_no_more_than_the_limit(page):
    page.click("#flash-buy")
    eventually(lambda: page.states() == ["reserved", "sold"])
    page.click("#flash-buy")
    eventually(lambda: "At most 2 items for each customer." in page.text("#toast"))
    assert page.states() == ["reserved", "sold"]


def the_sale_sells_out(page):
    status, product = flash_product(page)
    for _ in range(3):  # repeated requests with one key are one order
        status, reply = page.fetch("/api/orders", {"product": product, "qty": 1}, "bob", "bobs-order")
        assert status == 201, (status, reply)
    eventually(lambda: page.flash() == "sold-out")
    assert page.text("#flash-buy") == "Sold out"
    status, reply = page.fetch("/api/orders", {"product": product, "qty": 1}, "carol", "carols-order")
    assert (status, reply["error"]) == (409, "sold out")


def the_board_shows_the_numbers_of_the_database(page):
    eventually(lambda: page.text("#connection") == "live")
    eventually(lambda: [page.number(name) for name in ("stock", "reserved", "sold", "oversold")] == [0, STOCK - 1, 1, 0])
    # The board reads the counters before the stocks, so the counters can be those of a moment earlier.
    eventually(lambda: int(page.rows()["repeated requests"]) >= 2)
    rows = page.rows()
    assert rows["breaker"] == "closed", rows
    assert {"hit ratio", "queue lag", "limiter refusals", "cache waits"} <= set(rows)
    assert re.fullmatch(r"–|\d+ ms", rows["p99 of orders"]), rows
    eventually(lambda: all(page.rows()[name] == "0" for name in ("unwritten orders", "over their limit", "stale products")))
    eventually(lambda: page.js("return document.getElementById('orders-line').getAttribute('d').split('L').length") > 3)


def flash_product(page):
    status, reply = page.fetch("/api/products")
    return status, next(product["id"] for product in reply["products"] if product["is_flash"])


def a_refund_returns_the_item(page):
    page.click(".order[data-state=sold] [data-verb=refund]")
    eventually(lambda: page.states() == ["reserved", "cancelled"])
    eventually(lambda: page.flash() == "open" and page.text("#flash-left") == "1")
    eventually(lambda: page.number("sold") == 0)
    assert page.text(".order[data-state=cancelled] .pill") in ("canceled", "refunded")
    eventually(lambda: "€99.00 returned" in page.text(".order[data-state=cancelled] small"))
    assert page.text(".order[data-state=cancelled] .pill") == "refunded"


def a_changed_price_is_shown(page):
    selector = "[data-product='1'] .cents"
    for forget, cents in ((False, 4200), (True, 4300)):
        status, _ = page.fetch("/api/products/1/price", {"price_cents": cents, "forget": forget})
        assert status == 200
        eventually(lambda: page.text(selector) == f"€{cents / 100:.2f}")


def a_manual_update_is_shown(page):
    """The statement changes no version. The entry is fresh for an hour, so only the reader of the binlog can do it."""
    for cents in range(4500, 4510):
        statement = f"UPDATE products SET price_cents = {cents} WHERE id = 1"
        socket = f"--socket={page.folder / 'mariadb.sock'}"
        subprocess.run([program("mariadb"), "--no-defaults", socket, "--user=root", "--execute", statement, "shop"], check=True)
        eventually(lambda: page.text("[data-product='1'] .cents") == f"€{cents / 100:.2f}")


def an_invalidation_that_fails_raises_an_alarm(page):
    numbers = "return [...document.querySelectorAll('#numbers div')].map((row) => row.textContent).join()"
    keep_down(page, "cache", 60)
    status, _ = page.fetch("/api/products/2/price", {"price_cents": 4400})
    assert status == 200
    eventually(lambda: "delayed invalidations1" in page.js(numbers))
    eventually(lambda: "invalidation alarms1" in page.js(numbers))
    keep_down(page, "cache", 0)
    eventually(lambda: page.text("#connection") == "live")
    eventually(lambda: "invalidation alarms0" in page.js(numbers) and "delayed invalidations0" in page.js(numbers))
    eventually(lambda: page.text("[data-product='2'] .cents") == "€44.00")


def a_killed_worker_is_shown_and_its_orders_follow(page):
    service, place = "[data-service=worker]", "return document.getElementById('twice').getBoundingClientRect().top + scrollY"
    before = page.js(place)
    page.click("[data-break=worker]")
    keep_down(page, "worker", 60)
    eventually(lambda: re.fullmatch(r"order workerback in [1-9]\d* s", page.text(service)))
    assert page.js("return document.querySelector('[data-break=worker]').disabled")
    assert page.text("#books-note") == "Reserved and sold are old until the order worker is back."
    assert page.js(place) == before, "the buttons keep their place"
    page.click("[data-product='1'] button")
    eventually(lambda: page.states() == ["reserved", "reserved", "cancelled"])
    keep_down(page, "worker", 0)
    eventually(lambda: page.text(service) == "order workerruns")
    eventually(lambda: "in the database" in page.text(".order small"))
    eventually(lambda: page.rows()["unwritten orders"] == "0")
    assert "Order worker is back" in page.text("#news")


def requests_that_are_sent_twice_order_once(page):
    page.click("#twice")
    eventually(lambda: page.js("return document.getElementById('twice').getAttribute('aria-pressed')") == "true")
    page.click("[data-product='2'] button")
    eventually(lambda: page.states() == ["reserved", "reserved", "reserved", "cancelled"])
    page.click(".order [data-verb=pay]")
    eventually(lambda: page.states() == ["sold", "reserved", "reserved", "cancelled"])
    user = page.text("#user")
    eventually(lambda: len(page.fetch("/api/orders", user=user)[1]["orders"]) == 4)
    page.click("#twice")


def a_stopped_database_is_shown_and_the_shop_goes_on(page):
    page.click("[data-break=mariadb]")
    keep_down(page, "mariadb", 60)
    eventually(lambda: "MariaDB" in page.text("#connection"))
    page.click("[data-product='3'] button")
    eventually(lambda: page.states()[0] == "reserved" and len(page.states()) == 5)
    keep_down(page, "mariadb", 0)
    eventually(lambda: page.text("#connection") == "live")
    eventually(lambda: "in the database" in page.text(".order small"))
    assert page.number("oversold") == 0


def a_restarted_redis_keeps_orders_and_counts(page):
    repeated = "return Number([...document.querySelectorAll('#numbers div')]" \
               ".find((row) => row.children[0].textContent === 'repeated requests').children[1].textContent)"
    before, states, left = page.js(repeated), page.states(), page.text("#flash-left")
    assert before > 0
    page.click("[data-break=orders]")
    eventually(lambda: "Redis (orders) is back" in page.text("#news") and page.text("#connection") == "live")
    assert page.js(repeated) >= before, (page.js(repeated), before)
    assert (page.states(), page.text("#flash-left"), page.number("oversold")) == (states, left, 0)


def a_sale_without_redis_leaves_no_product(page):
    count = lambda: len(page.fetch("/api/products")[1].get("products", []))
    before = count()
    assert before > 0
    keep_down(page, "orders", 60)
    status, _ = page.fetch("/api/sales", {"stock": STOCK, "in_s": 0})
    assert status == 503
    eventually(lambda: "Redis" in page.text("#connection"))
    keep_down(page, "orders", 0)
    eventually(lambda: page.text("#connection") == "live")
    assert count() == before
    status, sale = page.fetch("/api/sales", {"stock": STOCK, "in_s": 0})
    assert status == 201
    eventually(lambda: flash_product(page)[1] == sale["product"])


def the_banner_and_the_board_show_the_same_stock(page):
    """In each frame, while a crowd buys and a sale begins."""
    status, sale = page.fetch("/api/sales", {"stock": 60, "in_s": 0})
    assert status == 201
    eventually(lambda: page.text("#flash-stock") == "60" and page.number("stock") == 60)
    page.js("""const text = (id) => document.getElementById(id).textContent;
        window.seen = [];
        const look = () => { seen.push([text("flash-left"), text("n-stock")]); window.looks = requestAnimationFrame(look); };
        look();""")
    page.click("#crowd")
    eventually(lambda: page.flash() == "sold-out" and page.number("stock") == 0)
    seen = page.js("cancelAnimationFrame(looks); return seen")
    assert all(left == stock for left, stock in seen), [pair for pair in seen if pair[0] != pair[1]]
    assert len({left for left, _ in seen}) > 1, seen
    eventually(lambda: page.number("sold") + page.number("reserved") == 60)
    eventually(lambda: "shoppers:" in page.text("#news"))


def an_order_costs_what_it_did_when_it_was_reserved(page):
    before, count = page.text("[data-product='3'] .cents"), len(page.states())
    page.click("[data-product='3'] button")
    eventually(lambda: len(page.states()) == count + 1)
    status, _ = page.fetch("/api/products/3/price", {"price_cents": 12300})
    assert status == 200
    eventually(lambda: page.text("[data-product='3'] .cents") == "€123.00")
    page.click(".order [data-verb=pay]")
    eventually(lambda: before in page.text(".order small"))


def a_refused_order_sets_no_price(page):
    prices = {product["id"]: product["price_cents"] for product in page.fetch("/api/products")[1]["products"] if not product["is_flash"]}
    cheap, dear = min(prices, key=prices.get), max(prices, key=prices.get)
    status, _ = page.fetch("/api/orders", {"product": cheap, "qty": 3}, "dave", "daves-order")
    assert status == 409
    status, reply = page.fetch("/api/orders", {"product": dear, "qty": 1}, "dave", "daves-order")
    assert status == 201, reply
    status, reply = page.fetch(f"/api/orders/{dear}/{reply['order']}/pay", {}, "dave")
    assert (status, reply.get("cents")) == (200, prices[dear]), reply


def orders_of_an_older_shop_are_not_shown(page):
    assert page.states()
    page.js("localStorage.shop = 'an older shop'")
    page.browser.refresh()
    eventually(lambda: page.text("#flash-name"))
    assert page.states() == [] and "Nothing yet" in page.text("#my-orders")


def a_page_without_products_says_so(page):
    for server in ("mariadb", "cache"):
        keep_down(page, server, 60)
    page.browser.refresh()
    eventually(lambda: page.text("#flash-hint") == "The products do not load. The page tries again.")
    for button in ("#crowd", "#price"):
        page.click(button)
        eventually(lambda: page.text("#toast") == "The page has no products yet.")
        page.js("document.getElementById('toast').textContent = ''")
    for server in ("mariadb", "cache"):
        keep_down(page, server, 0)
    eventually(lambda: page.text("#flash-name"))


def the_page_fits_a_phone(page):
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    for scheme in ("light", "dark"):
        page.browser.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
        width, needed = page.js("return [innerWidth, document.documentElement.scrollWidth]")
        assert width == 390 and needed <= 390, (width, needed)
        cut = page.js("""return [...document.querySelectorAll(".program, .program b, .tile, .tile span, #numbers dt")]
            .filter((cell) => cell.scrollWidth > cell.clientWidth && getComputedStyle(cell).display !== "inline")
            .map((cell) => cell.textContent)""")
        assert not cut, cut
    background = page.js("return getComputedStyle(document.body).backgroundColor")
    assert sum(map(int, re.findall(r"\d+", background)[:3])) < 150, background


def the_page_has_no_errors(page):
    # Replies such as 409 are logged by the browser itself.
    errors = [entry for entry in page.browser.get_log("browser") if entry["level"] == "SEVERE" and entry["source"] != "network"]
    assert not errors, errors


TESTS = [
    the_countdown_opens_the_button,
    a_visitor_buys_and_pays,
    a_customer_gets_no_more_than_the_limit,
    the_sale_sells_out,
    the_board_shows_the_numbers_of_the_database,
    a_refund_returns_the_item,
    a_changed_price_is_shown,
    a_manual_update_is_shown,
    an_invalidation_that_fails_raises_an_alarm,
    a_killed_worker_is_shown_and_its_orders_follow,
    requests_that_are_sent_twice_order_once,
    a_stopped_database_is_shown_and_the_shop_goes_on,
    a_restarted_redis_keeps_orders_and_counts,
    a_sale_without_redis_leaves_no_product,
    the_banner_and_the_board_show_the_same_stock,
    an_order_costs_what_it_did_when_it_was_reserved,
    a_refused_order_sets_no_price,
    orders_of_an_older_shop_are_not_shown,
    a_page_without_products_says_so,
    the_page_fits_a_phone,
    the_page_has_no_errors,
]


def open_shop(reserve_ms):
    """The process of the shop, its address, and its folder."""
    environment = os.environ | {"SHOP_RESERVE_MS": str(reserve_ms), "SHOP_TICK_MS": "1000", "SHOP_ALARM_AFTER": "3",
                                "SHOP_FRESH_MS": "3600000"}
    shop = subprocess.Popen([sys.executable, "-B", str(RUN), "--port", "0", "--sale-in", "0"], env=environment, text=True,
                            stdout=subprocess.PIPE)
    folder = None
    for line in shop.stdout:
        folder = folder or re.search(r"database in (\S+)", line)
        if url := re.search(r"http://\S+", line):
            return shop, url[0], pathlib.Path(folder[1])
    raise AssertionError("the shop does not start")


def nothing_is_left(folder):
    assert not folder.exists()
    left = subprocess.run(["pgrep", "-f", str(folder)], stdout=subprocess.PIPE, text=True).stdout
    assert not left, left


def ctrl_c_ends_everything(shop, folder):
    shop.send_signal(signal.SIGINT)
    assert shop.wait(PATIENCE_S) == 0
    assert "all files are removed" in shop.stdout.read()
    nothing_is_left(folder)


def open_shop_in_terminal(until):
    """The process of a terminal with the shop, the terminal, and the folder of the shop, after a line with `until`."""
    process, terminal = pty.fork()
    if process == 0:
        script = 'trap : HUP INT; "$@"; true'
        os.execvp("bash", ["bash", "-c", script, "bash", sys.executable, "-B", str(RUN), "--port", "0"])
    output = ""
    while until not in output:
        output += os.read(terminal, 4096).decode()
    return process, terminal, pathlib.Path(re.search(r"database in (\S+)", output)[1])


def a_closed_terminal_ends_everything():
    """The leader of the session can be `make`, which does not pass SIGHUP on."""
    for until in ("Starting the shop", "Ctrl-C ends it."):
        process, terminal, folder = open_shop_in_terminal(until)
        os.close(terminal)
        os.waitpid(process, 0)
        nothing_is_left(folder)


def a_terminal_that_closes_after_ctrl_c_ends_everything():
    process, terminal, folder = open_shop_in_terminal("Ctrl-C ends it.")
    # A database that does not stop makes the cleanup longer than the shop needs to notice that the terminal closes.
    subprocess.run(["pkill", "-STOP", "-f", f"mariadbd.*{folder}"], check=True)
    os.write(terminal, b"\x03")
    eventually(lambda: not (folder / "orders.sock").exists())
    os.close(terminal)
    os.waitpid(process, 0)
    nothing_is_left(folder)


# Shoppers of a sale, about three a second: slow enough for a picture on which the page and the board show the same numbers.
SHOPPERS = """
const [product, count] = arguments;
const post = (path, headers, body = {}) => fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
(async () => {
  for (let i = 0; i < count; i++) {
    const headers = { "X-User": `crowd-${i}`, "X-Forwarded-For": `203.0.113.${i}`, "Idempotency-Key": `crowd-${i}` };
    const reply = await post("/api/orders", headers, { product, qty: 1 });
    if (reply.status === 201 && i % 10 < 7) await post(`/api/orders/${product}/${(await reply.json()).order}/pay`, headers);
    await new Promise((done) => setTimeout(done, 150 + 300 * Math.random()));
  }
})();
"""


def take_picture(page, file):
    """The shop during a sale. The banner and the board show the same stock."""
    for number, product in enumerate((6, 4)):
        page.click(f"[data-product='{product}'] button")
        eventually(lambda: len(page.states()) == number + 1)
        page.click(".order [data-verb=pay]")
        eventually(lambda: page.states()[0] == "sold")
    page.click("#price")
    page.js(SHOPPERS, flash_product(page)[1], 90)
    eventually(lambda: int(page.text("#flash-left")) < 55)
    page.click("#flash-buy")
    eventually(lambda: len(page.states()) == 3 and "in the database" in page.text(".order small"))
    numbers = lambda: [page.text(id) for id in ("#flash-left", "#n-reserved", "#n-sold", "#toast.shown")] + [page.rows()["queue lag"]]

    def is_normal():
        left, reserved, sold, toast, lag = numbers()
        return (int(left) + int(reserved) + int(sold), toast, lag) == (100, "", "0")

    width, height = page.js("return [document.documentElement.clientWidth, document.documentElement.scrollHeight]")
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}

    def picture():
        if not is_normal():
            return None
        before = numbers()
        picture = page.browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        return picture if numbers() == before else None

    pathlib.Path(file).write_bytes(base64.b64decode(eventually(picture)["data"]))


def main():
    is_test = len(sys.argv) == 1
    shop, url, folder = open_shop(3_600_000 if is_test else 60_000)
    try:
        page = Page(url, folder)
        try:
            if not is_test:
                return take_picture(page, sys.argv[1])
            for test in TESTS:
                test(page)
                print(test.__name__, flush=True)
        except BaseException:
            print(json.dumps(page.browser.get_log("browser")), page.text("body"), file=sys.stderr)
            raise
        finally:
            page.browser.quit()
        ctrl_c_ends_everything(shop, folder)
        print(ctrl_c_ends_everything.__name__, flush=True)
        for test in (a_closed_terminal_ends_everything, a_terminal_that_closes_after_ctrl_c_ends_everything):
            test()
            print(test.__name__, flush=True)
    finally:
        if shop.poll() is None:
            shop.send_signal(signal.SIGINT)
            shop.wait()


if __name__ == "__main__":
    main()
