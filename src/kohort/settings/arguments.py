"""Argument checks of public calls, by the calls' own signatures: one place for every class that users call.

    @checks_arguments
    class Admin:
        def delete_topics(self, topics: Iterable[str], *, timeout_ms: float | None = None) -> ...: ...

    admin.delete_topics("abc")
    # InvalidInputError: Admin.delete_topics: topics must be a list of str, not 'abc'; write ['abc']

Annotations are read at a call's first use. A method that is called for every record checks its arguments itself, with
`Arguments.check_argument` where something is wrong, and is marked `skips_argument_checks`.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import update_wrapper
from typing import Any, TypeVar, cast

from kohort.errors import InvalidInputError
from kohort.settings.validation import ANYTHING, INT32_MAX, ValidationError, Validator, list_validator, validator_for

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
_TIMEOUT = "timeout_ms"
_SECONDS_MAX = 10
_BY_NAME = 1 << 30
_FEW = 3
"""The number of arguments, `self` among them, up to which no list is made: those of poll."""
_FOR_CHECKERS = {"pa": "pyarrow"}
_SETTINGS_CHECK = ("bootstrap_servers",)
"""The parameters that are checked as settings."""


def checks_arguments(cls: type[T]) -> type[T]:
    """Make the public methods of a class raise InvalidInputError for arguments that their signatures do not admit."""
    for name, method in list(vars(cls).items()):
        if not name.startswith("_") and inspect.isfunction(method) and not hasattr(method, "skips_argument_checks"):
            setattr(cls, name, check_call_arguments(method))
    return cls


def skips_argument_checks(method: F) -> F:
    """Mark a method that `checks_arguments` leaves unchanged, because it checks its arguments itself."""
    method.skips_argument_checks = True  # type: ignore[attr-defined]
    return method


def check_call_arguments(method: F) -> F:
    """Make a method raise InvalidInputError for arguments that do not fit its signature; for classes of users."""
    arguments = Arguments(method)
    fit = arguments.check_call

    def call_with_checked_arguments(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            return method(*fit(args, kwargs), **kwargs)
        return method(*fit(args, kwargs))

    async def call_async(*args: Any, **kwargs: Any) -> Any:
        return await method(*fit(args, kwargs), **kwargs)

    wrapper: Any = update_wrapper(
        call_async if inspect.iscoroutinefunction(method) else call_with_checked_arguments, method
    )
    wrapper.arguments = arguments
    return cast(F, wrapper)


class Arguments:
    """The expected arguments of a method. Annotations are read at first use."""

    def __init__(self, method: Callable[..., Any], called: str = "") -> None:
        """Keep the method; its annotations are read at the first use.

        Args:
            method: Its first parameter is `self`.
            called: The method's name in messages; if empty, it is named with the class of `self`.
        """
        self._method = method
        self._called = called
        self._validators: dict[str, Validator] | None = None
        self._takes: list[Callable[[Any], Any]] = []
        self._named: dict[str, tuple[int, Callable[[Any], Any]]] = {}
        self._needed: list[str] = []
        self._least = 0
        self._rest: str | None = None
        self._open = False

    def check_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
        """Check and convert the arguments of one call; return them by position, beginning with `self`.

        Keyword arguments are converted in `kwargs`.

        Raises:
            InvalidInputError: the arguments do not fit the signature.
        """
        count, takes = len(args), self._takes
        if not self._least < count <= len(takes):
            return self._fit_others(args, kwargs)
        if kwargs:
            self._fit_named(args, kwargs)
        if count == 1:
            return args
        if count > _FEW:
            return self._fit_positions(args)
        at = 0
        try:
            first = takes[1](args[1])
            if count == _FEW - 1:
                return args[0], first
            at = 1
            return args[0], first, takes[2](args[2])
        except ValidationError as error:
            raise self._refused(args, self._error_text(error, self._by_position()[at])) from None

    def _fit_positions(self, args: tuple[Any, ...]) -> list[Any]:
        fitted: list[Any] = []
        try:
            for take, value in zip(self._takes, args):  # noqa: B905 - some come by name
                fitted.append(take(value))
        except ValidationError as error:
            raise self._refused(args, self._error_text(error, self._by_position()[len(fitted) - 1])) from None
        return fitted

    def _fit_named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        named, positional = self._named, len(args) - 1
        for name, value in kwargs.items():
            known = named.get(name)
            if known is None:
                if self._open:
                    continue
                raise self._refused(args, f" takes no {name}; {self._nearest(name, value)}")
            at, take = known
            if at < positional:
                raise self._refused(args, f"{name} is given twice, by position and by name")
            try:
                kwargs[name] = take(value)
            except ValidationError as error:
                raise self._refused(args, self._error_text(error, name)) from None

    def _fit_others(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
        """Return the arguments by position in the cases that `check_call` does not decide quickly.

        These are keywords for parameters without a default, surplus arguments, and the first call ever.
        """
        if self._validators is None:
            self._read_annotations()
            return self.check_call(args, kwargs)
        count, positional_max = len(args), len(self._takes)
        if count > positional_max and self._rest is None:
            raise self._refused(args, self._too_many(count - 1))
        fitted = self._fit_positions(args[:positional_max])
        self._fit_named(args[:positional_max], kwargs)
        for name in self._needed[count - 1 :]:
            if name not in kwargs:
                raise self._refused(args, f"{name} is missing; it must be {self.expected_texts()[name]}")
        return fitted + self._all_of_rest(args[positional_max:], args)

    def check_argument(self, name: str, value: Any) -> Any:
        """Check and convert one argument by the annotation of the parameter `name`, and return it.

        Raises:
            InvalidInputError: the argument does not fit the signature.
        """
        try:
            return self._validator(name).take(value)
        except ValidationError as error:
            raise InvalidInputError(f"{self._called or self._method.__name__}: {error.message_for(name)}") from None

    def expected_texts(self) -> dict[str, str]:
        """Return the expected value of each parameter, in words."""
        if self._validators is None:
            self._read_annotations()
        assert self._validators is not None
        return {name: validator.expected for name, validator in self._validators.items()}

    def _validator(self, name: str) -> Validator:
        if self._validators is None:
            self._read_annotations()
        assert self._validators is not None
        return self._validators[name]

    def _read_annotations(self) -> None:
        """Build the validators from the method's annotations.

        Two threads may do so at once: the mark of completion is set last.
        """
        function = inspect.unwrap(self._method)
        scope = _Scope(function.__globals__)
        validators: dict[str, Validator] = {}
        takes, needed = [ANYTHING.take], []
        for parameter in list(inspect.signature(self._method).parameters.values())[1:]:
            name, kind = parameter.name, parameter.kind
            if kind is parameter.VAR_KEYWORD:
                self._open = True
                continue
            hint = parameter.annotation
            if isinstance(hint, str):
                hint = eval(hint, {}, scope)
            validators[name] = validator = ANYTHING if name in _SETTINGS_CHECK else validator_for(hint, name)
            if kind is parameter.VAR_POSITIONAL:
                self._rest = name
                continue
            self._named[name] = (_BY_NAME if kind is parameter.KEYWORD_ONLY else len(takes) - 1), validator.take
            if kind is not parameter.KEYWORD_ONLY:
                takes.append(_not_seconds(validator) if name == _TIMEOUT else validator.take)
                if parameter.default is parameter.empty:
                    needed.append(name)
        self._needed, self._least, self._takes = needed, len(needed), takes
        self._validators = validators

    # -- error messages

    def _refused(self, args: tuple[Any, ...], text: str) -> InvalidInputError:
        called = self._called
        if not called:
            owner, name = type(args[0]).__name__, self._method.__name__
            called = owner if name == "__init__" else f"{owner}.{name}"
        return InvalidInputError(f"{called}{text}" if text.startswith(" ") else f"{called}: {text}")

    def _by_position(self) -> list[str]:
        return list(self._named)[: len(self._takes) - 1]

    def _too_many(self, count: int) -> str:
        names = self._by_position()
        some = f"{len(names)} argument{'s' * (len(names) > 1)} by position ({', '.join(names)})"
        others = [name for name in self._named if name not in names]
        hint = f"; give {' and '.join(others)} by its name" if len(others) == 1 else ""
        return f" takes {some if names else 'no argument by position'}, not {count}{hint}"

    def _error_text(self, error: ValidationError, name: str) -> str:
        text = error.message_for(name)
        return text if error.path or error.correct_form else text + self._other_place(error.value, name)

    def _other_place(self, value: Any, name: str) -> str:
        """Return `; did you mean NAME=?` if a misplaced collection fits exactly one other parameter; else ""."""
        assert self._validators is not None
        if not isinstance(value, Mapping | list | tuple | set):
            return ""
        fits = [
            other
            for other, validator in self._validators.items()
            if other != name and validator is not ANYTHING and validator.accepts_value(value)
        ]
        return f"; did you mean {fits[0]}=?" if len(fits) == 1 else ""

    def _nearest(self, name: str, value: Any) -> str:
        if "timeout" in name and _TIMEOUT in self._named:
            number = isinstance(value, int | float) and math.isfinite(value)
            time_ms = round(value if name.endswith("_ms") else value * 1000) if number else "…"
            form = f"{_TIMEOUT}={time_ms}"
            return f"did you mean {_TIMEOUT}? It counts milliseconds: {form}"
        near = difflib.get_close_matches(name, list(self._named), 1, 0.6)
        if near:
            return f"did you mean {near[0]}?"
        return f"it takes {', '.join(self._validators or ()) or 'nothing'}"

    def _all_of_rest(self, values: tuple[Any, ...], args: tuple[Any, ...]) -> list[Any]:
        """Check and convert the values of a parameter such as `*partitions`."""
        if self._rest is None:
            return []
        validator = self._validator(self._rest)
        taken = []
        for at, value in enumerate(values):
            try:
                taken.append(validator.take(value))
            except ValidationError as error:
                many = list_validator(validator).accepts_value(value)
                text = error.with_path(f"[{at}]").message_for(self._rest)
                text = f"{text.partition('; write')[0]}; write {self._method.__name__}(*{self._rest})" if many else text
                raise self._refused(args, text) from None
        return taken


class _LooksLikeSeconds(ValidationError):
    """A literal like 1.0 where milliseconds are expected: other clients' polls count seconds."""

    def message_for(self, name: str) -> str:
        value: Any = self.value
        write = f"{name}={round(value * 1000)}, or {name}={value!r} if that is meant"
        return f"{name} counts milliseconds, and {value!r} looks like seconds; write {write}"


def _not_seconds(validator: Validator) -> Callable[[Any], Any]:
    """Refuse a positional timeout that was probably written in seconds: a short float literal.

    A computed value has more than three decimals, or is larger. As a keyword argument every number is accepted.
    """

    def accept_milliseconds(value: Any) -> Any:
        if type(value) is int and 0 <= value <= INT32_MAX:
            return value
        if type(value) is float and 0 < value <= _SECONDS_MAX and round(value, 3) == value:
            raise _LooksLikeSeconds(validator.expected, value)
        return validator.take(value)

    return accept_milliseconds


class _Scope(dict[str, object]):
    """The names of a module, including those that it imports only for type checkers."""

    def __missing__(self, name: str) -> object:
        return importlib.import_module(_FOR_CHECKERS[name])
