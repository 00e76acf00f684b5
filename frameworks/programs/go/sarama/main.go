// Sarama: publishes each record on, then marks it. Arguments: servers, input, output, a folder.
package main

import (
	"context"
	"log"
	"os"
	"time"

	"github.com/IBM/sarama"
)

type forward struct {
	producer sarama.SyncProducer
	target   string
}

func (forward) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (forward) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (f forward) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case record, open := <-claim.Messages():
			if !open {
				return nil
			}
			sent := &sarama.ProducerMessage{
				Topic: f.target, Key: sarama.ByteEncoder(record.Key), Value: sarama.ByteEncoder(record.Value),
			}
			if _, _, err := f.producer.SendMessage(sent); err != nil {
				return err
			}
			session.MarkMessage(record, "")
		case <-session.Context().Done():
			return nil
		}
	}
}

func main() {
	servers, source, target := os.Args[1], os.Args[2], os.Args[3]
	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Idempotent = true
	config.Net.MaxOpenRequests = 1
	config.Producer.Retry.Max = 30
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Group.Session.Timeout = 6 * time.Second
	config.Consumer.Group.Heartbeat.Interval = 1500 * time.Millisecond
	producer, err := sarama.NewSyncProducer([]string{servers}, config)
	if err != nil {
		log.Fatal(err)
	}
	group, err := sarama.NewConsumerGroup([]string{servers}, "frameworks-sarama", config)
	if err != nil {
		log.Fatal(err)
	}
	for {
		if err := group.Consume(context.Background(), []string{source}, forward{producer, target}); err != nil {
			log.Print(err)
			time.Sleep(200 * time.Millisecond)
		}
	}
}
