import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.CommitMode;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import io.confluent.parallelconsumer.internal.DrainingCloseable.DrainingMode;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Publishes each record on, many keys at a time, in transactions of Confluent's parallel consumer with the offsets.
 *
 * The processor does not recover from an error of its threads. Then the program ends with code 1.
 *
 * Arguments: servers, input topic, output topic, transactional id.
 */
public final class ParallelForward {
    public static void main(String[] args) throws InterruptedException {
        Map<String, Object> consumer = new HashMap<>();
        consumer.put("bootstrap.servers", args[0]);
        consumer.put("group.id", "frameworks-parallel");
        consumer.put("auto.offset.reset", "earliest");
        consumer.put("enable.auto.commit", false);
        consumer.put("isolation.level", "read_committed");
        consumer.put("session.timeout.ms", 6000);
        consumer.put("heartbeat.interval.ms", 1500);
        Map<String, Object> producer = new HashMap<>();
        producer.put("bootstrap.servers", args[0]);
        producer.put("transactional.id", args[3]);
        producer.put("transaction.timeout.ms", 10_000);
        ParallelConsumerOptions<String, String> options = ParallelConsumerOptions.<String, String>builder()
            .consumer(new KafkaConsumer<>(consumer, new StringDeserializer(), new StringDeserializer()))
            .producer(new KafkaProducer<>(producer, new StringSerializer(), new StringSerializer()))
            .ordering(ProcessingOrder.KEY)
            .commitMode(CommitMode.PERIODIC_TRANSACTIONAL_PRODUCER)
            .commitInterval(Duration.ofMillis(200))
            .maxConcurrency(8)
            .build();
        ParallelStreamProcessor<String, String> processor = ParallelStreamProcessor.createEosStreamProcessor(options);
        processor.subscribe(List.of(args[1]));
        processor.pollAndProduce(context -> {
            var record = context.getSingleConsumerRecord();
            return new ProducerRecord<>(args[2], record.key(), record.value());
        });
        Runtime.getRuntime().addShutdownHook(
            new Thread(() -> processor.close(Duration.ofSeconds(20), DrainingMode.DONT_DRAIN)));
        while (!processor.isClosedOrFailed()) {
            Thread.sleep(200);
        }
        Runtime.getRuntime().halt(1);
    }
}
