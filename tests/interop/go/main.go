// franz-go, unmodified, at work: creates a topic, writes it with every codec, reads it back with assigned
// partitions and as a group, copies it exactly once, asks for offsets by time, deletes the topic. Prints "ok", or says
// what went wrong and exits with 1.
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
	group(ctx, address, admin, topic, len(codecs)*perCodec)
	copyOnce(ctx, address, admin, topic, len(codecs)*perCodec)
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

// Two members of a group share the topic, commit, and leave; the group's lag is none.
func group(ctx context.Context, address string, admin *kadm.Client, topic string, wanted int) {
	name := topic + "-group"
	seen := make(chan string, wanted)
	members := make([]*kgo.Client, 2)
	for i := range members {
		member, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.ConsumerGroup(name), kgo.ConsumeTopics(topic),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll())
		check(err, "member")
		members[i] = member
		go func() {
			for {
				fetches := member.PollFetches(ctx)
				if fetches.IsClientClosed() || ctx.Err() != nil {
					return
				}
				if !fetches.Empty() {
					check(member.CommitUncommittedOffsets(ctx), "commit")
				}
				member.AllowRebalance()
				fetches.EachRecord(func(record *kgo.Record) { seen <- string(record.Value) })
			}
		}()
	}
	found := map[string]bool{}
	for len(found) < wanted {
		select {
		case value := <-seen:
			found[value] = true
		case <-ctx.Done():
			check(ctx.Err(), "group")
		}
	}
	for _, member := range members {
		member.CloseAllowingRebalance()
	}
	lags, err := admin.Lag(ctx, name)
	check(err, "lag")
	lag := lags[name]
	check(lag.Error(), "lag")
	if total := lag.Lag.Total(); total != 0 {
		check(fmt.Errorf("%d", total), "lag")
	}
	_, err = admin.DeleteGroups(ctx, name)
	check(err, "delete group")
}

// Reads a topic and writes another in transactions that carry the offsets; every third is aborted and done again.
func copyOnce(ctx context.Context, address string, admin *kadm.Client, topic string, wanted int) {
	target := topic + "-copy"
	_, err := admin.CreateTopic(ctx, 1, 1, nil, target)
	check(err, "create copy")
	session, err := kgo.NewGroupTransactSession(kgo.SeedBrokers(address), kgo.TransactionalID(topic+"-tx"),
		kgo.ConsumerGroup(topic+"-copier"), kgo.ConsumeTopics(topic), kgo.RequireStableFetchOffsets(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.FetchMaxBytes(4096), kgo.FetchMaxPartitionBytes(2048))
	check(err, "session")
	defer session.Close()
	copied := 0
	for round := 0; copied < wanted; round++ {
		fetches := session.PollFetches(ctx)
		check(ctx.Err(), "copy")
		check(session.Begin(), "begin")
		batch := 0
		fetches.EachRecord(func(record *kgo.Record) {
			session.Produce(ctx, &kgo.Record{Topic: target, Value: record.Value}, nil)
			batch++
		})
		try := kgo.TryCommit
		if round%3 == 1 {
			try = kgo.TryAbort
		}
		committed, err := session.End(ctx, try)
		check(err, "end")
		if committed {
			copied += batch
		}
	}
	consumer, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{target: {0: kgo.NewOffset().AtStart()}}))
	check(err, "reader")
	defer consumer.Close()
	count, values := 0, map[string]bool{}
	for count < wanted {
		fetches := consumer.PollFetches(ctx)
		check(ctx.Err(), "read copy")
		fetches.EachRecord(func(record *kgo.Record) { count++; values[string(record.Value)] = true })
	}
	if count != wanted || len(values) != wanted {
		check(fmt.Errorf("%d records, %d values", count, len(values)), "each once")
	}
}
