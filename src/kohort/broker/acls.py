"""Access control lists (ACLs) with the semantics of Apache Kafka's StandardAuthorizer.

A rule allows or denies an operation on a resource to a principal and a host. The rules of a request are those whose
name is the resource's name, `*`, or a prefix of the name (pattern PREFIXED).

| rules that match principal, host and operation | decision |
|---|---|
| one denies | denied, whatever else is allowed |
| one allows | allowed |
| none, though rules name the resource | denied |
| none, and no rule names the resource | `allow.everyone.if.no.acl.found` |

A rule that allows READ, WRITE, DELETE or ALTER also allows DESCRIBE. One that allows ALTER_CONFIGS also allows
DESCRIBE_CONFIGS. A rule that denies these denies nothing else. The host of a rule may be a range of addresses, such as
`10.0.0.0/8` or `2001:db8::/32`. Source: Kafka 4.4, KIP-11, KIP-290, KIP-679, KIP-801, KIP-1276.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from kohort.ids import AclOperation, AclPattern, AclPermission

ANY_NAME = ANY_HOST = "*"
ANY_RESOURCE = 1
"""The resource type of filters that selects every type."""
EVERYONE = "User:*"
_O = AclOperation
IMPLIES = {
    _O.DESCRIBE: frozenset({_O.ALL, _O.DESCRIBE, _O.READ, _O.WRITE, _O.DELETE, _O.ALTER}),
    _O.DESCRIBE_CONFIGS: frozenset({_O.ALL, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS}),
}
"""Operations whose permission includes another one, by the included operation."""


class AclRule(NamedTuple):
    """One access rule (ACL), with the protocol's numbers for resource type, pattern, operation and permission."""

    resource_type: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int


class AclRuleFilter(NamedTuple):
    """A filter of ACL rules, as DescribeAcls and DeleteAcls have it. A field that is None or ANY matches every rule.

    The pattern type MATCH selects all rules that apply to the named resource: literal, prefixed and `*`.
    """

    resource_type: int
    name: str | None
    pattern: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    def matches(self, rule: AclRule) -> bool:
        """Return whether the filter selects an ACL rule."""
        return (
            self.resource_type in (ANY_RESOURCE, rule.resource_type)
            and self._matches_name(rule)
            and self.principal in (None, rule.principal)
            and self.host in (None, rule.host)
            and self.operation in (AclOperation.ANY, rule.operation)
            and self.permission in (AclPermission.ANY, rule.permission)
        )

    def _matches_name(self, rule: AclRule) -> bool:
        if self.pattern not in (AclPattern.ANY, AclPattern.MATCH, rule.pattern):
            return False
        if self.name is None:
            return True
        if self.pattern != AclPattern.MATCH:
            return self.name == rule.name
        if rule.pattern == AclPattern.LITERAL:
            return rule.name in (self.name, ANY_NAME)
        return self.name.startswith(rule.name)


_Addresses: TypeAlias = "ipaddress.IPv4Network | ipaddress.IPv6Network"


class _Entry(NamedTuple):
    """The part of an ACL rule that decides once its resource matches: principal, host, operation and permission."""

    principal: str
    host: str
    addresses: _Addresses | None
    operation: int
    permission: int

    def applies_to(self, principal: str, host: str) -> bool:
        """Return whether the rule is about this principal and client address (a `normalized_address`)."""
        if self.principal not in (principal, EVERYONE):
            return False
        if self.addresses is None:
            return self.host in (host, ANY_HOST)
        address = _address(host)
        return address is not None and address in self.addresses


_Entries: TypeAlias = "tuple[_Entry, ...]"
_NONE: _Entries = ()


class _OfType:
    """The ACL rules for one resource type, by resource name: literal names and prefixes, with the prefixes' lengths.

    Values are tuples that are replaced as a whole, so that another thread may decide while a rule is added.
    """

    __slots__ = ("lengths", "literal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, _Entries] = {}
        self.prefixed: dict[str, _Entries] = {}
        self.lengths: tuple[int, ...] = ()

    def table_for_rule(self, rule: AclRule) -> dict[str, _Entries]:
        """Return the table that has a rule of this pattern: `prefixed` or `literal`."""
        return self.prefixed if rule.pattern == AclPattern.PREFIXED else self.literal

    def update_prefix_lengths(self) -> None:
        """Update the set of prefix lengths after a rule with a prefix was added or removed."""
        self.lengths = tuple(sorted({len(name) for name in self.prefixed}))

    def matching_entries(self, name: str) -> Iterator[_Entries]:
        """Yield the rules that apply to a resource: by its name, by a prefix of it, or by `*`."""
        yield self.literal.get(name, _NONE)
        yield self.literal.get(ANY_NAME, _NONE)
        for length in self.lengths:
            if length > len(name):
                break
            yield self.prefixed.get(name[:length], _NONE)


class AclIndex:
    """All access rules (ACLs), indexed by resource.

    Attributes:
        version: a number that grows with each change.
    """

    def __init__(self, rules: Iterable[AclRule] = ()) -> None:
        self.version = 0
        self._rules: dict[AclRule, None] = {}
        self._types: dict[int, _OfType] = {}
        self.add_rules(rules)

    def __len__(self) -> int:
        return len(self._rules)

    def __iter__(self) -> Iterator[AclRule]:
        return iter(self._rules)

    def __contains__(self, rule: object) -> bool:
        return rule in self._rules

    def matching_rules(self, wanted: AclRuleFilter) -> list[AclRule]:
        """Return the ACL rules that a filter selects."""
        return [rule for rule in self._rules if wanted.matches(rule)]

    def add_rules(self, rules: Iterable[AclRule]) -> None:
        """Add ACL rules; those that exist already are ignored."""
        touched = set()
        for rule in rules:
            if rule in self._rules:
                continue
            self._rules[rule] = None
            entries = self._types.setdefault(rule.resource_type, _OfType()).table_for_rule(rule)
            entries[rule.name] = (*entries.get(rule.name, _NONE), _entry(rule))
            touched.add(rule.resource_type)
        self._settle(touched)

    def remove_rules(self, rules: Iterable[AclRule]) -> None:
        """Remove ACL rules; those that do not exist are ignored."""
        touched = set()
        for rule in rules:
            if rule not in self._rules:
                continue
            del self._rules[rule]
            entries, gone = self._types[rule.resource_type].table_for_rule(rule), _entry(rule)
            left = list(entries[rule.name])
            left.remove(gone)
            if left:
                entries[rule.name] = tuple(left)
            else:
                del entries[rule.name]
            touched.add(rule.resource_type)
        self._settle(touched)

    def _settle(self, touched: Iterable[int]) -> None:
        for kind in touched:
            self._types[kind].update_prefix_lengths()
            self.version += 1

    def is_allowed(self, principal: str, host: str, operation: int, resource: tuple[int, str], default: bool) -> bool:
        """Decide by the ACL rules whether a principal may do an operation on a resource.

        Args:
            principal: the principal, such as `User:alice`.
            host: the client's address.
            operation: the operation; not ANY and not ALL.
            resource: the resource's type and name.
            default: the decision if no rule names the resource.
        """
        kind, name = resource
        of_type = self._types.get(kind)
        if of_type is None:
            return default
        host = normalized_address(host)
        implying = IMPLIES.get(AclOperation(operation)) or (AclOperation.ALL, operation)
        named = allowed = False
        for entries in of_type.matching_entries(name):
            for entry in entries:
                named = True
                if not entry.applies_to(principal, host):
                    continue
                if entry.permission == AclPermission.DENY:
                    if entry.operation in (operation, AclOperation.ALL):
                        return False
                elif entry.operation in implying:
                    allowed = True
        return allowed if named else default

    def is_allowed_on_any(self, principal: str, host: str, operation: int, kind: int) -> bool:
        """Decide whether a principal may do an operation on at least one resource of a type.

        True if an ALLOW rule names a resource or prefix that no DENY rule covers. Resources that no rule names do not
        count.
        """
        of_type = self._types.get(kind)
        if of_type is None:
            return False
        host = normalized_address(host)

        def names_with_permission(entries: dict[str, _Entries], permission: AclPermission) -> set[str]:
            return {
                name
                for name, found in entries.items()
                for entry in found
                if entry.permission == permission
                and entry.applies_to(principal, host)
                and entry.operation in (operation, AclOperation.ALL)
            }

        denied = names_with_permission(of_type.literal, AclPermission.DENY)
        if ANY_NAME in denied:
            return False
        allowed = names_with_permission(of_type.literal, AclPermission.ALLOW)
        if ANY_NAME in allowed:
            return True
        denied_prefixes = names_with_permission(of_type.prefixed, AclPermission.DENY)
        names = (allowed - denied) | names_with_permission(of_type.prefixed, AclPermission.ALLOW)
        return any(not _has_prefix(name, denied_prefixes) for name in names)


def _has_prefix(name: str, prefixes: set[str]) -> bool:
    return any(name[:length] in prefixes for length in range(1, len(name) + 1)) if prefixes else False


def _entry(rule: AclRule) -> _Entry:
    host = rule.host if rule.host == ANY_HOST else normalized_address(rule.host)
    try:
        addresses = address_range(rule.host)
    except ValueError:  # of an earlier release, which did not check it; as in Kafka, it is the address of no one
        addresses = None
    return _Entry(rule.principal, host, addresses, rule.operation, rule.permission)


_IPV4_RANGE = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,3})/([0-9]{1,2})", re.ASCII)
_IPV6_RANGE = re.compile(r"\[?([^]/]*)]?/\+?([0-9]{1,9})", re.ASCII)


def address_range(host: str) -> _Addresses | None:
    """Return the addresses that a rule's host such as `10.0.0.0/8` stands for; None if it is no range.

    Bits behind the prefix do not count: `10.1.2.3/8` is `10.0.0.0/8`. Source: KIP-1276.

    Raises:
        ValueError: a range in neither IPv4's form nor IPv6's; the text says why.
    """
    if "/" not in host:
        return None
    if ":" not in host:
        found = _IPV4_RANGE.fullmatch(host)
        if found is None:
            raise ValueError("an address and the number of its bits that count are needed, such as 10.0.0.0/8")
        *parts, bits = map(int, found.groups())
        return ipaddress.IPv4Network((bytes(parts), bits), strict=False)
    found = _IPV6_RANGE.fullmatch(host)
    if found is None:
        raise ValueError("an address and the number of its bits that count are needed, such as 2001:db8::/32")
    address = ipaddress.IPv6Address(found[1])
    if address.ipv4_mapped is not None:
        raise ValueError("an IPv4 client has its IPv4 address: write the range in IPv4's form")
    return ipaddress.IPv6Network((int(address), int(found[2])), strict=False)


@lru_cache(maxsize=10_000)
def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


@lru_cache(maxsize=10_000)
def normalized_address(host: str) -> str:
    """Return an address in one form, so that `::1` equals `0:0:0:0:0:0:0:1`; other texts stay.

    An IPv4 client of an IPv6 socket has its IPv4 address.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
