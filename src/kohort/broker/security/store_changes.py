"""Changes of listeners' key and trust stores by a request: loaded in a thread, checked, and used all at once.

Source: KIP-226, KIP-651. Unlike Apache Kafka, a new certificate may have another subject or other names than the one
before, as `ssl.allow.dn.changes` and `ssl.allow.san.changes` allow there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kohort.broker.security.listener_socket import ListenerSocket
from kohort.broker.security.tls import LoadedStores, ServerTls
from kohort.errors import InvalidInputError, TimedOutError


class TlsStoreChanges:
    """The key stores and trust stores of TLS listeners that one request to alter configs changes.

    Attributes:
        wanted: each listener's key store and trust store settings after the change, by listener in lower case.
    """

    def __init__(self, listeners: Sequence[ListenerSocket]) -> None:
        self._tls: dict[str, ServerTls] = {
            listener.name.lower(): listener.tls for listener in listeners if listener.tls is not None
        }
        self.wanted: dict[str, Mapping[str, str]] = {}
        self._loaded: dict[str, LoadedStores | InvalidInputError] = {}

    def add_store_settings(self, stores: Mapping[str, Mapping[str, str]]) -> None:
        """Add new key store and trust store settings, by listener."""
        self.wanted.update(stores)

    def load_stores(self) -> None:
        """Load the key and trust stores of the changed settings. May block."""
        for name, altered in self.wanted.items():
            tls = self._tls.get(name)
            try:
                if tls is not None:
                    self._loaded[name] = tls.load_stores(altered)
                elif altered:
                    self._loaded[name] = InvalidInputError(f"there is no listener with TLS of the name {name}")
            except InvalidInputError as error:
                self._loaded[name] = error.with_traceback(None)
            except (OSError, ValueError) as error:
                self._loaded[name] = InvalidInputError(f"listener {name}: its stores can't be loaded: {error}")

    def check_loaded_stores(
        self, before: Mapping[str, Mapping[str, str]], after: Mapping[str, Mapping[str, str]]
    ) -> None:
        """Check that this request's stores are loaded, and that no other request has changed stores meanwhile.

        `before` and `after` are the store settings of all listeners, now and after the change.

        Raises:
            InvalidInputError: a store can't be used.
            TimedOutError: another request has changed them meanwhile; a retry may help.
        """
        for name in {*before, *after, *self.wanted}:
            if name in self.wanted:
                if self.wanted[name] != after.get(name, {}):
                    raise TimedOutError(f"listener {name}: another request changes its stores too")
                loaded = self._loaded.get(name)
                if isinstance(loaded, InvalidInputError):
                    raise loaded
                if loaded is None and after.get(name):  # a fault of the broker, which its log has
                    raise InvalidInputError(f"listener {name}: its stores can't be loaded")
            elif before.get(name) != after.get(name):
                raise TimedOutError(f"listener {name}: another request has changed its stores")

    def use_stores(self, after: Mapping[str, Mapping[str, str]]) -> None:
        """Use the loaded key and trust stores for new connections."""
        for name, stores in self._loaded.items():
            if isinstance(stores, LoadedStores) and self.wanted[name] == after.get(name, {}):
                self._tls[name].use_stores(stores)
