// The page of the shop: products, the countdown, my orders, and the live board. No build step, no library.

import { Board } from "./board.js";
import { $, capitalized, element } from "./page.js";

const money = (cents) => `€${(cents / 100).toFixed(2)}`;
const user = (localStorage.user ??= `guest-${Math.random().toString(36).slice(2, 7)}`);

/** The orders of this browser, also those that the worker has not written to the database yet. */
const orders = new Map(Object.entries(JSON.parse(localStorage.orders ?? "{}")));
const noOrders = $("my-orders").firstElementChild;
let hasShop = false; // whether `orders` belong to the shop that answers
let products = [];
let stocksAt = 0; // when the board has set the stocks
let clockSkew = 0; // of the server, in ms
let leastTrip = Infinity; // ms of the request that has measured it
const now = () => Date.now() + clockSkew;

/** Whole seconds until a time of the server. Measured with the skew, so rounded to the nearest one. */
const secondsTo = (ms) => (ms > now() ? Math.max(1, Math.round((ms - now()) / 1000)) : 0);

$("user").textContent = user;

// Requests

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

/** Repeats a POST with the same headers until a reply arrives that is not "try again". */
async function insist(path, { body, headers = {}, attempts = 60, isQuiet = false } = {}) {
  let isLimited = false;
  for (let attempt = 1; ; attempt++) {
    try {
      const reply = await fetch(path, { method: "POST", headers, body: JSON.stringify(body ?? {}) });
      isLimited = reply.status === 429;
      if (![429, 502, 503].includes(reply.status) || attempt === attempts) return { status: reply.status, ...(await reply.json()) };
    } catch (error) {
      isLimited = false;
      if (attempt === attempts) return { status: 0, error: "the shop does not answer" };
    }
    if (attempt === 3 && !isQuiet) {
      toast(isLimited ? "The shop limits your requests. The page repeats this one." : "The shop does not answer. The page repeats your request.");
    }
    await pause(Math.min(200 * attempt, 1000));
  }
}

const post = (path, body) => insist(path, { body, headers: { "X-User": user } });

// Orders

async function buy(product, button) {
  button.disabled = true;
  const key = crypto.randomUUID?.() ?? `${user}-${Date.now()}-${Math.random()}`; // one key for all attempts
  const headers = { "X-User": user, "Idempotency-Key": key };
  const reply = await insist("/api/orders", { body: { product: product.id, qty: 1 }, headers });
  button.disabled = false;
  if (reply.status !== 201) return toast(sentence(reply.error));
  remember(reply.order, { ...reply, name: product.name, at: Date.now() });
  toast(`${product.name} is reserved for you.`);
  refreshProducts();
}

async function change(order, verb) {
  const known = orders.get(order);
  const reply = await post(`/api/orders/${known.product}/${order}/${verb}`);
  for (const button of rowOf(order).querySelectorAll("button")) button.disabled = false;
  if (reply.status === 200) remember(order, { ...known, state: reply.state, cents: reply.cents ?? known.cents });
  else toast(sentence(reply.error));
  refreshOrders();
  refreshProducts();
}

function remember(order, details) {
  orders.set(order, details);
  const newest = [...orders].sort(([, a], [, b]) => b.at - a.at).slice(0, 8);
  orders.clear();
  for (const [id, known] of newest) orders.set(id, known);
  localStorage.orders = JSON.stringify(Object.fromEntries(newest));
  showOrders();
}

/** Each `make shop` begins without orders, also if an older one had the same address. */
function forgetOtherShop(shop) {
  if (localStorage.shop !== shop) {
    localStorage.shop = shop;
    localStorage.orders = "{}";
    orders.clear();
  }
  hasShop = true;
}

/** States can only advance. The database can be behind this browser, or ahead of it (an expired reservation). */
const RANK = { reserved: 0, sold: 1, expired: 2, cancelled: 2 };

async function refreshOrders() {
  try {
    const reply = await fetch("/api/orders", { headers: { "X-User": user } });
    if (!reply.ok) return;
    for (const row of (await reply.json()).orders) {
      const known = orders.get(row.order);
      if (!known) continue;
      const state = RANK[row.state] > RANK[known.state] ? row.state : known.state;
      orders.set(row.order, { ...known, state, isWritten: true, payment: row.payment, cents: row.cents ?? known.cents });
    }
    showOrders();
  } catch (error) {
    // the next round tries again
  }
}

function showOrders() {
  if (!hasShop) return;
  const rows = orders.size === 0 ? [noOrders] : [...orders].map(([id, order]) => {
    const row = rowOf(id);
    const left = secondsTo(order.pay_until_ms);
    const isOpen = order.state === "reserved" && left > 0;
    const texts = { reserved: left ? `reserved, ${left} s to pay` : "ends now", sold: "paid", cancelled: order.payment === "refunded" ? "refunded" : "canceled", expired: "expired" };
    const details = [id.slice(0, 8), order.isWritten ? "in the database" : "on its way to the database"];
    const isClosed = order.state === "cancelled" || order.state === "expired";
    if (order.payment) details.push(order.payment === "refunded" ? `${money(order.cents)} returned` : `${money(order.cents)}${isClosed ? " returns" : ""}`);
    row.querySelector("b").textContent = order.name;
    row.querySelector("small").textContent = details.join(" · ");
    row.querySelector(".pill").textContent = texts[order.state];
    row.querySelector(".pill").className = `pill ${{ reserved: "warn", sold: "good" }[order.state] ?? ""}`;
    row.dataset.state = order.state;
    row.querySelector(".actions").hidden = !isOpen && order.state !== "sold"; // an empty cell still has a gap
    row.querySelector("[data-verb=pay]").hidden = !isOpen;
    row.querySelector("[data-verb=refund]").hidden = !isOpen && order.state !== "sold";
    row.querySelector("[data-verb=refund]").textContent = order.state === "sold" ? "Refund" : "Cancel";
    return row;
  });
  const list = $("my-orders");
  if (rows.length !== list.children.length || rows.some((row, i) => row !== list.children[i])) list.replaceChildren(...rows);
}

/** The element of an order. It stays the same, so that it keeps the focus. */
function rowOf(id) {
  return document.querySelector(`[data-order="${id}"]`) ?? element(`<div class="order" data-order="${id}">
    <div class="what"><b></b><small></small></div><span class="pill"></span>
    <div class="actions"><button class="primary" data-verb="pay">Pay</button><button data-verb="refund">Cancel</button></div></div>`);
}

$("my-orders").addEventListener("click", ({ target }) => {
  if (!target.dataset.verb) return;
  target.disabled = true;
  change(target.closest(".order").dataset.order, target.dataset.verb);
});

// Products

async function refreshProducts() {
  try {
    const asked = Date.now();
    const reply = await fetch("/api/products");
    if (!reply.ok) return showNoProducts();
    const { products: rows, now_ms, shop } = await reply.json();
    forgetOtherShop(shop);
    measureSkew(asked, now_ms);
    const before = new Map(products.map((product) => [product.id, product]));
    const hasBoard = Date.now() - stocksAt < 2000; // its numbers are newer
    products = rows.map((row) => {
      const last = before.get(row.id)?.available;
      return { ...row, available: (hasBoard ? last : null) ?? row.available ?? last ?? 0 };
    });
    showProducts(before);
    showFlash();
  } catch (error) {
    showNoProducts(); // the next round tries again
  }
}

/** Says why the page is empty. Products that it already shows stay. */
function showNoProducts() {
  if (products.length === 0) $("flash-hint").textContent = "The products do not load. The page tries again.";
}

/** The quickest request measures best. A jump of a clock counts at once. */
function measureSkew(asked, now_ms) {
  const trip = Date.now() - asked, skew = now_ms - asked - trip / 2;
  if (trip > leastTrip && Math.abs(skew - clockSkew) < 1000 + trip) return;
  [leastTrip, clockSkew] = [trip, skew];
}

/** `stocks` as the board has them: by product. */
function setStocks(stocks) {
  stocksAt = Date.now();
  const before = new Map(products.map((product) => [product.id, product]));
  products = products.map((product) => ({ ...product, available: stocks[product.id]?.available ?? product.available }));
  showProducts(before);
  showFlash();
}

function showProducts(before) {
  const cards = products.filter((product) => !product.is_flash).map((product) => {
    const hasChanged = before.has(product.id) && before.get(product.id).price_cents !== product.price_cents;
    const card = element(`<article class="card" data-product="${product.id}"><svg class="picture"><use href="/static/icons.svg#${product.icon}"/></svg>
      <h4>${product.name}</h4><p>${product.about}</p>
      <div class="row"><span class="cents">${money(product.price_cents)}</span><button ${product.available ? "" : "disabled"}>${product.available ? "Buy" : "Sold out"}</button></div></article>`);
    if (hasChanged) setTimeout(() => flashPrice(product.id));
    return card;
  });
  replaceIfChanged($("products"), cards);
}

function flashPrice(id) {
  const cents = document.querySelector(`[data-product="${id}"] .cents`);
  cents?.classList.add("changed");
  setTimeout(() => cents?.classList.remove("changed"), 100);
}

$("products").addEventListener("click", ({ target }) => {
  const product = products.find((product) => product.id === Number(target.closest(".card")?.dataset.product));
  if (product && target.tagName === "BUTTON") buy(product, target);
});

const flashProduct = () => products.find((product) => product.is_flash);

function showFlash() {
  const product = flashProduct();
  if (!product) return;
  $("flash-name").textContent = product.name;
  $("flash-about").textContent = product.about;
  $("flash-price").textContent = money(product.price_cents);
  const icon = `/static/icons.svg#${product.icon}`;
  if ($("flash-icon").getAttribute("href") !== icon) $("flash-icon").setAttribute("href", icon); // each change hides it until it is loaded
  $("flash-left").textContent = product.available;
  $("n-stock").textContent = product.available; // the banner and the board show the same number at all times
  $("flash-stock").textContent = product.stock;
  $("flash-bar").style.width = `${(100 * product.available) / product.stock}%`;
  const left = product.starts_at_ms - now();
  const button = $("flash-buy");
  const isOpen = left <= 0 && product.available > 0;
  button.dataset.state = left > 0 ? "countdown" : isOpen ? "open" : "sold-out";
  button.disabled = !isOpen;
  const seconds = secondsTo(product.starts_at_ms);
  button.textContent = left > 0 ? `Begins in ${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}` : isOpen ? "Buy now" : "Sold out";
  $("flash-hint").textContent = left > 0 ? "The button opens by itself." : isOpen ? "At most two items for each customer." : "Unpaid items return after a minute.";
}

$("flash-buy").addEventListener("click", ({ target }) => buy(flashProduct(), target));

// Helpers

/** Keeps the elements, and so the focus, if nothing has changed. */
let shownCards = "";
function replaceIfChanged(parent, children) {
  const html = children.map((child) => child.outerHTML).join("");
  if (html === shownCards) return;
  shownCards = html;
  parent.replaceChildren(...children);
}

/** Of a reply's error. */
const sentence = (error = "something went wrong") => `${capitalized(error)}.`;

let toastTimer;
function toast(text) {
  $("toast").textContent = text;
  $("toast").classList.add("shown");
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => $("toast").classList.remove("shown"), 3000);
}

new Board({ insist, toast, now, products: () => products, flashProduct, refreshProducts, setStocks });
refreshProducts();
refreshOrders();
setInterval(() => { showFlash(); showOrders(); }, 250);
setInterval(refreshProducts, 1000);
setInterval(() => orders.size && refreshOrders(), 1500);
