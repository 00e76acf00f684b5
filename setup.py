"""The compiled kernels. Where no compiler is found the package still installs and works, slower.

A wheel without kernels is tagged `py3-none-any`, so that its name says what it is: pip keeps the wheels that it built,
and installs such a one later where there is a compiler.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel

FOLDER = "src/kohort/columns"
VARINTS = "src/kohort/wire/_varint.pxd"
KERNELS = (
    f"{FOLDER}/_encode",
    f"{FOLDER}/_kernel",
    "src/kohort/client/producer/_appender",
    "src/kohort/journal/_offset_rows",
    "src/kohort/wire/_record_walk",
)
FLAGS = [] if "-O" in os.environ.get("CFLAGS", "") else ["-O3"] if sys.platform != "win32" else ["/O2"]
PARTS = (
    "_copy.h",
    "_crc32c.h",
    "_encode.pxd",
    "_load.h",
    "_memory.pxi",
    "_rows.pxd",
    "_table.pxi",
    "_walk.pxi",
)
SANITIZE = os.environ.get("KOHORT_SANITIZE")
"""Comma-separated sanitizers (`address,undefined`) for a build that finds memory errors; see
tests/columns/sanitize.sh."""


WITHOUT_KERNELS = os.environ.get("KOHORT_KERNELS") == "none"
"""For the wheel for Windows: KOHORT_KERNELS=none and the option --plat-name of bdist_wheel. Only that platform then
takes it, and others without a wheel build the kernels from the source distribution."""


def extensions() -> list[Extension]:
    """One extension per kernel, each optional: a failed build is a warning, not an error."""
    if WITHOUT_KERNELS:
        return []
    from Cython.Build import cythonize

    compile_flags = list(FLAGS)
    link_flags = []
    if SANITIZE:
        compile_flags = ["-O1", "-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all", f"-fsanitize={SANITIZE}"]
        link_flags = [f"-fsanitize={SANITIZE}"]
    modules = [
        Extension(
            path.removeprefix("src/").replace("/", "."),
            [f"{path}.pyx"],
            include_dirs=[FOLDER],
            depends=[VARINTS, *(f"{FOLDER}/{name}" for name in PARTS)],
            extra_compile_args=compile_flags,
            extra_link_args=link_flags,
        )
        for path in KERNELS
    ]
    built = list(cythonize(modules, include_path=["src"], language_level=3))
    for module in built:
        module.optional = not SANITIZE  # cythonize forgets it
    return built


class TaggedWheel(bdist_wheel):
    """A wheel for this Python and platform if it has every kernel, for any if it has none."""

    def run(self) -> None:
        """Build the kernels before the tag is chosen; without one of them, leave the others out."""
        self.run_command("build_ext")
        build = self.get_finalized_command("build_ext")
        built = [Path(build.get_ext_fullpath(module.name)) for module in self.distribution.ext_modules or ()]
        if not built or not all(path.exists() for path in built):
            for path in built:
                path.unlink(missing_ok=True)
            self.distribution.ext_modules = []
            self.root_is_pure = True
        super().run()


setup(ext_modules=extensions(), cmdclass={"bdist_wheel": TaggedWheel})
