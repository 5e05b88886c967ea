// The live board: numbers from the server (server-sent events), buttons that break programs, and a small crowd.

import { $, capitalized, element, setText } from "./page.js";

const SAMPLES = 120; // a minute
const CROWD = 300;
const PARALLEL = 4; // a browser opens six connections to a server, and the board needs one

const NAMES = { mariadb: "MariaDB", orders: "Redis (orders)", cache: "Redis (cache)", web: "web", worker: "order worker", canal: "binlog reader", retrier: "retries", "settle-1": "job 1", "settle-2": "job 2" };

const BOOKS_NOTE = "Oversold: all products. The other numbers: this flash sale.";

const cents = (number) => `€${Math.round(number / 100).toLocaleString("en")}`;

/** The name of a row, its value, and "warn" or "bad" if it needs attention. */
const ROWS = [
  ["p99 of orders", (n) => (n.p99_ms == null ? "–" : `${n.p99_ms} ms`)],
  ["queue lag", (n) => n.lag, (n) => (n.lag > 50 ? "warn" : "")],
  ["unwritten orders", (n) => n.unwritten, (n) => (n.unwritten > 50 ? "warn" : "")],
  ["over their limit", (n) => n.over_limit, (n) => (n.over_limit ? "bad" : "")],
  ["repeated requests", (n) => n.repeated],
  ["limiter refusals", (n) => n.refused],
  ["stale products", (n) => n.stale_products, (n) => (n.stale_products ? "warn" : "")],
  ["expired values", (n) => n.stale],
  ["delayed invalidations", (n) => n.delayed, (n) => (n.delayed ? "warn" : "")],
  ["invalidation alarms", (n) => n.alarms, (n) => (n.alarms ? "bad" : "")],
  ["hit ratio", (n) => `${(100 * n.hit_ratio).toFixed(1)} %`],
  ["breaker", (n) => n.breaker, (n) => (n.breaker === "closed" ? "" : "bad")],
  ["near cache hits/s", (n) => n.near_s],
  ["cache hits/s", (n) => n.hits_s],
  ["cache loads/s", (n) => n.loads_s],
  ["cache waits", (n) => n.waits],
  ["refused by the filter", (n) => n.absent],
  ["revenue", (n) => (n.report ? cents(n.report.revenue_cents) : "–")],
];

export class Board {
  constructor(shop) {
    this.shop = shop;
    this.orders = [];
    this.queries = [];
    this.states = {};
    this.programs = {}; // their elements
    $("numbers").innerHTML = ROWS.map(([name]) => `<div><dt>${name}</dt><dd>–</dd></div>`).join("");
    this.listen();
    this.wire();
  }

  listen() {
    const source = new EventSource("/api/board");
    source.onmessage = ({ data }) => this.show(JSON.parse(data));
    source.onerror = () => this.connected("no connection", "bad");
  }

  connected(text, mood) {
    $("connection").textContent = text;
    $("connection").className = `pill ${mood}`;
    $("board").classList.toggle("old", mood === "bad");
  }

  show(n) {
    const silent = (n.silent ?? []).map((name) => NAMES[name] ?? name);
    if (silent.length > 1) this.connected(`no reply: ${silent.length} servers`, "warn"); // all names are too long for a phone
    else if (silent.length) this.connected(`no reply: ${silent[0]}`, "warn");
    else this.connected("live", "good");
    if (!n.silent?.includes("orders")) this.shop.setStocks(n.stocks ?? {});
    const shown = this.shop.flashProduct()?.id;
    const flash = n.books?.find(({ id }) => id === shown) ?? n.books?.[0];
    if (n.books?.length && n.books[0].id !== shown) this.shop.refreshProducts(); // a new sale
    $("n-reserved").textContent = flash?.reserved ?? "–";
    $("n-sold").textContent = flash?.sold ?? "–";
    $("n-oversold").textContent = n.oversold ?? "–";
    const away = n.silent?.includes("mariadb") ? "MariaDB" : (n.services?.worker?.state ?? "runs") !== "runs" ? "the order worker" : null;
    setText($("books-note"), away ? `Reserved and sold are old until ${away} is back.` : BOOKS_NOTE);
    $("oversold-tile").className = `tile ${n.oversold ? "bad" : "good"}`;
    $("n-orders").textContent = n.silent?.includes("orders") ? "–" : n.orders_s ?? 0;
    $("n-queries").textContent = n.silent?.includes("mariadb") ? "–" : n.queries_s ?? 0;
    this.draw(n);
    for (const [i, [, value, mood]] of ROWS.entries()) {
      const row = $("numbers").children[i];
      setText(row.lastElementChild, `${value(n) ?? "–"}`);
      row.className = mood?.(n) ?? "";
    }
    this.showServices(n.services ?? {});
    $("twice").setAttribute("aria-pressed", n.twice);
  }

  draw(n) {
    const isSilent = (name) => n.silent?.includes(name);
    this.orders.push(isSilent("orders") ? null : n.orders_s ?? 0);
    this.queries.push(isSilent("mariadb") ? null : n.queries_s ?? 0);
    for (const [samples, id] of [[this.orders, "orders-line"], [this.queries, "queries-line"]]) {
      if (samples.length > SAMPLES) samples.shift();
      const most = Math.max(10, ...samples);
      const first = SAMPLES - samples.length;
      const points = samples.map((sample, i) => { // a gap where the server did not answer
        const verb = i === 0 || samples[i - 1] === null ? "M" : "L";
        return sample === null ? "" : `${verb}${((i + first) * 360) / (SAMPLES - 1)},${86 - (80 * sample) / most}`;
      });
      $(id).setAttribute("d", points.join(""));
    }
  }

  showServices(services) {
    for (const [name, { state, back_s, restarts }] of Object.entries(services)) {
      const program = this.programs[name] ??= $("services").appendChild(element(
        `<div class="program" data-service="${name}"><b>${NAMES[name] ?? name}</b><span></span></div>`));
      const text = { runs: "runs", starts: "starts", away: `back in ${Math.max(1, Math.ceil(back_s))} s` }[state];
      setText(program.lastElementChild, text);
      program.className = `program ${{ runs: "good", starts: "warn" }[state] ?? "bad"}`;
      program.dataset.state = state;
      program.title = `restarts: ${restarts}`;
      const button = document.querySelector(`[data-break="${name}"]`);
      if (button) button.disabled = state !== "runs";
    }
    for (const [name, { state }] of Object.entries(services)) {
      const before = this.states[name];
      if (before && before !== state && state !== "starts") this.tell(capitalized(`${NAMES[name]} ${state === "runs" ? "is back" : "is dead"}`));
      this.states[name] = state;
    }
  }

  tell(text) {
    const item = document.createElement("li");
    item.innerHTML = `<time>${new Date().toTimeString().slice(0, 8)}</time><span></span>`;
    item.lastElementChild.textContent = text;
    $("news").prepend(item);
    while ($("news").children.length > 30) $("news").lastElementChild.remove();
  }

  wire() {
    const post = (path, body) => this.shop.insist(path, { body, attempts: 3 });
    for (const button of document.querySelectorAll("[data-break]")) {
      button.addEventListener("click", async () => {
        const { status } = await post("/api/break", { what: button.dataset.break });
        if (status !== 200) this.shop.toast("The shop does not answer. Nothing was stopped.");
      });
    }
    $("twice").addEventListener("click", async ({ target }) => {
      const on = target.getAttribute("aria-pressed") !== "true";
      const { status } = await post("/api/break", { what: "twice", on });
      if (status !== 200) return this.shop.toast("The shop does not answer. Nothing changed.");
      target.setAttribute("aria-pressed", on);
      this.tell(on ? "Each order request is sent twice" : "Each order request is sent once");
    });
    $("sale").addEventListener("click", async () => {
      const { status } = await post("/api/sales", { stock: 100, in_s: 10 });
      if (status === 201) this.tell("A flash sale begins in 10 s");
      else this.shop.toast("The sale cannot begin while a server is away.");
      this.shop.refreshProducts();
    });
    $("price").addEventListener("click", () => this.changePrice(false));
    $("forget").addEventListener("click", () => this.changePrice(true));
    $("crowd").addEventListener("click", ({ target }) => this.sendCrowd(target));
  }

  async changePrice(forget) {
    const others = this.shop.products().filter((product) => !product.is_flash);
    if (others.length === 0) return this.shop.toast("The page has no products yet.");
    const product = others[Math.floor(Math.random() * others.length)];
    const price_cents = Math.max(100, Math.round((product.price_cents * (0.8 + 0.4 * Math.random())) / 100) * 100);
    const { status } = await this.shop.insist(`/api/products/${product.id}/price`, { body: { price_cents, forget } });
    if (status === 200) this.tell(`${product.name}: ${cents(price_cents)}${forget ? ". The writer forgot the cache" : ""}`);
    else this.shop.toast("The price did not change.");
    this.shop.refreshProducts();
  }

  /** Shoppers with names and addresses of their own. Each wants one item; most of them pay. */
  async sendCrowd(button) {
    const product = this.shop.flashProduct();
    if (!product) return this.shop.toast("The page has no products yet.");
    if (product.starts_at_ms > this.shop.now()) return this.shop.toast("Send the crowd when the sale has begun.");
    button.disabled = true;
    const results = {};
    let next = 0;
    const shopper = async () => {
      while (next < CROWD) {
        const id = `${Date.now().toString(36)}-${next++}`;
        const address = `203.0.${Math.floor(Math.random() * 256)}.${Math.floor(Math.random() * 256)}`;
        const headers = { "X-User": `crowd-${id}`, "X-Forwarded-For": address, "Idempotency-Key": `crowd-${id}` };
        const reply = await this.shop.insist("/api/orders", { body: { product: product.id, qty: 1 }, headers, isQuiet: true });
        results[reply.status] = (results[reply.status] ?? 0) + 1;
        if (reply.status === 201 && Math.random() < 0.7) {
          await this.shop.insist(`/api/orders/${product.id}/${reply.order}/pay`, { headers, isQuiet: true });
        }
        button.textContent = `${CROWD - next} shoppers wait`;
      }
    };
    await Promise.all(Array.from({ length: PARALLEL }, shopper));
    button.disabled = false;
    button.textContent = `Send ${CROWD} shoppers`;
    this.tell(`${CROWD} shoppers: ${results[201] ?? 0} got an item, ${results[409] ?? 0} were too late`);
  }
}
