"""`kohort acls`: list, add and remove access control lists, with the options of Kafka's own command.

Source: kafka-acls.sh of Kafka 4.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from kohort.cli.app import DONE, FAILED, UsageError
from kohort.cli.common import Common
from kohort.cli.output import is_confirmed, print_note, print_rows

if TYPE_CHECKING:
    from kohort.client.admin.values import Acl, AclFilter

app = App(name="acls", help="List, add and remove access control lists.")

_COMMON = Common()
CLUSTER_NAME = "kafka-cluster"
COLUMNS = ("permission", "principal", "host", "operation", "resource_type", "resource", "pattern")
_Words = Annotated[tuple[str, ...], Parameter(negative="")]
_Flag = Annotated[bool, Parameter(negative="")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ResourceOptions:
    """The resources of rules."""

    topic: _Words = ()
    """A topic, or * for all; may be given again."""

    group: _Words = ()
    """A group, or * for all; may be given again."""

    transactional_id: _Words = ()
    """A transactional id, or * for all; may be given again."""

    delegation_token: _Words = ()
    """A delegation token, or * for all; may be given again."""

    user_principal: _Words = ()
    """A user whose tokens are made or described, such as User:alice; may be given again."""

    cluster: _Flag = False
    """The cluster itself."""

    resource_pattern_type: str | None = None
    """How names are meant: literal (the default of add), or prefixed. To list and remove also match (all rules that
    apply to the name) and any (the default of list)."""

    def named_resources(self) -> list[tuple[str, str]]:
        """Return the resource types with the names."""
        kinds = {
            "TOPIC": self.topic,
            "GROUP": self.group,
            "TRANSACTIONAL_ID": self.transactional_id,
            "DELEGATION_TOKEN": self.delegation_token,
            "USER": self.user_principal,
            "CLUSTER": (CLUSTER_NAME,) if self.cluster else (),
        }
        return [(kind, name) for kind, names in kinds.items() for name in dict.fromkeys(names)]


_RESOURCES = ResourceOptions()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RuleOptions:
    """The principals, hosts and operations of rules."""

    allow_principal: _Words = ()
    """The user that is allowed, such as User:alice, or User:* for everyone; may be given again."""

    deny_principal: _Words = ()
    """The user that is denied, whatever another rule allows; may be given again."""

    allow_host: _Words = ()
    """The address from which --allow-principal may; every one unless given. May be given again."""

    deny_host: _Words = ()
    """The address from which --deny-principal may not; every one unless given. May be given again."""

    operation: _Words = ()
    """The operation: read, write, create, delete, alter, describe, cluster-action, describe-configs, alter-configs,
    idempotent-write, create-tokens, describe-tokens, two-phase-commit or all (the default). May be given again."""

    producer: _Flag = False
    """The rights of a producer: write, describe and create topics, and write and describe transactional ids."""

    consumer: _Flag = False
    """The rights of a consumer: read and describe topics, and read groups."""

    idempotent: _Flag = False
    """With --producer: also the right to idempotent writes in the cluster."""

    def permissions_and_principals(self) -> list[tuple[str, str, str]]:
        """Return permission, principal and host of each rule.

        Raises:
            UsageError: a host without a principal.
        """
        found = []
        for permission, principals, hosts in (
            ("ALLOW", self.allow_principal, self.allow_host),
            ("DENY", self.deny_principal, self.deny_host),
        ):
            if hosts and not principals:
                word = permission.lower()
                raise UsageError(f"--{word}-host needs --{word}-principal")
            found += [(permission, principal, host) for principal in principals for host in hosts or ("*",)]
        return found

    def check_idempotent(self) -> None:
        """Check that --idempotent comes with the rights that it is added to.

        Raises:
            UsageError: it comes without --producer.
        """
        if self.idempotent and not self.producer:
            raise UsageError("--idempotent adds to the rights of --producer: give that too, or --operation for others")


_RULES = RuleOptions()


@app.command(name="list")
def list_(*, principal: _Words = (), resources: ResourceOptions = _RESOURCES, common: Common = _COMMON) -> int:
    """List the rules, all of them unless resources or principals are named.

    Args:
        principal: Only rules of this principal; may be given again.
    """
    filters = _filters(resources, "any")
    with common.admin() as admin:
        found = {acl for acl_filter in filters for acl in admin.describe_acls(acl_filter)}
    rows = [_acl_row(acl) for acl in sorted(found) if not principal or acl.principal in principal]
    print_rows(rows, COLUMNS, as_json=common.json, empty="no rules")
    return DONE


@app.command
def add(*, rules: RuleOptions = _RULES, resources: ResourceOptions = _RESOURCES, common: Common = _COMMON) -> int:
    """Add rules: one for each resource, operation, principal and host."""
    acls = _acls(rules, resources)
    with common.admin() as admin:
        results = admin.create_acls(acls)
    rows = [{**_acl_row(acl), "done": acl in results.values} for acl in acls]
    refused = {acl for acl in acls if acl in results.errors}
    shown = rows if common.json else [row for row, acl in zip(rows, acls, strict=True) if acl not in refused]
    if shown:
        print_rows(shown, (*COLUMNS, "done"), as_json=common.json)
    for error in {str(error): error for error in results.errors.values()}.values():
        print_note(f"kohort: {error}")
    return FAILED if refused else DONE


@app.command
def remove(
    *,
    rules: RuleOptions = _RULES,
    resources: ResourceOptions = _RESOURCES,
    execute: _Flag = False,
    common: Common = _COMMON,
) -> int:
    """Remove rules; without principals all rules of the named resources.

    Args:
        execute: Do it. Otherwise a terminal is asked, and anything else gets a preview.
    """
    from kohort.client.admin.values import AclFilter

    if not resources.named_resources():
        raise UsageError("name at least one resource: --topic, --group, --cluster …")
    rules.check_idempotent()
    if rules.permissions_and_principals():
        acls = _acls(rules, resources, of_filter=True)
        filters = [AclFilter(**{field.name: getattr(acl, field.name) for field in fields(acl)}) for acl in acls]
    else:
        if rules.operation or rules.producer or rules.consumer:
            raise UsageError("operations are removed of principals: give --allow-principal or --deny-principal")
        filters = _filters(resources, "literal")
    with common.admin() as admin:
        found = sorted({acl for acl_filter in filters for acl in admin.describe_acls(acl_filter)})
        if not found:
            print_rows([], COLUMNS, as_json=common.json, empty="no rules")
            return DONE
        done = False
        if not common.json or execute:
            if not execute:
                print_rows([_acl_row(acl) for acl in found], COLUMNS, as_json=False)
            done = is_confirmed(execute, f"Remove {len(found)} rules?")
        if done:
            admin.delete_acls(filters).all()
    if done or common.json:
        print_rows([{**_acl_row(acl), "done": done} for acl in found], (*COLUMNS, "done"), as_json=common.json)
    return DONE


def _acls(rules: RuleOptions, resources: ResourceOptions, *, of_filter: bool = False) -> list[Acl]:
    """Return the ACLs that the options describe. With `of_filter`, pattern types that only filters have are allowed.

    Raises:
        UsageError: options are missing or contradict each other.
    """
    from kohort.client.admin.values import Acl, AclPattern, AclPermission, AclResource

    parties, named = rules.permissions_and_principals(), resources.named_resources()
    if not parties:
        raise UsageError("name a principal: --allow-principal or --deny-principal")
    rules.check_idempotent()
    if not named:
        raise UsageError("name at least one resource: --topic, --group, --cluster …")
    pattern = _pattern(resources, "literal", of_filter)
    return [
        Acl(
            principal,
            operation,
            AclResource[kind],
            name,
            pattern if kind != "CLUSTER" else AclPattern.LITERAL,
            host,
            AclPermission[permission],
        )
        for kind, name, operation in _rights(rules, named)
        for permission, principal, host in parties
    ]


def _rights(rules: RuleOptions, named: Sequence[tuple[str, str]]) -> list[tuple[str, str, Any]]:
    """Return the resource type, resource name and operation of each rule that the options describe."""
    from kohort.ids import AclOperation

    if not (rules.producer or rules.consumer):
        operations = [_operation(word) for word in rules.operation] or [AclOperation.ALL]
        return [(kind, name, operation) for kind, name in named for operation in operations]
    if rules.operation:
        raise UsageError("--producer and --consumer say the operations: leave --operation out")
    wanted: dict[str, list[AclOperation]] = {}
    if rules.producer:
        wanted["TOPIC"] = [AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE]
        wanted["TRANSACTIONAL_ID"] = [AclOperation.WRITE, AclOperation.DESCRIBE]
    if rules.consumer:
        wanted.setdefault("TOPIC", []).extend([AclOperation.READ, AclOperation.DESCRIBE])
        wanted["GROUP"] = [AclOperation.READ]
    kinds = {kind for kind, _ in named}
    for needed, given in (("TOPIC", True), ("GROUP", rules.consumer)):
        if given and needed not in kinds:
            raise UsageError(f"--{'consumer' if rules.consumer else 'producer'} needs --{needed.lower()}")
    if strange := sorted(kinds - wanted.keys()):
        raise UsageError(f"--producer and --consumer are for topics, groups and transactional ids, not {strange[0]}")
    rights = [(kind, name, operation) for kind, name in named for operation in dict.fromkeys(wanted[kind])]
    if rules.idempotent:
        rights.append(("CLUSTER", CLUSTER_NAME, AclOperation.IDEMPOTENT_WRITE))
    return rights


def _operation(word: str) -> Any:
    from kohort.ids import AclOperation

    known = {_plain(operation.name): operation for operation in AclOperation if operation is not AclOperation.ANY}
    return _chosen("--operation", word, known)


def _pattern(resources: ResourceOptions, default: str, of_filter: bool) -> Any:
    from kohort.ids import AclPattern

    chosen = [*AclPattern] if of_filter else [AclPattern.LITERAL, AclPattern.PREFIXED]
    known = {_plain(pattern.name): pattern for pattern in chosen}
    return _chosen("--resource-pattern-type", resources.resource_pattern_type or default, known)


def _plain(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "")


def _chosen(option: str, word: str, known: dict[str, Any]) -> Any:
    try:
        return known[_plain(word)]
    except KeyError:
        names = ", ".join(value.name.lower().replace("_", "-") for value in known.values())
        raise UsageError(f"{option} {word}: it is one of {names}") from None


def _filters(resources: ResourceOptions, default: str) -> list[AclFilter]:
    """Return a filter for each named resource; one for all if none is named."""
    from kohort.client.admin.values import AclFilter, AclResource

    pattern = _pattern(resources, default, of_filter=True)
    named = resources.named_resources()
    if not named:
        return [AclFilter(pattern=pattern)]
    return [AclFilter(resource_type=AclResource[kind], resource_name=name, pattern=pattern) for kind, name in named]


def _acl_row(acl: Acl) -> dict[str, Any]:
    return {
        "permission": acl.permission.name,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.name,
        "resource_type": acl.resource_type.name,
        "resource": acl.resource_name,
        "pattern": acl.pattern.name,
    }
