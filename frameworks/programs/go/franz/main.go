// franz-go: publishes records on in transactions of a group session. Arguments: servers, input, output, a folder.
package main

import (
	"context"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	servers, source, target, folder := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(servers),
		kgo.ConsumerGroup("frameworks-franz"),
		kgo.ConsumeTopics(source),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.SessionTimeout(6*time.Second),
		kgo.HeartbeatInterval(1500*time.Millisecond),
		kgo.TransactionalID("frameworks-franz-"+filepath.Base(folder)),
		kgo.TransactionTimeout(10*time.Second),
		kgo.DefaultProduceTopic(target),
	)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	for {
		fetches := session.PollRecords(ctx, 50)
		if fetches.Empty() {
			continue
		}
		if err := session.Begin(); err != nil {
			log.Fatal(err)
		}
		fetches.EachRecord(func(record *kgo.Record) {
			session.Produce(ctx, &kgo.Record{Key: record.Key, Value: record.Value}, nil)
		})
		if _, err := session.End(ctx, kgo.TryCommit); err != nil {
			log.Fatal(err)
		}
	}
}
