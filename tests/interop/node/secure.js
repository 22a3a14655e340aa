// kafkajs, unmodified, over TLS and SCRAM-SHA-512, as somebody who may write and read one topic: writes it, reads it back
// as a group, and is refused another topic. ADDRESS TOPIC FORBIDDEN GROUP USER PASSWORD CA-FILE. Prints "ok", or says what
// went wrong and exits with 1.
const fs = require('fs')
const { Kafka, logLevel } = require('kafkajs')

const [address, topic, forbidden, groupId, username, password, authority] = process.argv.slice(2)
const count = 100

const run = async () => {
  const kafka = new Kafka({
    clientId: 'interop',
    brokers: [address],
    logLevel: logLevel.NOTHING,
    retry: { retries: 5 },
    ssl: { ca: [fs.readFileSync(authority, 'utf-8')] },
    sasl: { mechanism: 'scram-sha-512', username, password },
  })
  const producer = kafka.producer()
  await producer.connect()
  await producer.send({ topic, messages: Array.from({ length: count }, (_, i) => ({ value: `value ${i}` })) })
  const refused = await producer.send({ topic: forbidden, messages: [{ value: 'no' }] }).catch(error => error)
  if (!/authorization failed/i.test(String(refused))) throw new Error(`a forbidden topic: ${refused}`)
  await producer.disconnect()
  const seen = new Set()
  const consumer = kafka.consumer({ groupId })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  await consumer.run({ eachMessage: async ({ message }) => { seen.add(message.value.toString()) } })
  const deadline = Date.now() + 60000
  while (seen.size < count) {
    if (Date.now() > deadline) throw new Error(`read ${seen.size}`)
    await new Promise(resolve => setTimeout(resolve, 50))
  }
  await consumer.disconnect()
  console.log('ok')
}

run().catch(error => {
  console.error(error)
  process.exit(1)
})
