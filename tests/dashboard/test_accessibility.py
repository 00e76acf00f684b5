"""The dashboard's page for everyone: WCAG 2.2, level AA, as far as a program can see. Each test names its criteria."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from typing import Any

import pytest
from tests.dashboard.conftest import Dashboard, Window, behind
from tests.support.waiting import until

from kohort import Broker

pytest.importorskip("uvicorn", reason="the extra `dashboard` is not installed")

from tools.dashboard_picture import DESKTOP, PHONE

Serve = Callable[..., Dashboard]
Colour = tuple[int, int, int]
STYLE = files("kohort.dashboard").joinpath("static/style.css").read_text("utf-8")
TEXTS = [
    ("text", "back"), ("text", "raised"), ("muted", "back"), ("muted", "raised"), ("link", "back"), ("link", "raised"),
    ("back", "link"), ("text", "stop-back"), ("text", "warn-back"),
    *((status, f"{status}-back") for status in ("ok", "warn", "stall", "stop", "err")),
]  # fmt: skip
"""The colours of texts, each with the colour behind it."""
SHAPES = [
    *((f"s{number}", "back") for number in range(6)),
    ("s0", "area"), ("muted", "back"), ("link", "back"), ("link", "raised"),
]  # fmt: skip
"""Lines of charts, borders of inputs and the outline of what has the focus."""
PLACES = {
    "groups": "text=payments", "group/payments": "figure", "topics": "text=orders",
    "topic/orders": "text=Look at records",
    "regions": "text=no regions", "coordinators": "h1:has-text('Coordinators')",
}  # fmt: skip

FAULTS = """() => {
  const faults = [];
  const numbers = (colour) => { const [r, g, b, a = 1] = colour.match(/[0-9.]+/g).map(Number); return [r, g, b, a]; };
  const linear = (part) => (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const over = (top, below) => [0, 1, 2].map((at) => top[at] * top[3] + below[at] * (1 - top[3])).concat(1);
  const behind = (node) => {
    const colour = numbers(getComputedStyle(node).backgroundColor);
    if (colour[3] === 1) return colour;
    return over(colour, node.parentElement ? behind(node.parentElement) : [255, 255, 255, 1]);
  };
  const shown = (node) => node.checkVisibility({ visibilityProperty: true }) && node.getClientRects().length > 0;
  const named = (node) => `${node.localName} ${(node.textContent || node.id).trim().slice(0, 40)}`;
  for (const node of document.body.querySelectorAll("*")) {
    const texts = [...node.childNodes].filter((child) => child.nodeType === 3);
    const text = texts.map((child) => child.data).join("").trim();
    if (!text || !shown(node) || node.closest("noscript, svg title")) continue;
    const style = getComputedStyle(node), back = behind(node instanceof SVGElement ? node.ownerSVGElement : node);
    const front = over(numbers(node instanceof SVGElement ? style.fill : style.color), back);
    const [low, high] = [light(front), light(back)].sort((a, b) => a - b);
    const ratio = (high + 0.05) / (low + 0.05), size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (isLarge ? 3 : 4.5)) faults.push(`1.4.3 contrast ${ratio.toFixed(2)}: ${named(node)}`);
  }
  const nameOf = (node) => {
    const by = node.getAttribute("aria-labelledby");
    return (node.getAttribute("aria-label") || (by && document.getElementById(by)?.textContent)
      || [...(node.labels ?? [])].map((label) => label.textContent).join(" ") || node.textContent || "").trim();
  };
  for (const node of document.querySelectorAll("a[href], button, input, select, textarea, [role=img], nav, dialog")) {
    if (shown(node) && !nameOf(node)) faults.push(`4.1.2 without a name: ${node.outerHTML.slice(0, 80)}`);
  }
  for (const node of document.querySelectorAll("button, input, select")) {
    if (!shown(node)) continue;
    const box = (node.closest("label") ?? node).getBoundingClientRect();
    if (box.width < 24 || box.height < 24) faults.push(`2.5.8 ${box.width} by ${box.height}: ${named(node)}`);
  }
  const heads = [...document.querySelectorAll("h1, h2, h3, h4")].filter(shown);
  const levels = heads.map((node) => Number(node.localName[1]));
  if (levels.filter((level) => level === 1).length !== 1) faults.push(`1.3.1 headings of the first level: ${levels}`);
  if (levels.some((level, at) => at && level > levels[at - 1] + 1)) faults.push(`1.3.1 a level is left out: ${levels}`);
  for (const name of ["header", "nav", "main"]) {
    if (document.querySelectorAll(`body > ${name}, body > header > ${name}`).length !== 1) faults.push(`1.3.1 ${name}`);
  }
  const ids = [...document.querySelectorAll("[id]")].map((node) => node.id);
  if (new Set(ids).size !== ids.length) faults.push(`4.1.2 an id is there twice: ${ids}`);
  if ([...document.querySelectorAll("th")].some((head) => head.scope !== "col")) faults.push("1.3.1 no scope");
  if (!document.documentElement.lang) faults.push("3.1.1 no language");
  if (!document.title) faults.push("2.4.2 no title");
  if (document.documentElement.scrollWidth > window.innerWidth) faults.push("1.4.10 wider than the window");
  return faults;
}"""
NAMED = """(node) =>
  `${node.localName} ${(node.textContent || node.getAttribute("aria-label") || "").trim().slice(0, 40)}`"""
CONTROLS = f"""() => [...document.querySelectorAll("a[href], button, input, select, textarea, summary")]
  .filter((node) => node.checkVisibility({{ visibilityProperty: true }}) && !node.disabled).map({NAMED})"""
FOCUSED = f"""() => {{
  const node = document.activeElement;
  if (node === document.body) return null;
  const style = getComputedStyle(node), box = node.getBoundingClientRect();
  return {{
    outline: style.outlineStyle === "none" ? 0 : parseFloat(style.outlineWidth),
    isOnScreen: box.right > 0 && box.bottom > 0 && box.left < innerWidth && box.top < innerHeight,
    name: ({NAMED})(node),
  }};
}}"""


def palettes() -> Mapping[str, Mapping[str, Colour]]:
    """The colours of both schemes by name."""
    light, dark = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)[:2]
    found = {scheme: dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", text)) for scheme, text in
             (("light", light), ("dark", dark))}  # fmt: skip
    return {
        scheme: {name: (int(text[1:3], 16), int(text[3:5], 16), int(text[5:7], 16)) for name, text in colours.items()}
        for scheme, colours in found.items()
    }


def contrast(one: Colour, other: Colour) -> float:
    """WCAG's contrast ratio of two colours, from 1 to 21."""

    def luminance(colour: Colour) -> float:
        parts = [part / 255 for part in colour]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_ratio_is_that_of_wcag() -> None:
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert contrast((0x77, 0x77, 0x77), (255, 255, 255)) == pytest.approx(4.48, abs=0.005)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_of_texts_and_shapes_have_enough_contrast(scheme: str) -> None:
    """1.4.3: 4.5 for texts. 1.4.11: 3 for what shapes and borders mean."""
    colours = palettes()[scheme]
    assert len(colours) == len(palettes()["light"])
    weak = {
        f"{front} on {back}": round(ratio, 2)
        for pairs, least in ((TEXTS, 4.5), (SHAPES, 3.0))
        for front, back in pairs
        if (ratio := contrast(colours[front], colours[back])) < least
    }
    assert not weak


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(config={"group.initial.rebalance.delay.ms": 0}) as broker:
        behind(broker.bootstrap_servers, "orders", "payments")
        behind(broker.bootstrap_servers, "clicks", "search")
        yield broker


@pytest.fixture
def dashboard(serve: Serve, broker: Broker) -> Dashboard:
    dashboard = serve(broker.bootstrap_servers)
    until(lambda: set(dashboard.groups()) == {"payments", "search"}, "the groups are read")
    return dashboard


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "size", [DESKTOP, PHONE, {"width": 320, "height": 640}], ids=["desktop", "phone", "zoomed-to-400-percent"]
)
def test_pages_have_no_fault_that_a_program_can_see(
    chromium: Any, dashboard: Dashboard, scheme: str, size: dict[str, int]
) -> None:
    """1.3.1, 1.4.3, 1.4.10, 2.4.2, 2.5.8, 3.1.1 and 4.1.2, as a browser shows the pages.

    A window of 1280 pixels that is zoomed to 400 % has 320 of them.
    """
    window = Window(chromium, dashboard, viewport=size, color_scheme=scheme)
    found: dict[str, Any] = {}
    for place, shown in PLACES.items():
        window.page.goto(f"http://{dashboard.server.address}/#/{place}")
        window.page.wait_for_selector(shown)
        if place == "topic/orders":
            window.page.click("text=Look at records")
            window.page.wait_for_selector("article")
        found[place] = window.page.evaluate(FAULTS)
    window.close()
    assert found == {place: [] for place in PLACES}


@pytest.mark.parametrize("place", PLACES)
def test_every_control_is_reached_by_tab_and_shows_that_it_has_the_focus(
    chromium: Any, dashboard: Dashboard, place: str
) -> None:
    """2.1.1 and 2.1.2: by the keyboard alone, and out again. 2.4.1: past the navigation. 2.4.7 and 2.4.11: seen."""
    window = Window(chromium, dashboard, viewport=DESKTOP)
    page = window.page
    page.goto(f"http://{dashboard.server.address}/#/{place}")
    page.wait_for_selector(PLACES[place])
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Tab")
    first = page.evaluate(FOCUSED)
    assert first["name"] == "a Skip to content" and first["isOnScreen"]
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    page.goto(f"http://{dashboard.server.address}/#/{place}")
    page.reload()
    page.wait_for_selector(PLACES[place])
    wanted, seen = page.evaluate(CONTROLS), []
    for _ in range(3 * len(wanted) + 10):
        page.keyboard.press("Tab")
        focused = page.evaluate(FOCUSED)
        if focused is None:
            break
        seen.append(focused)
    assert [stop["name"] for stop in seen if stop["outline"] < 2 or not stop["isOnScreen"]] == []
    assert set(wanted) - {stop["name"] for stop in seen} == set()
    assert len(seen) < 2 * len(wanted), "no control keeps the focus"
    window.close()


def test_dialog_of_keys_takes_the_focus_and_gives_it_back(chromium: Any, dashboard: Dashboard) -> None:
    """2.1.2 and 2.4.3."""
    window = Window(chromium, dashboard, viewport=DESKTOP)
    page = window.page
    page.wait_for_selector("text=payments")
    page.focus("#help")
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]")
    assert page.evaluate("document.getElementById('keys').contains(document.activeElement)")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog[open]", state="detached")
    assert page.evaluate("document.activeElement.id") == "help"
    window.close()


@pytest.mark.parametrize(
    ("place", "link"),
    [
        ("groups", "a[data-key=payments]"),
        ("group/payments", "td a >> nth=1"),
        ("topics", "td a[href='#/group/payments']"),
        ("topic/orders", "td a[href='#/group/payments']"),
    ],
)
def test_focus_stays_where_it_is_while_the_page_is_drawn_anew(
    chromium: Any, dashboard: Dashboard, place: str, link: str
) -> None:
    """3.2.1: each read draws the tables again, which must not throw a user of the keyboard back to the beginning."""
    window = Window(chromium, dashboard, viewport=DESKTOP)
    page = window.page
    page.goto(f"http://{dashboard.server.address}/#/{place}")
    page.wait_for_selector(link)
    page.focus(link)
    page.evaluate("globalThis.drawn = document.activeElement")
    key = page.evaluate("globalThis.drawn.dataset.key")
    until(lambda: page.evaluate("!globalThis.drawn.isConnected"), "the page is drawn anew", 60)
    assert key is not None
    until(lambda: page.evaluate("document.activeElement.dataset.key") == key, "the same link has the focus")
    window.close()
