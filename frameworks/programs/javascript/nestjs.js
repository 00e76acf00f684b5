// NestJS microservice: an event handler publishes each record on. Arguments: servers, input, output, a folder.
'use strict'

require('reflect-metadata')
const { Controller, Module } = require('@nestjs/common')
const { NestFactory } = require('@nestjs/core')
const { ClientKafka, Ctx, EventPattern, KafkaContext, KafkaRetriableException, Payload, Transport } =
  require('@nestjs/microservices')
const { lastValueFrom } = require('rxjs')

const [servers, source, target] = process.argv.slice(2)
const client = { clientId: 'frameworks-nestjs', brokers: [servers] }
const publisher = new ClientKafka({ client, producerOnlyMode: true })

class Numbers {
  async forward (value, context) {
    const key = context.getMessage().key
    try {
      await lastValueFrom(publisher.emit(target, { key, value: String(value) }), { defaultValue: null })
    } catch (error) {
      throw new KafkaRetriableException(String(error))
    }
  }
}
Controller()(Numbers)
Payload()(Numbers.prototype, 'forward', 0)
Ctx()(Numbers.prototype, 'forward', 1)
Reflect.defineMetadata('design:paramtypes', [String, KafkaContext], Numbers.prototype, 'forward')
EventPattern(source)(Numbers.prototype, 'forward', Object.getOwnPropertyDescriptor(Numbers.prototype, 'forward'))

class Application {}
Module({ controllers: [Numbers] })(Application)

async function main () {
  await publisher.connect()
  const options = {
    client,
    consumer: { groupId: 'frameworks-nestjs', sessionTimeout: 6000, heartbeatInterval: 1500 },
    subscribe: { fromBeginning: true }
  }
  const service = await NestFactory.createMicroservice(Application, {
    transport: Transport.KAFKA, options, logger: ['error', 'warn']
  })
  await service.listen()
}

process.on('SIGTERM', () => process.exit(0))
main().catch((error) => { console.error(error); process.exit(1) })
