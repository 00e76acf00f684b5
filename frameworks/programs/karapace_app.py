"""A Karapace registry from its sources: `karapace_app.py SOURCES VERSION`; the settings are in the environment.

Karapace's Protobuf part is a library that its installation builds. The schemas of a run are Avro, so an empty part
takes its place.
"""

import runpy
import sys
from types import ModuleType

sources, version = sys.argv[1:]
sys.path.insert(0, sources)


def add_module(name: str, **members: object) -> None:
    module = ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module


class IncompatibleError(Exception):
    pass


class Proto:
    pass


def refuse(*_: object) -> None:
    raise NotImplementedError("Protobuf is not built")


protobuf_part = {
    "IncompatibleError": IncompatibleError, "Proto": Proto, "check_compatibility": refuse, "format_proto": refuse,
}  # fmt: skip
add_module("karapace.version", __version__=version)
add_module("karapace.core.protobuf.protopace.protopace", **protobuf_part)
add_module("karapace.core.protobuf.protopace", __path__=[], **protobuf_part)
runpy.run_module("karapace", run_name="__main__", alter_sys=True)
