"""The first exchange on a connection: the broker's versions, and whether it is the intended broker.

Source: KIP-511 (names of software), KIP-1242 (the cluster and the node that a client means to reach).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kohort.errors import ErrorCode, RetriableError, TimedOutError, error_for
from kohort.wire.discovery import ApiVersionsRequest, ApiVersionsResponse

SOFTWARE_NAME = "kohort"
SOFTWARE_VERSION = "1.0.0rc1"
NAMES_NODE = 5
"""The first version of ApiVersions that names the node. Brokers up to Kafka 4.3 refuse it, which costs a round trip:
it is used only after one of the cluster's brokers has offered it."""
ANSWERED_BY_ALL = 3
"""The highest version of ApiVersions that no broker is known to hang up on. Azure Event Hubs resets the connection at
later ones, instead of naming the versions that it has."""

Identity = tuple[str, int]
"""A cluster's id and a broker's id in it."""


class Negotiator:
    """Negotiates versions on new connections of one client."""

    def __init__(self) -> None:
        self._identity_of: Callable[[int, object], Identity | None] = lambda node, address: None
        self._on_misrouted: Callable[[], None] = lambda: None
        self._names_node = False
        self._hung_up: set[object] = set()

    def watch_identities(
        self, expected_identity: Callable[[int, object], Identity | None], on_misrouted: Callable[[], None]
    ) -> None:
        """Watch that connections lead to the intended brokers.

        Args:
            expected_identity: Returns the identity that a broker must have, by node id and address; None: any broker
                will do.
            on_misrouted: Called when another broker answers at a broker's address: the metadata is outdated.
        """
        self._identity_of, self._on_misrouted = expected_identity, on_misrouted

    async def negotiate(
        self,
        node: int,
        address: object,
        process: str,
        ask: Callable[[ApiVersionsRequest, int], Awaitable[ApiVersionsResponse]],
    ) -> tuple[ApiVersionsResponse, dict[int, tuple[int, int]]]:
        """Ask a broker for its versions, at the highest version of ApiVersions that both know.

        After a broker has hung up on a later version, the next connection to its address begins with `ANSWERED_BY_ALL`.

        Args:
            node: The broker's id, negative for a bootstrap server.
            address: The broker's address, for errors.
            process: The process name that the broker receives.
            ask: Sends a request at a version and returns the response.

        Returns:
            The response, and the range of versions by API.

        Raises:
            KafkaError: REBOOTSTRAP_REQUIRED: another broker is at this address by now. Other codes: the broker refuses.
        """
        identity = self._identity_of(node, address) if self._names_node else None
        version = NAMES_NODE if identity is not None else NAMES_NODE - 1
        if address in self._hung_up:
            version = ANSWERED_BY_ALL
        while True:
            hello = ApiVersionsRequest(
                client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION, client_process=process
            )
            if identity is not None and version >= NAMES_NODE:
                hello.cluster_id, hello.node_id = identity
            try:
                answer = await ask(hello, version)
            except TimedOutError:
                raise
            except RetriableError:
                if version > ANSWERED_BY_ALL:
                    self._hung_up.add(address)
                else:  # the version is not the reason: the broker may be restarting
                    self._hung_up.discard(address)
                raise
            ranges = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
            _, highest = ranges.get(ApiVersionsRequest.API_KEY, (0, 0))
            if answer.error_code == ErrorCode.UNSUPPORTED_VERSION and version > 0:
                version = min(version - 1, highest)
                continue
            if answer.error_code == ErrorCode.REBOOTSTRAP_REQUIRED and identity is not None:
                self._on_misrouted()
                cluster_id, node_id = identity
                text = f"{address} is not broker {node_id} of cluster {cluster_id} any more"
                raise error_for(ErrorCode.REBOOTSTRAP_REQUIRED, text)
            if answer.error_code:
                raise error_for(ErrorCode.of(answer.error_code), f"{address} refused ApiVersions")
            self._names_node = highest >= NAMES_NODE
            if highest > ANSWERED_BY_ALL:
                self._hung_up.discard(address)
            return answer, ranges
