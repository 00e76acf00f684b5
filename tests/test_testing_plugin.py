"""The pytest plugin, in test runs of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]


def test_each_test_has_its_own_broker(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from kohort import Admin
        from kohort.client.admin.values import NewTopic

        def create(broker):
            with Admin(broker.bootstrap_servers) as admin:
                return admin.create_topics([NewTopic("same-name")]).all()["same-name"].num_partitions

        @pytest.mark.kohort_broker(config={"num.partitions": 6})
        def test_configured(kohort_broker):
            assert create(kohort_broker) == 6

        def test_plain(kohort_broker):
            assert create(kohort_broker) == 1

        def test_several(kohort_broker_factory):
            first, second = kohort_broker_factory(), kohort_broker_factory(config={"num.partitions": 2})
            assert (create(first), create(second)) == (1, 2)

        def test_shared(kohort_shared_broker):
            assert create(kohort_shared_broker) == 1
        """
    )
    result = pytester.runpytest_subprocess("-W", "error", "--strict-markers", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=4)


def test_groups_of_a_fixtures_broker_begin_with_their_first_member(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from kohort import Admin
        from kohort.client.admin.values import ConfigResource, ResourceType

        def delay(broker):
            with Admin(broker.bootstrap_servers) as admin:
                here = ConfigResource(ResourceType.BROKER, str(admin.describe_cluster().controller_id))
                return admin.describe_configs([here]).result(here)["group.initial.rebalance.delay.ms"].value

        def test_of_its_own(kohort_broker):
            assert delay(kohort_broker) == "0"

        def test_shared(kohort_shared_broker):
            assert delay(kohort_shared_broker) == "0"

        def test_several(kohort_broker_factory):
            assert delay(kohort_broker_factory(config={"num.partitions": 2})) == "0"

        @pytest.mark.kohort_broker({"group.initial.rebalance.delay.ms": 100})
        def test_a_marker_wins(kohort_broker):
            assert delay(kohort_broker) == "100"
        """
    )
    result = pytester.runpytest_subprocess("-W", "error", "--strict-markers", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=4)


def test_markers_of_test_class_and_module_configure_the_broker(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from kohort import Admin
        from kohort.client.admin.values import ConfigResource, NewTopic, ResourceType

        TOPIC = ConfigResource(ResourceType.TOPIC, "t")
        pytestmark = pytest.mark.kohort_broker({"num.partitions": 2, "log.retention.ms": 7200000})

        def made(broker):
            with Admin(broker.bootstrap_servers) as admin:
                partitions = admin.create_topics([NewTopic("t")]).result("t").num_partitions
                return partitions, admin.describe_configs([TOPIC]).result(TOPIC)["retention.ms"].value

        def test_of_the_module(kohort_broker):
            assert made(kohort_broker) == (2, "7200000")

        @pytest.mark.kohort_broker({"num.partitions": 3})
        class TestClass:
            def test_of_the_class(self, kohort_broker):
                assert made(kohort_broker) == (3, "7200000")

            @pytest.mark.kohort_broker({"num.partitions": 4})
            def test_of_its_own(self, kohort_broker):
                assert made(kohort_broker) == (4, "7200000")

            @pytest.mark.kohort_broker(config={"log.retention.ms": 3600000})
            def test_by_name(self, kohort_broker):
                assert made(kohort_broker) == (3, "3600000")

        def test_without_a_broker():
            pass
        """
    )
    result = pytester.runpytest_subprocess("-W", "error", "--strict-markers", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=5)


def test_a_marker_that_can_not_be_followed_is_an_error_that_says_so(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.kohort_broker({"num.partition": 6})
        def test_misspelt(kohort_broker): ...

        @pytest.mark.kohort_broker({"num.partitions": "many"})
        def test_bad_value(kohort_broker): ...

        @pytest.mark.kohort_broker(num_partitions=6)
        def test_keyword(kohort_broker): ...

        @pytest.mark.kohort_broker("num.partitions=6")
        def test_text(kohort_broker): ...

        @pytest.mark.kohort_broker
        def test_empty(kohort_broker): ...

        @pytest.mark.kohort_broker({"num.partitions": 6})
        def test_shared(kohort_shared_broker): ...
        """
    )
    result = pytester.runpytest_subprocess("-W", "error", "--strict-markers", "-p", "no:cacheprovider")
    result.assert_outcomes(errors=6)
    result.stdout.fnmatch_lines(
        [
            "*{'num.partition': 6}*unknown setting num.partition; did you mean num.partitions?",
            "*num.partitions must be*many*",
            "*kohort_broker(num_partitions=6): it takes one mapping*",
            "*kohort_broker('num.partitions=6'): it takes one mapping*",
            "*kohort_broker(): it takes one mapping*",
            "*does not use (it uses kohort_shared_broker)*",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stderr.no_fnmatch_line("*Traceback*")


def test_faults_and_crashes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from kohort import Admin, TopicPartition
        from kohort.client.admin.values import NewTopic
        from kohort.client.offsets import OffsetAndMetadata
        from kohort.errors import ErrorCode, KafkaError
        from kohort.testing import Fault

        PARTITION = TopicPartition("kept", 0)

        def test_story(kohort_broker):
            with Admin(kohort_broker.bootstrap_servers) as admin:
                admin.create_topics([NewTopic("kept", 1)]).all()
                rule = kohort_broker.faults.add(
                    Fault(api="OffsetCommit", action="fail", error=ErrorCode.GROUP_AUTHORIZATION_FAILED)
                )
                offsets = {PARTITION: OffsetAndMetadata(0)}
                with pytest.raises(KafkaError, match="GROUP_AUTHORIZATION_FAILED"):
                    admin.alter_consumer_group_offsets("g", offsets).partition_result(PARTITION)
                rule.wait()
                admin.alter_consumer_group_offsets("g", offsets).all()
                kohort_broker.kill()
                kohort_broker.restart()
                assert admin.list_consumer_group_offsets("g").result(PARTITION).offset == 0
        """
    )
    pytester.runpytest_subprocess("-W", "error", "-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_plugin_costs_little_when_unused() -> None:
    code = (
        "import sys, kohort.testing; "
        "heavy = {'pyarrow', 'asyncio', 'kohort.client', 'kohort.broker', 'kohort.wire'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
