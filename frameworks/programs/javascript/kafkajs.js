// KafkaJS: publishes each batch on, then commits its offsets. Arguments: servers, input, output, a folder.
'use strict'

const { Kafka, logLevel } = require('kafkajs')

const [servers, source, target] = process.argv.slice(2)
const kafka = new Kafka({ clientId: 'frameworks-kafkajs', brokers: [servers], logLevel: logLevel.ERROR })
const consumer = kafka.consumer({ groupId: 'frameworks-kafkajs', sessionTimeout: 6000, heartbeatInterval: 1500 })
const producer = kafka.producer()

async function main () {
  await producer.connect()
  await consumer.connect()
  await consumer.subscribe({ topic: source, fromBeginning: true })
  await consumer.run({
    eachBatch: async ({ batch }) => {
      const messages = batch.messages.map(({ key, value }) => ({ key, value }))
      await producer.send({ topic: target, messages })
    }
  })
}

process.on('SIGTERM', () => process.exit(0))
consumer.on(consumer.events.CRASH, ({ payload }) => { if (!payload.restart) process.exit(1) })
main().catch((error) => { console.error(error); process.exit(1) })
