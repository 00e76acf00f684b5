// The shell of the page: which page is shown, the state of the cluster, events, keys.
// Texts of the cluster get into the page by textContent alone, so that nothing in them is markup.

import { loginForm } from "./login.js";
import { pages } from "./pages.js";
import { duration, element, note, visible } from "./elements.js";

const main = document.getElementById("content"), banner = document.getElementById("banner");
const RETRY_MS = 3000;
let shown = null, asked = 0, cluster = null, isLost = false, events = null, retry = null, isLoggedOut = false;

async function bodyOf(answer) {
  const body = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(body.error), { reason: body.reason, status: answer.status });
  return body;
}

async function get(path, signal) {
  return bodyOf(await fetch(path, { headers: { accept: "application/json" }, signal }));
}

async function send(path, body) {
  const headers = { accept: "application/json", "content-type": "application/json" };
  return bodyOf(await fetch(path, { method: "POST", headers, body: JSON.stringify(body) }));
}

// The login takes the place of the page until there is one.
function logIn() {
  if (isLoggedOut) return;
  isLoggedOut = true;
  asked++;
  clearTimeout(retry);
  events?.close();
  events = null;
  cluster = null;
  for (const id of ["session", "cluster", "banner"]) document.getElementById(id).replaceChildren();
  document.title = "log in · kohort";
  main.replaceChildren(loginForm(send, () => {
    isLoggedOut = false;
    begin();
  }));
  main.querySelector("input").focus();
}

// A session that could not be ended is still there: its page stays, and says so.
function logOut(failed) {
  return send("/api/logout", {}).then(logIn, (error) => {
    if (error.status === 401) logIn();
    else failed.textContent = ` Not logged out: ${visible(error.message)}`;
  });
}

// Who is logged in, beside the state of the cluster.
async function showSession() {
  const { user } = await get("/api/session");
  const failed = element("span", { role: "alert" });
  const out = element("button", { type: "button", onclick: () => logOut(failed) }, "Log out");
  document.getElementById("session").replaceChildren(...(user === null ? [] : [`${visible(user)} `, out, failed]));
}

function begin() {
  open();
  listen();
  showSession().catch(() => {});
}

function route() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  const page = Object.hasOwn(pages, name) ? name : "groups";
  let about = "";
  try {
    about = decodeURIComponent(rest.join("/"));
  } catch {
    about = rest.join("/");
  }
  return { page, about };
}

function open() {
  if (isLoggedOut) return;
  const { page, about } = route();
  const list = pages[page].list ?? page;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.page === list) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${about ? `${visible(about)} · ` : ""}${list} · kohort`;
  main.replaceChildren();
  shown = { ...pages[page].make(main, about, get, send), list, page };
  window.scrollTo(0, 0);
  refresh();
}

async function refresh() {
  if (isLoggedOut) return;
  const number = ++asked, page = shown;
  clearTimeout(retry);
  try {
    const body = await get(page.path);
    if (number !== asked) return;
    isLost = false;
    cluster = body.cluster ?? cluster;
    const focused = document.activeElement?.dataset?.key;
    page.show(body);
    if (focused && document.activeElement?.dataset?.key !== focused) {
      main.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    }
    page.failed?.(null);
  } catch (error) {
    if (number !== asked) return;
    if (error.status === 401) {
      logIn();
      return;
    }
    isLost = error.status === undefined;
    if (!isLost) page.failed?.(error);
    retry = setTimeout(refresh, RETRY_MS);
    if (!isLost) get("/api/overview").then((body) => { cluster = body.cluster; say(); }, () => {});
  }
  say();
}

// What is said of the cluster and of the last read, above every page.
function say() {
  const notes = [];
  if (isLost) notes.push(note("bad", "kohort does not answer. This page tries again."));
  if (cluster) {
    document.getElementById("cluster").textContent = visible(cluster.cluster) + age();
    const old = cluster.age_ms === null ? "Nothing has been read yet." : `Shown is what was read ${duration(cluster.age_ms)} ago.`;
    if (!cluster.up && cluster.reads) {
      notes.push(note("bad", `The cluster could not be read. ${old} It is read again every ${duration(cluster.interval_ms)}.`, cluster.messages));
    } else if (!cluster.reads) {
      notes.push(note("", "The cluster is being read for the first time."));
    } else if (cluster.messages.length) {
      notes.push(note("fair", "Some parts could not be read:", cluster.messages));
    }
    if (cluster.history_error) notes.push(note("fair", "The history is not written to its file:", [cluster.history_error]));
  }
  const text = (nodes) => nodes.map((node) => node.textContent).join("\n");
  if (text(notes) !== text([...banner.children])) banner.replaceChildren(...notes);
}

function age() {
  return cluster.age_ms === null ? "" : ` · read ${clockOf(cluster.read_at_ms)}`;
}

function clockOf(ms) {
  return new Date(ms).toTimeString().slice(0, 8);
}

function listen() {
  if (isLoggedOut) return;
  events?.close();
  events = new EventSource("/api/events");
  events.addEventListener("read", () => shown.isLive && refresh());
  events.addEventListener("error", () => {
    if (events?.readyState === EventSource.CLOSED) setTimeout(listen, RETRY_MS);
    refresh();
  });
}

// A page in the background needs no events, and browsers allow six connections to a server.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    events?.close();
    events = null;
  } else if (!events) {
    listen();
    refresh();
  }
});

function move(by) {
  const rows = [...main.querySelectorAll("a[data-row]")];
  const at = rows.indexOf(document.activeElement);
  rows[at < 0 ? 0 : Math.min(rows.length - 1, Math.max(0, at + by))]?.focus();
}

const keys = {
  "/": () => main.querySelector("input[type=search]")?.focus(),
  j: () => move(1),
  k: () => move(-1),
  u: () => { location.hash = `#/${shown.list}`; },
  g: () => { location.hash = "#/groups"; },
  t: () => { location.hash = "#/topics"; },
  r: () => { location.hash = "#/regions"; },
  c: () => { location.hash = "#/coordinators"; },
  "?": () => document.getElementById("keys").showModal(),
};

document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (typing && event.key === "Escape") event.target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey || document.getElementById("keys").open) return;
  if (Object.hasOwn(keys, event.key)) {
    event.preventDefault();
    keys[event.key]();
  }
});
document.getElementById("help").addEventListener("click", keys["?"]);
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
window.addEventListener("hashchange", open);
begin();
