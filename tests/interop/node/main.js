// kafkajs, unmodified, at work: topics, records with keys and headers, gzip and none (its own codecs), offsets by
// time, configs; two members of a group, its offsets; a transaction that commits offsets and one that is aborted.
// Prints "ok", or says what went wrong and exits with 1.
const { CompressionTypes, ConfigResourceTypes, Kafka, logLevel } = require('kafkajs')

const [address, topic] = process.argv.slice(2)

const check = (condition, what) => {
  if (!condition) throw new Error(what)
}

const waitFor = async (condition, what) => {
  const deadline = Date.now() + 60000
  while (!condition()) {
    if (Date.now() > deadline) throw new Error(`timed out: ${what}`)
    await new Promise(resolve => setTimeout(resolve, 50))
  }
}

// Two members share the topic; when one leaves, the other goes on where it was.
const group = async (kafka, admin, producer) => {
  const groupId = `${topic}-group`
  const seen = []
  const members = []
  for (const name of ['one', 'two']) {
    const consumer = kafka.consumer({ groupId, sessionTimeout: 10000, heartbeatInterval: 1000 })
    await consumer.connect()
    await consumer.subscribe({ topic, fromBeginning: true })
    await consumer.run({ eachMessage: async ({ message }) => { seen.push(message.value.toString()) } })
    members.push(consumer)
  }
  await waitFor(() => seen.length >= 200, 'a group reads everything')
  const described = await admin.describeGroups([groupId])
  check(described.groups[0].members.length >= 1, JSON.stringify(described))
  await members[0].disconnect()
  await producer.send({ topic, messages: Array.from({ length: 50 }, (_, i) => ({ value: `late ${i}` })) })
  await waitFor(() => new Set(seen.filter(v => v.startsWith('late'))).size === 50, 'the member that is left goes on')
  await members[1].disconnect()
  const committed = await admin.fetchOffsets({ groupId, topics: [topic] })
  const sum = committed[0].partitions.reduce((total, p) => total + Number(p.offset), 0)
  check(sum === 250, JSON.stringify(committed))
  await admin.resetOffsets({ groupId, topic, earliest: true })
  await admin.deleteGroups([groupId])
}

const transactions = async (kafka, admin) => {
  const groupId = `${topic}-copied`
  const producer = kafka.producer({ transactionalId: `${topic}-tx`, maxInFlightRequests: 1, idempotent: true })
  await producer.connect()
  const kept = await producer.transaction()
  await kept.send({ topic, messages: [{ value: 'kept', partition: 0 }] })
  await kept.sendOffsets({ consumerGroupId: groupId, topics: [{ topic, partitions: [{ partition: 0, offset: '7' }] }] })
  await kept.commit()
  const dropped = await producer.transaction()
  await dropped.send({ topic, messages: [{ value: 'dropped', partition: 0 }] })
  await dropped.abort()
  await producer.disconnect()
  const committed = await admin.fetchOffsets({ groupId, topics: [topic] })
  check(committed[0].partitions.find(p => p.partition === 0).offset === '7', JSON.stringify(committed))
  const seen = []
  const consumer = kafka.consumer({ groupId: `${topic}-reader`, readUncommitted: false })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  await consumer.run({ eachMessage: async ({ message }) => { seen.push(message.value.toString()) } })
  await waitFor(() => seen.includes('kept'), 'what was committed is read')
  check(!seen.includes('dropped'), 'what was aborted is not')
  await consumer.disconnect()
}

const run = async () => {
  const kafka = new Kafka({ clientId: 'interop', brokers: [address], logLevel: logLevel.ERROR })
  const admin = kafka.admin()
  await admin.connect()
  const made = await admin.createTopics({ topics: [{ topic, numPartitions: 2, replicationFactor: 1 }] })
  check(made, 'the topic was made')
  for (const idempotent of [false, true]) {
    const producer = kafka.producer({ idempotent, maxInFlightRequests: 1 })
    await producer.connect()
    for (const compression of [CompressionTypes.None, CompressionTypes.GZIP]) {
      const messages = Array.from({ length: 50 }, (_, i) => ({
        key: `key ${i}`, value: `value ${i}`, headers: { n: `${i}` }, partition: i % 2,
      }))
      await producer.send({ topic, compression, messages, acks: -1 })
    }
    await producer.disconnect()
  }
  const offsets = await admin.fetchTopicOffsets(topic)
  check(offsets.every(o => o.high === '100' && o.low === '0'), JSON.stringify(offsets))
  const producer = kafka.producer()
  await producer.connect()
  await group(kafka, admin, producer)
  await producer.disconnect()
  await transactions(kafka, admin)
  const byTime = await admin.fetchTopicOffsetsByTimestamp(topic, 0)
  check(byTime.every(o => o.offset === '0'), JSON.stringify(byTime))
  await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] })
  const resources = [{ type: ConfigResourceTypes.TOPIC, name: topic }]
  const described = await admin.describeConfigs({ includeSynonyms: true, resources })
  check(described.resources[0].configEntries.length > 20, 'configs')
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '10' }] })
  const left = await admin.fetchTopicOffsets(topic)
  check(left.find(o => o.partition === 0).low === '10', JSON.stringify(left))
  const cluster = await admin.describeCluster()
  check(cluster.brokers.length === 1, JSON.stringify(cluster))
  await admin.deleteTopics({ topics: [topic] })
  await admin.disconnect()
  console.log('ok')
}

run().catch(error => {
  console.error(error)
  process.exit(1)
})
