"""The demo's display, without the demo."""

from __future__ import annotations

import io

from rich.console import Console

from kohort.demo.scene import MemberView, Scene


def test_scene_says_what_it_waits_for() -> None:
    """On a line and on a terminal; nothing is said while it waits for nothing."""
    out = io.StringIO()
    console = Console(file=out, width=200)
    scene = Scene(100, console, members={"anna": MemberView("joining")})
    console.print(scene)
    assert "waits until" not in scene.line() + out.getvalue()
    scene.waits_until = "both members hold partitions"
    console.print(scene)
    assert scene.line().endswith("; waits until both members hold partitions")
    assert "waits until both members hold partitions" in out.getvalue()
