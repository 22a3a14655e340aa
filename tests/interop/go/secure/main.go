// franz-go, unmodified, over TLS and SCRAM-SHA-512, as somebody who may write and read one topic: writes it, reads it back
// as a group, and is refused another topic. ADDRESS TOPIC FORBIDDEN GROUP USER PASSWORD CA-FILE. Prints "ok", or says what
// went wrong and exits with 1.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

const count = 100

func check(err error, what string) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
		os.Exit(1)
	}
}

func main() {
	address, topic, forbidden, group := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	pem, err := os.ReadFile(os.Args[7])
	check(err, "authority")
	trusted := x509.NewCertPool()
	if !trusted.AppendCertsFromPEM(pem) {
		check(errors.New("no certificate"), "authority")
	}
	login := scram.Auth{User: os.Args[5], Pass: os.Args[6]}.AsSha512Mechanism()
	options := []kgo.Opt{
		kgo.SeedBrokers(address), kgo.SASL(login), kgo.DialTLSConfig(&tls.Config{RootCAs: trusted}),
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	producer, err := kgo.NewClient(append(options, kgo.RecordRetries(2))...)
	check(err, "producer")
	for i := 0; i < count; i++ {
		record := &kgo.Record{Topic: topic, Value: []byte(fmt.Sprintf("value %d", i))}
		check(producer.ProduceSync(ctx, record).FirstErr(), "produce")
	}
	err = producer.ProduceSync(ctx, &kgo.Record{Topic: forbidden, Value: []byte("no")}).FirstErr()
	if !errors.Is(err, kerr.TopicAuthorizationFailed) {
		check(fmt.Errorf("%v", err), "a forbidden topic")
	}
	producer.Close()
	consumer, err := kgo.NewClient(append(options, kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	check(err, "consumer")
	defer consumer.Close()
	seen := map[string]bool{}
	for len(seen) < count {
		fetches := consumer.PollFetches(ctx)
		for _, failed := range fetches.Errors() {
			check(failed.Err, "fetch")
		}
		fetches.EachRecord(func(record *kgo.Record) { seen[string(record.Value)] = true })
	}
	check(consumer.CommitUncommittedOffsets(ctx), "commit")
	fmt.Println("ok")
}
