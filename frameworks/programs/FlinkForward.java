import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.Optional;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.OffsetResetStrategy;

/**
 * Counts the records of each key in checkpointed state, and writes NUMBER:COUNT of each record, exactly once.
 *
 * A job on a mini cluster in this process. It begins from the newest complete checkpoint in its folder.
 *
 * Arguments: servers, input topic, output topic, folder of the checkpoints, a prefix for transactional ids.
 */
public final class FlinkForward {
    public static void main(String[] args) throws Exception {
        Path checkpoints = Files.createDirectories(Path.of(args[3]));
        Configuration settings = new Configuration();
        settings.setString("execution.checkpointing.interval", "500 ms");
        settings.setString("execution.checkpointing.mode", "EXACTLY_ONCE");
        settings.setString("execution.checkpointing.storage", "filesystem");
        settings.setString("execution.checkpointing.dir", checkpoints.toUri().toString());
        settings.setString("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION");
        settings.setString("restart-strategy.type", "fixed-delay");
        settings.setString("restart-strategy.fixed-delay.attempts", "1000");
        settings.setString("restart-strategy.fixed-delay.delay", "500 ms");
        settings.setString("taskmanager.memory.network.max", "32 mb");
        settings.setString("taskmanager.memory.network.min", "32 mb");
        settings.setString("taskmanager.memory.managed.size", "16 mb");
        newestCheckpoint(checkpoints)
            .ifPresent(path -> settings.setString("execution.state-recovery.path", path.toUri().toString()));
        var environment = StreamExecutionEnvironment.getExecutionEnvironment(settings);
        environment.setParallelism(2);
        KafkaSource<Tuple2<String, String>> source = KafkaSource.<Tuple2<String, String>>builder()
            .setBootstrapServers(args[0])
            .setGroupId("frameworks-flink")
            .setTopics(args[1])
            .setStartingOffsets(OffsetsInitializer.committedOffsets(OffsetResetStrategy.EARLIEST))
            .setDeserializer(new KeyAndValue())
            .build();
        KafkaSink<Tuple2<String, String>> sink = KafkaSink.<Tuple2<String, String>>builder()
            .setBootstrapServers(args[0])
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix(args[4])
            .setProperty("transaction.timeout.ms", "60000")
            .setRecordSerializer(KafkaRecordSerializationSchema.<Tuple2<String, String>>builder()
                .setTopic(args[2])
                .setKeySerializationSchema(new Field(0))
                .setValueSerializationSchema(new Field(1))
                .build())
            .build();
        environment.fromSource(source, WatermarkStrategy.noWatermarks(), "numbers").uid("numbers")
            .keyBy(record -> record.f0)
            .map(new Count()).uid("count")
            .sinkTo(sink).uid("sink");
        environment.execute("frameworks-flink");
    }

    /** Returns the newest checkpoint that is complete: its metadata file is written last. */
    private static Optional<Path> newestCheckpoint(Path folder) throws Exception {
        try (var files = Files.walk(folder, 3)) {
            return files.filter(file -> file.endsWith("_metadata") && file.toFile().length() > 0)
                .max(Comparator.comparingLong((Path file) -> file.toFile().lastModified()))
                .map(Path::getParent);
        }
    }

    private static final class KeyAndValue implements KafkaRecordDeserializationSchema<Tuple2<String, String>> {
        @Override
        public void deserialize(ConsumerRecord<byte[], byte[]> record, Collector<Tuple2<String, String>> out) {
            out.collect(Tuple2.of(new String(record.key()), new String(record.value())));
        }

        @Override
        public org.apache.flink.api.common.typeinfo.TypeInformation<Tuple2<String, String>> getProducedType() {
            return Types.TUPLE(Types.STRING, Types.STRING);
        }
    }

    private static final class Field
        implements org.apache.flink.api.common.serialization.SerializationSchema<Tuple2<String, String>> {
        private final int position;

        Field(int position) {
            this.position = position;
        }

        @Override
        public byte[] serialize(Tuple2<String, String> record) {
            return record.<String>getField(position).getBytes();
        }
    }

    private static final class Count extends RichMapFunction<Tuple2<String, String>, Tuple2<String, String>> {
        private transient ValueState<Integer> counts;

        @Override
        public void open(OpenContext context) {
            counts = getRuntimeContext().getState(new ValueStateDescriptor<>("counts", Types.INT));
        }

        @Override
        public Tuple2<String, String> map(Tuple2<String, String> record) throws Exception {
            int count = (counts.value() == null ? 0 : counts.value()) + 1;
            counts.update(count);
            return Tuple2.of(record.f0, record.f1 + ":" + count);
        }
    }
}
