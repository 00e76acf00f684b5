// KafkaJS at a listener with TLS and logins; its orders and answers are those of ../secured_clients.py.
const fs = require("fs");
const readline = require("readline");
const { Kafka, logLevel } = require("kafkajs");

const given = JSON.parse(process.argv[2]);
const read = (path) => (path ? fs.readFileSync(path) : undefined);

function sasl() {
  const mechanism = (given.mechanism || "").toLowerCase();
  if (!mechanism) return undefined;
  if (mechanism === "oauthbearer") return { mechanism, oauthBearerProvider: async () => ({ value: given.token }) };
  return { mechanism, username: given.user, password: given.password };
}

const kafka = new Kafka({
  clientId: "kafkajs",
  brokers: [given.servers],
  ssl: given.tls ? { ca: read(given.ca), cert: read(given.cert), key: read(given.key) } : false,
  sasl: sasl(),
  logLevel: logLevel.NOTHING,
  connectionTimeout: 10000,
  reauthenticationThreshold: 500,
  retry: { retries: 1, initialRetryTime: 100 },
});

async function withClient(client, use) {
  await client.connect();
  try {
    return await use(client);
  } finally {
    await client.disconnect();
  }
}

const produce = (order, count) => withClient(kafka.producer({ maxInFlightRequests: 1 }), (producer) =>
  producer.send({ topic: order.topic, messages: Array(count).fill({ value: Buffer.alloc(order.size || 1) }) }));

async function consume(order, count) {
  const consumer = kafka.consumer({ groupId: order.group, sessionTimeout: 10000, maxWaitTimeInMs: 100 });
  return withClient(consumer, async () => {
    await consumer.subscribe({ topics: [order.topic], fromBeginning: true });
    await new Promise((done, failed) => {
      let seen = 0;
      consumer.on(consumer.events.CRASH, ({ payload }) => failed(payload.error));
      consumer.run({
        autoCommit: false,
        eachMessage: async ({ topic, partition, message }) => {
          seen += 1;
          await consumer.commitOffsets([{ topic, partition, offset: (BigInt(message.offset) + 1n).toString() }]);
          if (seen >= count) done();
        },
      }).catch(failed);
    });
  });
}

async function load(order) {
  const end = Date.now() + order.seconds * 1000;
  let count = 0;
  await withClient(kafka.producer({ maxInFlightRequests: 1 }), async (producer) => {
    for (; Date.now() < end; count += 1) {
      await producer.send({ topic: order.topic, messages: [{ value: Buffer.alloc(order.size || 1) }] });
    }
  });
  return count;
}

const ORDERS = {
  connect: () => withClient(kafka.admin(), (admin) => admin.describeCluster()),
  produce: (order) => produce(order, order.count || 1),
  group: (order) => consume(order, order.count || 1),
  create: (order) => withClient(kafka.admin(), (admin) =>
    admin.createTopics({ topics: [{ topic: order.topic, numPartitions: 1, replicationFactor: 1 }], waitForLeaders: false })),
  delete: (order) => withClient(kafka.admin(), (admin) => admin.deleteTopics({ topics: [order.topic] })),
  load,
};

function named(error) {
  for (let cause = error; cause; cause = cause.cause || (cause.errors || [])[0]) {
    if (cause.type && cause.type !== "UNKNOWN") return cause.type;
    if (!cause.cause && !(cause.errors || []).length) return String(cause.message);
  }
  return String(error);
}

(async () => {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const order = JSON.parse(line);
    let result = "ok";
    let count = order.count || 1;
    try {
      const done = await ORDERS[order.do](order);
      if (order.do === "load") count = done;
    } catch (error) {
      result = named(error);
    }
    process.stdout.write(`${JSON.stringify({ result, count })}\n`);
  }
  process.exit(0);
})();
