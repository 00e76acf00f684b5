import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.listener.ConcurrentMessageListenerContainer;
import org.springframework.kafka.listener.ContainerProperties;
import org.springframework.kafka.listener.MessageListener;
import org.springframework.kafka.transaction.KafkaTransactionManager;

/**
 * Publishes each record on, in a transaction of Spring Kafka's listener container that also has the offset.
 *
 * Arguments: servers, input topic, output topic, a prefix for transactional ids, group protocol.
 */
public final class SpringForward {
    public static void main(String[] args) throws InterruptedException {
        Map<String, Object> consumer = new HashMap<>();
        consumer.put("bootstrap.servers", args[0]);
        consumer.put("group.id", "frameworks-spring");
        consumer.put("group.protocol", args[4]);
        consumer.put("auto.offset.reset", "earliest");
        consumer.put("isolation.level", "read_committed");
        consumer.put("max.poll.records", 50);
        if (args[4].equals("classic")) {
            consumer.put("session.timeout.ms", 6000);
            consumer.put("heartbeat.interval.ms", 1500);
        }
        Map<String, Object> producer = new HashMap<>();
        producer.put("bootstrap.servers", args[0]);
        producer.put("transaction.timeout.ms", 10_000);
        var producers =
            new DefaultKafkaProducerFactory<String, String>(producer, new StringSerializer(), new StringSerializer());
        producers.setTransactionIdPrefix(args[3]);
        var template = new KafkaTemplate<String, String>(producers);
        var properties = new ContainerProperties(args[1]);
        properties.setKafkaAwareTransactionManager(new KafkaTransactionManager<>(producers));
        properties.setMessageListener(
            (MessageListener<String, String>) record -> template.send(args[2], record.key(), record.value()));
        var consumers = new DefaultKafkaConsumerFactory<String, String>(
            consumer, new StringDeserializer(), new StringDeserializer());
        var container = new ConcurrentMessageListenerContainer<String, String>(consumers, properties);
        container.setConcurrency(2);
        container.start();
        Runtime.getRuntime().addShutdownHook(new Thread(container::stop));
        Thread.currentThread().join();
    }
}
