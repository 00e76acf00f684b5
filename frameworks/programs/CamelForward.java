import org.apache.camel.builder.RouteBuilder;
import org.apache.camel.component.kafka.KafkaConstants;
import org.apache.camel.component.kafka.consumer.KafkaManualCommit;
import org.apache.camel.main.Main;

/**
 * Sends each record on by a Camel route of two consumers, then commits its offset.
 *
 * Arguments: servers, input topic, output topic.
 */
public final class CamelForward {
    private static final String CONSUMER = "&groupId=frameworks-camel&autoOffsetReset=earliest&consumersCount=2"
        + "&autoCommitEnable=false&allowManualCommit=true&breakOnFirstError=true&maxPollRecords=50"
        + "&sessionTimeoutMs=6000&heartbeatIntervalMs=1500";

    public static void main(String[] args) throws Exception {
        Main main = new Main();
        main.configure().addRoutesBuilder(new RouteBuilder() {
            @Override
            public void configure() {
                from("kafka:" + args[1] + "?brokers=" + args[0] + CONSUMER)
                    .to("kafka:" + args[2] + "?brokers=" + args[0])
                    .process(exchange -> {
                        var message = exchange.getMessage();
                        if (message.getHeader(KafkaConstants.LAST_RECORD_BEFORE_COMMIT, false, Boolean.class)) {
                            message.getHeader(KafkaConstants.MANUAL_COMMIT, KafkaManualCommit.class).commit();
                        }
                    });
            }
        });
        main.run();
    }
}
