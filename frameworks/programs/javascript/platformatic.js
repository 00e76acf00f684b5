// @platformatic/kafka: publishes each record on, then commits it. Arguments: servers, input, output, a folder.
// Node.js 20 lacks Promise.withResolvers, which the package calls.
'use strict'

Promise.withResolvers ??= () => {
  const parts = {}
  parts.promise = new Promise((resolve, reject) => Object.assign(parts, { resolve, reject }))
  return parts
}

const { Consumer, MessagesStreamFallbackModes, MessagesStreamModes, Producer } = require('@platformatic/kafka')

const [servers, source, target] = process.argv.slice(2)
const shared = { clientId: 'frameworks-platformatic', bootstrapBrokers: [servers], retries: 30, retryDelay: 500 }
const producer = new Producer(shared)
const consumer = new Consumer({ ...shared, groupId: 'frameworks-platformatic', sessionTimeout: 6000, heartbeatInterval: 1500 })

async function main () {
  const stream = await consumer.consume({
    topics: [source],
    autocommit: false,
    mode: MessagesStreamModes.COMMITTED,
    fallbackMode: MessagesStreamFallbackModes.EARLIEST
  })
  for await (const message of stream) {
    await producer.send({ messages: [{ topic: target, key: message.key, value: message.value }], acks: -1 })
    await message.commit()
  }
}

process.on('SIGTERM', () => process.exit(0))
main().catch((error) => { console.error(error); process.exit(1) })
