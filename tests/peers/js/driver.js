// KafkaJS as producer and as group member. Usage: produce|consume SERVERS TOPIC COUNT|GROUP
// Talks as ../drivers/speak.py says.
const { Kafka, logLevel } = require("kafkajs");

const [mode, servers, topic, last] = process.argv.slice(2);
const kafka = new Kafka({ clientId: "kafkajs-driver", brokers: servers.split(","), logLevel: logLevel.ERROR });
const say = (event, facts = {}) => process.stdout.write(JSON.stringify({ event, ...facts }) + "\n");

async function produce(count) {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  const messages = Array.from({ length: count }, (_, n) => ({ key: `key-${n}`, value: `value-${n}` }));
  await producer.send({ topic, messages, acks: -1 });
  await producer.disconnect();
  say("produced", { count });
}

async function consume(groupId) {
  const consumer = kafka.consumer({
    groupId, sessionTimeout: 10000, heartbeatInterval: 500, rebalanceTimeout: 10000, maxWaitTimeInMs: 100,
  });
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) =>
    say("assigned", { partitions: (payload.memberAssignment[topic] || []).slice().sort((a, b) => a - b) }));
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  await consumer.run({
    autoCommit: false,
    eachBatchAutoResolve: false,
    eachBatch: async ({ batch, resolveOffset, heartbeat }) => {
      for (const message of batch.messages) {
        say("record", { partition: batch.partition, offset: Number(message.offset), value: message.value.toString() });
        resolveOffset(message.offset);
      }
      await consumer.commitOffsets([
        { topic, partition: batch.partition, offset: (BigInt(batch.lastOffset()) + 1n).toString() },
      ]);
      say("committed");
      await heartbeat();
    },
  });
  process.stdin.resume();
  await new Promise((resolve) => { process.stdin.once("data", resolve); process.stdin.once("end", resolve); });
  await consumer.disconnect();
  say("closed");
  process.exit(0);
}

(mode === "produce" ? produce(Number(last)) : consume(last)).catch((error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
