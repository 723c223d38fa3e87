// A client in Node: node node_client.mjs MODULE produce|consume HOST:PORT TOPIC [COUNT]
//
// It prints a line of JSON for each record that it has read, and for each error of a consumer, after which it
// starts another member of the same group. `produce` prints the offsets that it was told.

const [, , module, what, address, topic, count] = process.argv
const { Consumer, Producer, stringDeserializers, stringSerializers } = await import(module)

function tell(one) {
  console.log(JSON.stringify(one, (_, value) => (typeof value === 'bigint' ? Number(value) : value)))
}

function names(error) {
  const inner = [...(error?.errors ?? []), error?.cause].filter(Boolean)
  return [error?.apiId, ...inner.flatMap(names)].filter(Boolean)
}

const common = { clientId: 'a test', bootstrapBrokers: [address], retries: 3, retryDelay: 100 }
if (what === 'produce') {
  const producer = new Producer({ ...common, serializers: stringSerializers, autocreateTopics: false })
  const messages = Array.from({ length: Number(count) }, (_, n) => ({
    topic, partition: n % 2, key: `k${n}`, value: `v${n}`, headers: { n: `${n}` }
  }))
  tell(await producer.send({ messages, acks: -1 }))
  await producer.close()
} else {
  for (;;) {
    const consumer = new Consumer({ ...common, groupId: 'g', deserializers: stringDeserializers, maxWaitTime: 200 })
    try {
      const stream = await consumer.consume({
        topics: [topic], mode: 'committed', fallbackMode: 'earliest', autocommit: true,
        sessionTimeout: 10_000, heartbeatInterval: 500
      })
      for await (const one of stream) {
        const headers = Object.fromEntries(one.headers)
        tell({ partition: one.partition, offset: one.offset, key: one.key, value: one.value, headers })
      }
    } catch (error) {
      tell({ errors: [...new Set(names(error))] })
    }
    await consumer.close(true)
  }
}
