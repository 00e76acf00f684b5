import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Java's clients at a listener with TLS and logins; orders and answers are those of `secured_clients.py`. */
public final class SecuredClient {
    private static final long END_MS = 60_000;
    private static final Pattern FIELD = Pattern.compile("\"(\\w+)\": (?:\"((?:[^\"\\\\]|\\\\.)*)\"|([-\\w.]+))");

    private static Properties settings = new Properties();

    private static Map<String, String> read(String line) {
        Map<String, String> found = new HashMap<>();
        Matcher matcher = FIELD.matcher(line);
        while (matcher.find()) {
            found.put(matcher.group(1), matcher.group(2) != null ? matcher.group(2) : matcher.group(3));
        }
        return found;
    }

    private static void configure(Map<String, String> given) {
        boolean tls = given.get("tls").equals("true");
        String mechanism = given.getOrDefault("mechanism", "");
        settings.put("bootstrap.servers", given.get("servers"));
        settings.put("security.protocol", mechanism.isEmpty() ? (tls ? "SSL" : "PLAINTEXT") : tls ? "SASL_SSL" : "SASL_PLAINTEXT");
        if (tls) {
            settings.put("ssl.truststore.type", "PEM");
            settings.put("ssl.truststore.location", given.get("ca"));
            if (!given.getOrDefault("pem", "").isEmpty()) {
                settings.put("ssl.keystore.type", "PEM");
                settings.put("ssl.keystore.location", given.get("pem"));
            }
        }
        if (!mechanism.isEmpty()) {
            String module = mechanism.equals("PLAIN") ? "plain.PlainLoginModule" : "scram.ScramLoginModule";
            settings.put("sasl.mechanism", mechanism);
            settings.put("sasl.jaas.config", "org.apache.kafka.common.security." + module + " required username=\""
                + given.get("user") + "\" password=\"" + given.get("password") + "\";");
        }
        settings.put("request.timeout.ms", "15000");
        settings.put("default.api.timeout.ms", "20000");
        settings.put("delivery.timeout.ms", "20000");
        settings.put("max.block.ms", "20000");
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("key.serializer", ByteArraySerializer.class.getName());
        settings.put("value.serializer", ByteArraySerializer.class.getName());
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
    }

    private static void consume(String topic, String group, int count) {
        Properties chosen = new Properties();
        chosen.putAll(settings);
        if (group != null) {
            chosen.put("group.id", group);
        }
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(chosen)) {
            if (group == null) {
                consumer.assign(List.of(new TopicPartition(topic, 0)));
                consumer.seekToBeginning(consumer.assignment());
            } else {
                consumer.subscribe(List.of(topic));
            }
            long end = System.currentTimeMillis() + END_MS;
            int seen = 0;
            while (seen < count && System.currentTimeMillis() < end) {
                seen += consumer.poll(Duration.ofMillis(500)).count();
            }
            if (seen < count) {
                throw new IllegalStateException("only " + seen + " records came");
            }
            if (group != null) {
                consumer.commitSync();
            }
        }
    }

    private static int produce(String topic, int count, int size, double seconds) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            long end = System.currentTimeMillis() + (long) (seconds * 1000);
            int sent = 0;
            for (; seconds > 0 ? System.currentTimeMillis() < end : sent < count; sent++) {
                producer.send(new ProducerRecord<>(topic, new byte[size])).get();
            }
            return sent;
        }
    }

    private static int carryOut(Map<String, String> order) throws Exception {
        String topic = order.get("topic");
        int count = Integer.parseInt(order.getOrDefault("count", "1"));
        int size = Integer.parseInt(order.getOrDefault("size", "1"));
        switch (order.get("do")) {
            case "produce":
                return produce(topic, count, size, 0);
            case "load":
                return produce(topic, 0, size, Double.parseDouble(order.get("seconds")));
            case "fetch":
                consume(topic, null, count);
                return count;
            case "group":
                consume(topic, order.get("group"), count);
                return count;
            default:
        }
        try (Admin admin = Admin.create(settings)) {
            switch (order.get("do")) {
                case "connect" -> admin.describeCluster().nodes().get();
                case "create" -> admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get();
                case "delete" -> admin.deleteTopics(List.of(topic)).all().get();
                default -> throw new IllegalArgumentException(order.get("do"));
            }
        }
        return count;
    }

    private static String named(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof ApiException && Errors.forException(cause) != Errors.UNKNOWN_SERVER_ERROR) {
                return Errors.forException(cause).name();
            }
        }
        return error.toString();
    }

    public static void main(String[] args) throws Exception {
        configure(read(args[0]));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String result = "ok";
            int count = 0;
            try {
                count = carryOut(read(line));
            } catch (Exception error) {
                result = named(error);
            }
            System.out.println("{\"result\": \"" + result.replaceAll("[\"\\\\\\p{Cntrl}]", " ") + "\", \"count\": " + count + "}");
        }
    }
}
