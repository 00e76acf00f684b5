"""Scripts of the dashboard's page in node, with as much of a document as they use."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

DOCUMENT = """
class Node {
  constructor(name) { Object.assign(this, { name, children: [], attributes: {}, id: "", value: "", disabled: false }); }
  hidden = false; required = false; textContent = ""; type = ""; className = ""; htmlFor = ""; tabIndex = 0;
  onclick = null; onsubmit = null; onchange = null; dataset = {};
  append(...nodes) {
    this.children.push(...nodes);
    if (this.name === "select" && nodes.length) this.value = nodes[0].value;
  }
  addEventListener() {}
  replaceChildren(...nodes) { this.children = nodes; }
  setAttribute(key, value) { this.attributes[key] = value; }
  removeAttribute(key) { delete this.attributes[key]; }
  all() { return this.children.flatMap((child) => (child instanceof Node ? [child, ...child.all()] : [])); }
  querySelectorAll(name) { return this.all().filter((child) => child.name === name); }
  querySelector(name) { return this.querySelectorAll(name)[0] ?? null; }
  focus() {}
  text() { return this.textContent + this.children.map((child) => child.text?.() ?? child).join(""); }
}
const places = {};
globalThis.Node = Node;
globalThis.document = {
  createElement: (name) => new Node(name),
  getElementById: (id) => (places[id] ??= new Node("div")),
  querySelectorAll: () => [], addEventListener() {}, activeElement: null,
};
const settled = () => new Promise((resolve) => setTimeout(resolve, 0));
const said = (value) => console.log(JSON.stringify(value));
"""
SECTION = """
const { changesOf } = await import("./changes.js");
const sent = [];
let answer, refuse;
const [, form, result] = changesOf("g", (path, body) => {
  sent.push([path, body]);
  return new Promise((resolve, reject) => { answer = resolve; refuse = reject; });
});
const [change, goal] = form.querySelectorAll("select"), [value, topics] = form.querySelectorAll("input");
const preview = form.querySelector("button");
change.value = "reset-offsets";
goal.value = "offset";
change.onchange();
const ask = async () => { form.onsubmit({ preventDefault() {} }); await settled(); };
const row = { topic: "t", partition: 0, committed: 1, requested: null, new: 2, note: null };
"""


def by_node(folder: Path, script: str) -> Any:
    """Runs a script in a folder with the page's scripts, and returns the value that it says."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    for found in files("kohort.dashboard").joinpath("static").iterdir():
        if found.name.endswith(".js"):
            (folder / found.name).write_bytes(found.read_bytes())
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "script.js").write_text(DOCUMENT + script)
    ended = subprocess.run([node, "script.js"], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.parametrize("value", ["9007199254740993", "-9007199254740993", "1.5", "1e3", "0x10", "", "many"])
def test_number_that_would_be_another_one_is_not_sent(tmp_path: Path, value: str) -> None:
    script = f"value.value = {json.dumps(value)}; await ask(); said([sent, result.text()]);"
    sent, text = by_node(tmp_path, SECTION + script)
    assert sent == [] and "whole number" in text


def test_number_is_sent_as_it_was_written(tmp_path: Path) -> None:
    script = "value.value = ' 9007199254740991 '; await ask(); said(sent[0][1].value);"
    assert by_node(tmp_path, SECTION + script) == 2**53 - 1


def test_nothing_of_the_section_can_be_used_while_a_change_is_made(tmp_path: Path) -> None:
    script = """
value.value = "2";
await ask();
answer({ rows: [row], errors: [], token: "x" });
await settled();
const fields = [preview, change, goal, value, topics], all = [...fields, ...result.querySelectorAll("button")];
const confirm = all.find((control) => control.text().includes("do it"));
const before = all.map((control) => control.disabled);
confirm.onclick();
await settled();
const during = all.map((control) => control.disabled);
answer({ rows: [{ ...row, done: null }], errors: ["it may have been set"] });
await settled();
said([before, during, fields.map((control) => control.disabled), result.text()]);
"""
    before, during, after, text = by_node(tmp_path, SECTION + script)
    assert not any(before) and all(during) and not any(after)
    assert "It may have been done" in text and "not known" in text and "Not changed" not in text


@pytest.mark.parametrize(("status", "is_out"), [(200, True), (401, True), (503, False), (None, False)])
def test_login_is_shown_only_after_a_logout(tmp_path: Path, status: int | None, is_out: bool) -> None:
    script = """
const STATUS = %s;
globalThis.location = { hash: "" };
globalThis.window = { addEventListener() {}, scrollTo() {}, open() {} };
globalThis.addEventListener = () => {};
globalThis.CSS = { escape: (text) => text };
globalThis.EventSource = class { addEventListener() {} close() {} };
globalThis.setTimeout = ((own) => (call, ms) => (ms ? 0 : own(call, 0)))(setTimeout);
globalThis.setInterval = () => 0;
const view = { "/api/session": { user: "alice", login: true, changes: false } };
globalThis.fetch = async (path) => {
  if (path === "/api/logout" && STATUS === null) throw new Error("away");
  const ok = path !== "/api/logout" || STATUS === 200;
  if (!(path in view) && path !== "/api/logout") return new Promise(() => {});
  const body = ok ? view[path] ?? {} : { error: "refused", reason: "" };
  return { ok, status: ok ? 200 : STATUS, json: async () => body };
};
await import("./app.js");
for (let turn = 0; turn < 5; turn++) await settled();
const session = document.getElementById("session"), main = document.getElementById("content");
session.querySelector("button").onclick();
for (let turn = 0; turn < 5; turn++) await settled();
said([main.text().includes("Password"), session.text()]);
"""
    shows_login, session = by_node(tmp_path, script % json.dumps(status))
    assert shows_login is is_out
    assert ("Not logged out" in session) is not is_out
