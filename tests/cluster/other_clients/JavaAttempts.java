import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeoutException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Attempts of Java's clients; its lines are those of `attempts.py`. */
public final class JavaAttempts {
    private static final Duration END = Duration.ofSeconds(90);

    private interface Attempt {
        void make() throws Exception;
    }

    private static String address;
    private static String topic;

    private static Properties settings(String... more) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", address);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("key.serializer", ByteArraySerializer.class.getName());
        settings.put("value.serializer", ByteArraySerializer.class.getName());
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        for (int index = 0; index < more.length; index += 2) {
            settings.put(more[index], more[index + 1]);
        }
        return settings;
    }

    private static void produce(String... more) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings(more))) {
            producer.send(new ProducerRecord<>(topic, new byte[1])).get();
        }
    }

    private static void transaction() {
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings("transactional.id", "copier"))) {
            producer.initTransactions();
        }
    }

    private static void consume(String protocol) throws Exception {
        Properties chosen = settings("group.id", "payments", "group.protocol", protocol);
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(chosen)) {
            consumer.subscribe(List.of(topic));
            poll(consumer);
        }
    }

    private static void consumeAssigned() throws Exception {
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings())) {
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            poll(consumer);
        }
    }

    private static void poll(KafkaConsumer<byte[], byte[]> consumer) throws Exception {
        ConsumerRecords<byte[], byte[]> records = consumer.poll(END);
        if (records.isEmpty()) {
            throw new TimeoutException("no end within 90 s");
        }
    }

    private static void commit() {
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings("group.id", "payments"))) {
            consumer.commitSync(Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(1)));
        }
    }

    private interface Ask {
        Object of(Admin admin) throws Exception;
    }

    private static Attempt admin(Ask ask) {
        return () -> {
            try (Admin admin = Admin.create(settings())) {
                Object answer = ask.of(admin);
                if (answer != null) {
                    throw new NoSuchElementException(answer.toString());
                }
            }
        };
    }

    public static void main(String[] args) {
        address = args[0];
        topic = args[1];
        Map<String, Attempt> attempts = new LinkedHashMap<>();
        attempts.put("produce", () -> produce("enable.idempotence", "false"));
        attempts.put("produce_idempotent", () -> produce());
        attempts.put("transaction", JavaAttempts::transaction);
        attempts.put("consume", () -> consume("classic"));
        attempts.put("consume_kip_848", () -> consume("consumer"));
        attempts.put("consume_assigned", JavaAttempts::consumeAssigned);
        attempts.put("commit", JavaAttempts::commit);
        attempts.put("create_topic", admin(admin -> admin.createTopics(List.of(new NewTopic("new", 1, (short) 1))).all().get()));
        attempts.put("list_topics", admin(admin -> admin.listTopics().names().get()));
        attempts.put("describe_cluster", admin(admin -> admin.describeCluster().clusterId().get()));
        attempts.put("list_groups", admin(admin -> admin.listGroups().all().get()));
        attempts.put("describe_group", admin(admin -> admin.describeConsumerGroups(List.of("payments")).all().get()));
        for (Map.Entry<String, Attempt> entry : attempts.entrySet()) {
            if (args.length > 2 && !List.of(args).subList(2, args.length).contains(entry.getKey())) {
                continue;
            }
            long began = System.nanoTime();
            String error = "none";
            String text = "";
            try {
                entry.getValue().make();
            } catch (Exception failure) {
                Throwable cause = failure instanceof ExecutionException ? failure.getCause() : failure;
                error = cause.getClass().getSimpleName();
                text = String.valueOf(cause.getMessage());
            }
            double seconds = (System.nanoTime() - began) / 100_000_000 / 10.0;
            System.out.printf("{\"attempt\": \"%s\", \"seconds\": %s, \"error\": \"%s\", \"text\": \"%s\"}%n",
                    entry.getKey(), seconds, error, text.replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", " "));
            System.out.flush();
        }
    }
}
