// kafkajs, unmodified, at work: topics, records with keys and headers, gzip and none (its own codecs), offsets by
// time, configs. Its consumer always joins a group, so reading is left to the clients that can do without.
// Prints "ok", or says what went wrong and exits with 1.
const { CompressionTypes, ConfigResourceTypes, Kafka, logLevel } = require('kafkajs')

const [address, topic] = process.argv.slice(2)

const check = (condition, what) => {
  if (!condition) throw new Error(what)
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
