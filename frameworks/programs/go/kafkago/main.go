// kafka-go: publishes records on, then commits them. Arguments: servers, input, output, a folder.
package main

import (
	"context"
	"log"
	"os"
	"time"

	"github.com/segmentio/kafka-go"
)

func main() {
	servers, source, target := os.Args[1], os.Args[2], os.Args[3]
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers:           []string{servers},
		GroupID:           "frameworks-kafka-go",
		Topic:             source,
		StartOffset:       kafka.FirstOffset,
		SessionTimeout:    6 * time.Second,
		HeartbeatInterval: 1500 * time.Millisecond,
		MaxWait:           500 * time.Millisecond,
	})
	writer := &kafka.Writer{
		Addr:         kafka.TCP(servers),
		Topic:        target,
		Balancer:     kafka.Murmur2Balancer{Consistent: true},
		RequiredAcks: kafka.RequireAll,
		BatchTimeout: 5 * time.Millisecond,
		MaxAttempts:  100,
	}
	ctx := context.Background()
	for {
		record, err := reader.FetchMessage(ctx)
		if err != nil {
			log.Fatal(err)
		}
		if err := writer.WriteMessages(ctx, kafka.Message{Key: record.Key, Value: record.Value}); err != nil {
			log.Fatal(err)
		}
		if err := reader.CommitMessages(ctx, record); err != nil {
			log.Print(err)
		}
	}
}
