// The live board: numbers from the server (server-sent events), buttons that break programs, and a small crowd.

const $ = (id) => document.getElementById(id);
const SAMPLES = 120; // a minute
const CROWD = 300;
const PARALLEL = 4; // a browser opens six connections to a server, and the board needs one

const NAMES = { mariadb: "MariaDB", orders: "Redis: orders", cache: "Redis: cache", web: "web", worker: "order worker", canal: "binlog reader", retrier: "retries", "settle-1": "job 1", "settle-2": "job 2" };

const cents = (number) => `€${Math.round(number / 100).toLocaleString("en")}`;

/** The name of a row, its value, and "warn" or "bad" if it needs attention. */
const ROWS = [
  ["near cache hits/s", (n) => n.near_s],
  ["cache hits/s", (n) => n.hits_s],
  ["cache loads/s", (n) => n.loads_s],
  ["hit ratio", (n) => `${(100 * n.hit_ratio).toFixed(1)} %`],
  ["cache waits", (n) => n.waits],
  ["stale values served", (n) => n.stale],
  ["refused by the filter", (n) => n.absent],
  ["breaker", (n) => n.breaker, (n) => (n.breaker === "closed" ? "" : "bad")],
  ["limiter refusals", (n) => n.refused],
  ["repeated requests", (n) => n.repeated],
  ["queue lag", (n) => n.lag, (n) => (n.lag > 50 ? "warn" : "")],
  ["delayed invalidations", (n) => n.delayed, (n) => (n.delayed ? "warn" : "")],
  ["invalidation alarms", (n) => n.alarms, (n) => (n.alarms ? "bad" : "")],
  ["revenue", (n) => (n.report ? cents(n.report.revenue_cents) : "–")],
];

export class Board {
  constructor(shop) {
    this.shop = shop;
    this.orders = [];
    this.queries = [];
    this.states = {};
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
  }

  show(n) {
    const silent = (n.silent ?? []).map((name) => NAMES[name] ?? name);
    if (silent.length) this.connected(`${silent.join(", ")}: last numbers`, "warn");
    else this.connected("live", "good");
    const flash = n.books?.[0];
    const stock = flash && n.stocks?.[flash.id];
    $("n-stock").textContent = stock ? stock.available : "–";
    $("n-sold").textContent = n.sold ?? "–";
    $("n-oversold").textContent = n.oversold ?? "–";
    $("oversold-tile").className = `tile ${n.oversold ? "bad" : "good"}`;
    $("n-orders").textContent = n.silent?.includes("orders") ? "–" : n.orders_s ?? 0;
    $("n-queries").textContent = n.silent?.includes("mariadb") ? "–" : n.queries_s ?? 0;
    this.draw(n);
    $("numbers").innerHTML = ROWS.map(([name, value, mood]) =>
      `<div class="${mood?.(n) ?? ""}"><dt>${name}</dt><dd>${value(n) ?? "–"}</dd></div>`).join("");
    this.showServices(n.services ?? {});
    $("twice").setAttribute("aria-pressed", n.twice);
  }

  draw(n) {
    const isSilent = (name) => n.silent?.includes(name);
    this.orders.push(isSilent("orders") ? 0 : n.orders_s ?? 0);
    this.queries.push(isSilent("mariadb") ? 0 : n.queries_s ?? 0);
    for (const [samples, id] of [[this.orders, "orders-line"], [this.queries, "queries-line"]]) {
      if (samples.length > SAMPLES) samples.shift();
      const most = Math.max(10, ...samples);
      const points = samples.map((sample, i) => `${((i + SAMPLES - samples.length) * 360) / (SAMPLES - 1)},${86 - (80 * sample) / most}`);
      $(id).setAttribute("d", `M${points.join("L")}`);
    }
  }

  showServices(services) {
    $("services").innerHTML = Object.entries(services).map(([name, { state, back_s, restarts }]) => {
      const mood = state === "runs" ? "good" : state === "starts" ? "warn" : "bad";
      const text = state === "away" ? `, back in ${Math.ceil(back_s)} s` : state === "starts" ? " starts" : "";
      return `<span class="pill ${mood}" data-service="${name}" title="${restarts} restarts">${NAMES[name] ?? name}${text}</span>`;
    }).join("");
    for (const [name, { state }] of Object.entries(services)) {
      const before = this.states[name];
      if (before && before !== state && state !== "starts") this.tell(`${NAMES[name]} ${state === "runs" ? "is back" : "is dead"}`);
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
      this.tell(on ? "Every order request is sent twice" : "Each order request is sent once");
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
    if (product.starts_at_ms > Date.now()) return this.shop.toast("Send the crowd when the sale has begun.");
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
