"""Every block of README and docs runs as written, like a reader would run it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kohort import Broker
from kohort.cli.common import DEFAULT_BOOTSTRAP_SERVER
from kohort.zookeeper import free_port
from tests.documentation.notebook import Notebook, NotebookError
from tests.documentation.snippets import PAGES, ROOT, RUN, Snippet, snippets
from tests.support.waiting import ATTEMPTS, LAST_RESORT, TOO_SLOW

TO_RUN = [page for page in PAGES if any(entry.language in RUN and entry.word != "not run" for entry in snippets(page))]
SECOND_SERVER = "127.0.0.1:9093"
"""The address of a second broker on a page."""


class Reader:
    """Follows a page in a folder of its own, with ports of this machine in place of those that the page names."""

    def __init__(self, folder: Path, address: str, notebook: Notebook) -> None:
        self.folder, self.address = folder, address
        self._second_address: str | None = None
        self.printed = ""
        self._count = 0
        self._running: list[subprocess.Popen[str]] = []
        self._notebook = notebook
        bin_folder = str(Path(sys.executable).parent)
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")} | {
            "PATH": os.pathsep.join([bin_folder, os.environ["PATH"]]),
            "KOHORT_BOOTSTRAP_SERVER": address,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    def follow(self, snippet: Snippet) -> None:
        """Runs one block; fails with its place and what it said when it does not end well."""
        code = snippet.code.replace(DEFAULT_BOOTSTRAP_SERVER, self.address)
        if SECOND_SERVER in code:
            self._second_address = self._second_address or f"127.0.0.1:{free_port()}"
            code = code.replace(SECOND_SERVER, self._second_address)
        if snippet.word == "prints":
            assert sorted(self.printed.split("\n")) == sorted(code.split("\n")), f"{snippet.place} shows something else"
        elif snippet.word == "stays":
            self._start(snippet, self._command(snippet, code))
        elif snippet.is_spark:
            self._run_in_notebook(snippet, self._file(code))
        elif snippet.language in RUN:
            done = self._run(self._command(snippet, code))
            assert done.returncode == 0, f"{snippet.place} ends with {done.returncode}:\n{done.stdout}\n{done.stderr}"
            assert "Warning" not in done.stderr, f"{snippet.place} warns:\n{done.stderr}"
            self.printed = done.stdout

    def _run_in_notebook(self, snippet: Snippet, file: Path) -> None:
        """Runs a Spark program beside the others of the page; again, where Spark could not start Python in time."""
        assert "register" in snippet.code or '"kohort"' not in snippet.code, f"{snippet.place} does not stand alone"
        for _ in range(ATTEMPTS):
            try:
                self.printed = self._notebook.run(file, self._environment)
                break
            except NotebookError as error:
                self._notebook.close()
                if TOO_SLOW not in str(error):
                    raise AssertionError(f"{snippet.place} {error}") from error
        else:
            raise AssertionError(f"{snippet.place}: Spark starts no Python in time")
        assert "Warning" not in self._notebook.errors(), f"{snippet.place} warns:\n{self._notebook.errors()}"

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Runs it to its end; again, where Spark could not start a Python process in time."""
        for _ in range(ATTEMPTS):
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
            if TOO_SLOW not in done.stderr:
                break
        return done

    def _command(self, snippet: Snippet, code: str) -> list[str]:
        if snippet.language == "sh":
            return ["bash", "-euo", "pipefail", "-c", code]
        file = self._file(code)
        if snippet.is_test:
            options = ["-p", "no:cacheprovider", "--strict-markers", "--rootdir", str(self.folder)]
            return [sys.executable, "-m", "pytest", "-q", *options, str(file)]
        return [sys.executable, str(file)]

    def _file(self, code: str) -> Path:
        self._count += 1
        file = self.folder / f"test_snippet_{self._count}.py"
        file.write_text(code)
        return file

    def _start(self, snippet: Snippet, command: list[str]) -> None:
        process = subprocess.Popen(
            command, cwd=self.folder, env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )
        self._running.append(process)
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(snippet.text):
                return
        raise AssertionError(f"{snippet.place} ends with {process.wait()} and never says {snippet.text!r}")

    def close(self) -> None:
        """Ends what stays, and fails if it ended before."""
        ended = [process.returncode for process in self._running if process.poll() is not None]
        for process in self._running:
            process.terminate()
            process.communicate()
        assert not ended, f"what was to stay has ended with {ended}"


@contextmanager
def reader_of(page: Path, folder: Path, notebook: Notebook) -> Iterator[Reader]:
    """A reader, and a broker at the address that the page names, unless the page starts one there itself."""
    if any(snippet.word == "stays" for snippet in snippets(page)):
        reader = Reader(folder, f"127.0.0.1:{free_port()}", notebook)
        try:
            yield reader
        finally:
            reader.close()
    else:
        with Broker(config={"group.initial.rebalance.delay.ms": 0}) as broker:  # nobody else comes to a page's groups
            reader = Reader(folder, broker.bootstrap_servers, notebook)
            try:
                yield reader
            finally:
                reader.close()


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """The process of all pages' Spark programs."""
    running = Notebook(tmp_path_factory.mktemp("notebook"))
    yield running
    running.close()


@pytest.mark.spark
@LAST_RESORT
@pytest.mark.usefixtures("forked_spark")
@pytest.mark.parametrize("page", TO_RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_of_a_page_works_as_it_stands(page: Path, notebook: Notebook, tmp_path: Path) -> None:
    folder = tmp_path
    if any(snippet.is_spark for snippet in snippets(page)):
        notebook.begin_page()
        folder = notebook.folder
    with reader_of(page, folder, notebook) as reader:
        for snippet in snippets(page):
            if snippet.word != "not run":
                reader.follow(snippet)
