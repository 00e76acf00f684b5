"""The ACLs of a broker, stored in a file of its data folder. The file is replaced as a whole with each change."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from kohort.broker.acls import AclIndex, AclRule
from kohort.broker.config.json_file import read_json
from kohort.errors import CorruptDataError, ErrorCode, KafkaError
from kohort.log.checkpoints import replace_file

FILE = "acls.json"
RULES_MAX = 10_000
"""The most rules. Each change writes all of them on the event loop: 10,000 rules take tens of milliseconds."""
TEXT_MAX = 1_000
"""The longest resource name, principal or host of a rule. Kafka's own names of topics have at most 249 characters."""


class AclStore:
    """The store of all access rules (ACLs), durable and indexed.

    Attributes:
        index: all rules, for an authorizer.
    """

    def __init__(self, folder: Path) -> None:
        """Read the stored ACL rules from their file.

        Raises:
            CorruptDataError: the file can't be read. A broker without its rules must not start: it could allow what
                they deny.
        """
        self._path = folder / FILE
        rules = read_json(self._path).get("acls", [])
        if not isinstance(rules, list) or not all(_is_rule(fields) for fields in rules):
            raise CorruptDataError(f"{self._path} has no list of rules; mend it, or remove it with its rules")
        self.index = AclIndex(AclRule(*fields) for fields in rules)

    def change_rules(self, added: Iterable[AclRule], removed: Iterable[AclRule]) -> list[AclRule]:
        """Add and remove rules; durable and in effect when this returns.

        Returns:
            The added rules that did not exist.

        Raises:
            KafkaError: there is no room for the new rules; nothing is changed.
            OSError: the rules could not be stored; nothing is changed.
        """
        new = [rule for rule in dict.fromkeys(added) if rule not in self.index]
        gone = {rule for rule in removed if rule in self.index}
        if not new and not gone:
            return []
        after = [rule for rule in self.index if rule not in gone] + new
        if new and len(after) > RULES_MAX:
            raise KafkaError(f"a broker has at most {RULES_MAX} ACLs", ErrorCode.POLICY_VIOLATION)
        if any(len(text) > TEXT_MAX for rule in new for text in (rule.name, rule.principal, rule.host)):
            text = f"names, principals and hosts of ACLs have at most {TEXT_MAX} characters"
            raise KafkaError(text, ErrorCode.POLICY_VIOLATION)
        lines = ",\n".join(msgspec.json.encode(rule).decode() for rule in after)
        replace_file(self._path, f'{{"acls": [\n{lines}\n]}}\n', mode=0o600)
        self.index.remove_rules(gone)
        self.index.add_rules(new)
        return new


def _is_rule(fields: object) -> bool:
    kinds = [int, str, int, str, str, int, int]
    return isinstance(fields, list) and [type(field) for field in fields] == kinds
