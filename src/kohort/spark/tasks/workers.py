"""The choice of the Python that Spark's workers run.

Spark starts workers, and the process that drives a streaming query, with the command in PYSPARK_PYTHON. Without it,
they run the `python3` of the PATH, not the interpreter of the program. kohort must be installed in the Python that is
started.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("kohort.spark")

VARIABLE = "PYSPARK_PYTHON"
LOCAL_CONNECT = "SPARK_LOCAL_REMOTE"
"""The variable that PySpark sets when `SparkSession.builder.remote("local")` starts a Connect server."""
_HERE = ("local", "local[", "local-cluster[")
"""Masters whose workers are processes of this machine. Source: Spark, "Master URLs"."""


class InterpreterChoice(NamedTuple):
    """The decision which Python interpreter a session's workers run.

    Attributes:
        python: the interpreter to set for them; None leaves it unchanged.
        warning: the warning for the user; None if there is none.
    """

    python: str | None = None
    warning: str | None = None


def choose_interpreter(master: str, set_to: str | None, own: str) -> InterpreterChoice:
    """Choose the interpreter of a session's workers.

    Args:
        master: the session's master.
        set_to: the value of PYSPARK_PYTHON when the session was made; None if it was not set.
        own: the interpreter that runs the program.
    """
    if master == _HERE[0] or master.startswith(_HERE[1:]):
        if set_to is None:
            return InterpreterChoice(own)
        if _same(set_to, own):
            return InterpreterChoice()
        return InterpreterChoice(
            own, f"{VARIABLE} is {set_to}, but the workers of this local session run {own}, as the program does"
        )
    if set_to is None:
        return InterpreterChoice(
            warning=f"{VARIABLE} is not set, so the workers of {master} run the python3 of their PATH: install kohort "
            f"for it, or set {VARIABLE} to an interpreter that has kohort on every machine, before the session is made"
        )
    return InterpreterChoice()


def local_connect_warning(environ: Mapping[str, str], own: str) -> str | None:
    """Return the warning for a Connect server that this program has started and that runs another Python; else None.

    Args:
        environ: the environment. PySpark sets a variable for such a server, `SparkSession.builder.remote` with
            "local"; the server had this environment when it started.
        own: the interpreter that runs the program.
    """
    if LOCAL_CONNECT not in environ:
        return None
    command = environ.get(VARIABLE) or environ.get("PYSPARK_DRIVER_PYTHON") or "python3"
    if _same(command, own):
        return None
    return (
        f"the Spark Connect server of this program runs {shutil.which(command) or command}, not {own}: activate the "
        f"environment, or set {VARIABLE}={own}, before the session is made"
    )


def _same(command: str, other: str) -> bool:
    """Return whether two commands are the same interpreter in the same folder; a virtual environment's link differs."""
    found = shutil.which(command)
    if found is None:
        return False
    first, second = Path(found), Path(other)
    return first.parent.resolve() == second.parent.resolve() and first.resolve() == second.resolve()


def use_this_python(spark: SparkSession) -> None:
    """Make the workers of a local session run this interpreter; warn if that may be needed and can't be done.

    On Spark Connect the server has chosen its Python. Only a server that this program has started is known here.
    """
    try:
        context = spark.sparkContext
    except AttributeError:  # Spark Connect
        warning = local_connect_warning(os.environ, sys.executable)
        if warning is not None:
            log.warning("Spark's workers run another Python than this program: %s", warning)
        return
    default = os.environ.get(VARIABLE) is None and context.pythonExec == "python3"
    choice = choose_interpreter(context.master, None if default else context.pythonExec, sys.executable)
    if choice.warning is not None:
        log.warning("Spark's workers may run another Python than this program: %s", choice.warning)
    if choice.python is not None:
        context.pythonExec = choice.python
