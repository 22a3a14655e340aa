// franz-go, unmodified, at work: creates a topic, writes it with every codec, reads it back with assigned
// partitions, asks for offsets by time, deletes the topic. Prints "ok", or says what went wrong and exits with 1.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const perCodec = 100

func check(err error, what string) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
		os.Exit(1)
	}
}

func main() {
	address, topic := os.Args[1], os.Args[2]
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(address))
	check(err, "client")
	defer client.Close()
	admin := kadm.NewClient(client)
	_, err = admin.CreateTopic(ctx, 2, 1, map[string]*string{"retention.ms": kadm.StringPtr("86400000")}, topic)
	check(err, "create")
	base := time.Now().Add(-time.Hour).Truncate(time.Millisecond)
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	for name, codec := range codecs {
		write(ctx, address, topic, name, codec, base)
	}
	read(ctx, address, topic, len(codecs)*perCodec)
	ends, err := admin.ListEndOffsets(ctx, topic)
	check(err, "end offsets")
	total := int64(0)
	ends.Each(func(o kadm.ListedOffset) { total += o.Offset })
	if total != int64(len(codecs)*perCodec) {
		check(fmt.Errorf("%d", total), "sum of end offsets")
	}
	_, err = admin.ListOffsetsAfterMilli(ctx, base.UnixMilli(), topic)
	check(err, "offsets by time")
	described, err := admin.DescribeTopicConfigs(ctx, topic)
	check(err, "configs")
	if len(described) != 1 || len(described[0].Configs) < 20 {
		check(fmt.Errorf("%v", described), "configs")
	}
	_, err = admin.DeleteTopic(ctx, topic)
	check(err, "delete")
	fmt.Println("ok")
}

func write(ctx context.Context, address, topic, name string, codec kgo.CompressionCodec, base time.Time) {
	producer, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.ProducerBatchCompression(codec),
		kgo.ProducerLinger(5*time.Millisecond), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)))
	check(err, "producer")
	defer producer.Close()
	records := make([]*kgo.Record, perCodec)
	for i := range records {
		records[i] = &kgo.Record{Topic: topic, Key: []byte(fmt.Sprintf("key %d", i)),
			Value:     []byte(fmt.Sprintf("%s value %d", name, i)),
			Headers:   []kgo.RecordHeader{{Key: "codec", Value: []byte(name)}},
			Timestamp: base.Add(time.Duration(i) * time.Millisecond)}
	}
	check(producer.ProduceSync(ctx, records...).FirstErr(), "produce "+name)
}

func read(ctx context.Context, address, topic string, wanted int) {
	start := map[int32]kgo.Offset{0: kgo.NewOffset().AtStart(), 1: kgo.NewOffset().AtStart()}
	consumer, err := kgo.NewClient(kgo.SeedBrokers(address),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: start}))
	check(err, "consumer")
	defer consumer.Close()
	seen := map[string]bool{}
	for len(seen) < wanted {
		fetches := consumer.PollFetches(ctx)
		check(fetches.Err0(), "fetch")
		for _, failed := range fetches.Errors() {
			check(failed.Err, "fetch")
		}
		fetches.EachRecord(func(record *kgo.Record) {
			if len(record.Headers) != 1 || len(record.Key) == 0 {
				check(fmt.Errorf("%v", record), "record")
			}
			seen[string(record.Value)] = true
		})
	}
}
