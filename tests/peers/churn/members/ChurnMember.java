import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.FencedMemberEpochException;
import org.apache.kafka.common.errors.StaleMemberEpochException;
import org.apache.kafka.common.errors.UnknownMemberIdException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** A member of a churning group on Java's KafkaConsumer; its orders and log as `work.py` says. */
public final class ChurnMember implements ConsumerRebalanceListener {
    private static final long COMMIT_EVERY_NS = 250_000_000L;
    private static final Duration POLL = Duration.ofMillis(200);
    private static final Map<String, String> ASSIGNORS = Map.of(
            "range", "org.apache.kafka.clients.consumer.RangeAssignor",
            "roundrobin", "org.apache.kafka.clients.consumer.RoundRobinAssignor",
            "cooperative-sticky", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");

    private static volatile boolean stopping;

    private final FileOutputStream log;
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final Map<TopicPartition, Long> pending = new HashMap<>();
    private int commits;
    private long dueNs;

    private ChurnMember(Map<String, String> orders) throws IOException {
        log = new FileOutputStream(orders.get("log"), true);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", orders.get("servers"));
        settings.put("group.id", orders.get("group"));
        settings.put("client.id", orders.get("name"));
        if (!orders.get("instance").isEmpty()) {
            settings.put("group.instance.id", orders.get("instance"));
        }
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("max.poll.interval.ms", orders.get("rebalance"));
        settings.put("max.poll.records", "50");
        settings.put("metadata.max.age.ms", "3000");
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        if (orders.get("protocol").equals("classic")) {
            settings.put("partition.assignment.strategy", ASSIGNORS.get(orders.get("strategy")));
            settings.put("session.timeout.ms", orders.get("session"));
            settings.put("heartbeat.interval.ms", orders.get("heartbeat"));
        } else {
            settings.put("group.protocol", "consumer");
        }
        consumer = new KafkaConsumer<>(settings);
    }

    public static void main(String[] args) throws IOException {
        Map<String, String> orders = new HashMap<>();
        for (String word : args) {
            int equals = word.indexOf('=');
            orders.put(word.substring(0, equals), word.substring(equals + 1));
        }
        Thread listener = new Thread(() -> {
            try {
                System.in.read();
            } catch (IOException gone) {
                // the driver is gone: stop as well
            }
            stopping = true;
        });
        listener.setDaemon(true);
        listener.start();
        new ChurnMember(orders).run(Arrays.asList(orders.get("topics").split(",")));
    }

    private void run(List<String> topics) {
        consumer.subscribe(topics, this);
        while (!stopping) {
            ConsumerRecords<byte[], byte[]> records;
            try {
                records = consumer.poll(POLL);
            } catch (UnknownMemberIdException | FencedMemberEpochException | StaleMemberEpochException fenced) {
                continue; // asked for a position before it heard that it is no member any more; it joins again by itself
            }
            for (TopicPartition partition : records.partitions()) {
                process(partition, records.records(partition));
            }
            if (!pending.isEmpty() && System.nanoTime() >= dueNs) {
                commit();
            }
        }
        commit();
        say("closing", "");
        consumer.close();
        say("closed", "");
    }

    private void process(TopicPartition partition, List<ConsumerRecord<byte[], byte[]>> records) {
        List<String> offsets = new ArrayList<>();
        List<String> values = new ArrayList<>();
        for (ConsumerRecord<byte[], byte[]> record : records) {
            offsets.add(Long.toString(record.offset()));
            values.add(new String(record.value(), StandardCharsets.UTF_8));
            pending.put(partition, record.offset() + 1);
        }
        say("records", ",\"partition\":\"" + name(partition) + "\",\"offsets\":" + offsets + ",\"values\":" + values);
    }

    private void commit() {
        if (pending.isEmpty()) {
            return;
        }
        int id = ++commits;
        dueNs = System.nanoTime() + COMMIT_EVERY_NS;
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        pending.forEach((partition, offset) -> offsets.put(partition, new OffsetAndMetadata(offset)));
        String told = pending.entrySet().stream()
                .map(entry -> "\"" + name(entry.getKey()) + "\":" + entry.getValue())
                .collect(Collectors.joining(","));
        say("committing", ",\"id\":" + id + ",\"offsets\":{" + told + "}");
        try {
            consumer.commitSync(offsets);
        } catch (RuntimeException refused) {
            String text = refused.getClass().getSimpleName() + ": " + refused.getMessage();
            String plain = text.replaceAll("[\"\\\\\\p{Cntrl}]", " ");
            say("refused", ",\"id\":" + id + ",\"error\":\"" + plain.substring(0, Math.min(200, plain.length())) + "\"");
            return;
        }
        say("committed", ",\"id\":" + id);
        pending.clear();
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        tell("assigned", partitions);
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        commit();
        pending.keySet().removeAll(partitions);
        tell("revoked", partitions);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        pending.keySet().removeAll(partitions);
        tell("lost", partitions);
    }

    private void tell(String event, Collection<TopicPartition> partitions) {
        String names = partitions.stream().map(part -> "\"" + name(part) + "\"").collect(Collectors.joining(","));
        say(event, ",\"partitions\":[" + names + "]");
    }

    /** Appends one line with one write; System.nanoTime is the machine's monotonic clock on Linux. */
    private synchronized void say(String event, String facts) {
        String line = "{\"t\":" + System.nanoTime() + ",\"e\":\"" + event + "\"" + facts + "}\n";
        try {
            log.write(line.getBytes(StandardCharsets.UTF_8));
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    private static String name(TopicPartition partition) {
        return partition.topic() + "/" + partition.partition();
    }
}
