// Watermill: a router's handler publishes each record on. Arguments: servers, input, output, a folder.
package main

import (
	"context"
	"log"
	"os"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
)

// keyed carries a record's key beside its value, in both directions.
type keyed struct{ kafka.DefaultMarshaler }

func (keyed) Unmarshal(record *sarama.ConsumerMessage) (*message.Message, error) {
	read := message.NewMessage(watermill.NewUUID(), record.Value)
	read.Metadata.Set("key", string(record.Key))
	return read, nil
}

func (keyed) Marshal(topic string, sent *message.Message) (*sarama.ProducerMessage, error) {
	return &sarama.ProducerMessage{
		Topic: topic, Key: sarama.StringEncoder(sent.Metadata.Get("key")), Value: sarama.ByteEncoder(sent.Payload),
	}, nil
}

func main() {
	servers, source, target := os.Args[1], os.Args[2], os.Args[3]
	logger := watermill.NewStdLogger(false, false)
	reading := kafka.DefaultSaramaSubscriberConfig()
	reading.Consumer.Offsets.Initial = sarama.OffsetOldest
	reading.Consumer.Group.Session.Timeout = 6 * time.Second
	reading.Consumer.Group.Heartbeat.Interval = 1500 * time.Millisecond
	writing := kafka.DefaultSaramaSyncPublisherConfig()
	writing.Producer.RequiredAcks = sarama.WaitForAll
	subscriber, err := kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers: []string{servers}, Unmarshaler: keyed{}, ConsumerGroup: "frameworks-watermill",
		OverwriteSaramaConfig: reading,
	}, logger)
	if err != nil {
		log.Fatal(err)
	}
	publisher, err := kafka.NewPublisher(kafka.PublisherConfig{
		Brokers: []string{servers}, Marshaler: keyed{}, OverwriteSaramaConfig: writing,
	}, logger)
	if err != nil {
		log.Fatal(err)
	}
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		log.Fatal(err)
	}
	router.AddHandler("forward", source, subscriber, target, publisher,
		func(read *message.Message) ([]*message.Message, error) { return []*message.Message{read}, nil })
	if err := router.Run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
