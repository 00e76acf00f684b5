"""kcat as producer and as group member, its output put into the drivers' words.

Usage: produce|consume SERVERS TOPIC COUNT|GROUP
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading

from speak import AssignmentWatch, listen, say, stopping


def produce(servers: str, topic: str, count: int) -> None:
    lines = "".join(f"key-{number}:value-{number}\n" for number in range(count))
    subprocess.run(["kcat", "-b", servers, "-P", "-t", topic, "-K", ":"], input=lines, text=True, check=True)
    say("produced", count=count)


def consume(servers: str, topic: str, group: str) -> None:
    settings = {
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": "100",
        "session.timeout.ms": "10000",
        "heartbeat.interval.ms": "500",
    }
    options = [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
    member = subprocess.Popen(
        ["kcat", "-b", servers, *options, "-u", "-f", "%p %o %s\\n", "-G", group, topic],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def watch() -> None:
        watch = AssignmentWatch()
        for line in member.stderr or ():
            rebalanced = re.search(r"rebalanced.*?: (assigned|revoked)(.*)", line)
            if rebalanced:
                held = re.findall(r"\[(\d+)\]", rebalanced[2]) if rebalanced[1] == "assigned" else []
                watch.see(map(int, held))
            sys.stderr.write(line)

    def read() -> None:
        for line in member.stdout or ():
            partition, offset, value = line.split(" ", 2)
            say("record", partition=int(partition), offset=int(offset), value=value.strip())

    readers = [threading.Thread(target=work, daemon=True) for work in (watch, read)]
    for reader in readers:
        reader.start()
    listen()
    while not stopping.wait(0.1):
        if member.poll() is not None:
            raise SystemExit(f"kcat ended with code {member.returncode}")
    member.send_signal(signal.SIGTERM)
    code = member.wait(20)
    for reader in readers:
        reader.join(5)
    say("closed")
    sys.exit(code)


if __name__ == "__main__":
    mode, servers, topic, last = sys.argv[1:]
    produce(servers, topic, int(last)) if mode == "produce" else consume(servers, topic, last)
