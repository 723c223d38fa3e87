// franz-go's loop: consume, transform, produce, in transactions of a group. See __init__.py for its arguments.
package main

import (
	"context"
	"fmt"
	"math/rand"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	address, group, source, target, id := os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5]
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(address),
		kgo.TransactionalID(id),
		kgo.TransactionTimeout(10*time.Second),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(source),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.SessionTimeout(6*time.Second),
		kgo.HeartbeatInterval(500*time.Millisecond),
		kgo.FetchMaxWait(100*time.Millisecond),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.WithLogger(kgo.BasicLogger(os.Stderr, kgo.LogLevelWarn, nil)),
	)
	check(err)
	defer session.Close()
	for ctx.Err() == nil {
		fetches := session.PollRecords(ctx, 100)
		if fetches.NumRecords() == 0 {
			continue
		}
		wanted, word := kgo.TryCommit, "done"
		if rand.Float64() < 0.2 {
			wanted, word = kgo.TryAbort, "aborted"
		}
		check(session.Begin())
		sent := kgo.AbortingFirstErrPromise(session.Client())
		fetches.EachRecord(func(record *kgo.Record) {
			value := []byte(word + " " + string(record.Value))
			session.Produce(
				ctx, &kgo.Record{Topic: target, Partition: record.Partition, Value: value}, sent.Promise(),
			)
		})
		if sent.Err() != nil {
			wanted = kgo.TryAbort
		}
		_, err := session.End(context.Background(), wanted)
		check(err)
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
}
