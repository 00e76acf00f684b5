import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import reactor.core.publisher.Mono;
import reactor.kafka.receiver.KafkaReceiver;
import reactor.kafka.receiver.ReceiverOptions;
import reactor.kafka.sender.KafkaSender;
import reactor.kafka.sender.SenderOptions;
import reactor.kafka.sender.SenderRecord;

/**
 * Publishes each record on, in transactions of Reactor Kafka that also have the offsets.
 *
 * A transaction that fails is aborted, and ends the program with code 1.
 *
 * Arguments: servers, input topic, output topic, transactional id.
 */
public final class ReactorForward {
    public static void main(String[] args) {
        Map<String, Object> consumer = new HashMap<>();
        consumer.put("bootstrap.servers", args[0]);
        consumer.put("group.id", "frameworks-reactor");
        consumer.put("auto.offset.reset", "earliest");
        consumer.put("isolation.level", "read_committed");
        consumer.put("max.poll.records", 50);
        consumer.put("session.timeout.ms", 6000);
        consumer.put("heartbeat.interval.ms", 1500);
        Map<String, Object> producer = new HashMap<>();
        producer.put("bootstrap.servers", args[0]);
        producer.put("transactional.id", args[3]);
        producer.put("transaction.timeout.ms", 10_000);
        producer.put("max.block.ms", 10_000);
        var sender = KafkaSender.create(SenderOptions.<String, String>create(producer)
            .withKeySerializer(new StringSerializer())
            .withValueSerializer(new StringSerializer()));
        var receiver = KafkaReceiver.create(ReceiverOptions.<String, String>create(consumer)
            .withKeyDeserializer(new StringDeserializer())
            .withValueDeserializer(new StringDeserializer())
            .maxDelayRebalance(Duration.ofSeconds(2))
            .subscription(List.of(args[1])));
        var transactions = sender.transactionManager();
        var running = receiver.receiveExactlyOnce(transactions)
            .concatMap(batch -> sender
                .send(batch.map(record -> SenderRecord.create(
                    args[2], null, null, record.key(), record.value(), record.offset())))
                .then(transactions.<Void>commit())
                .onErrorResume(error -> transactions.<Void>abort().then(Mono.error(error))))
            .subscribe(
                nothing -> {},
                error -> {
                    error.printStackTrace();
                    Runtime.getRuntime().halt(1);
                });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            running.dispose();
            sender.close();
        }));
    }
}
