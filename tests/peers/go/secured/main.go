// franz-go at a listener with TLS and logins; its orders and answers are those of ../../secured_clients.py.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

const orderTime = 60 * time.Second

type connection struct {
	Servers, CA, Cert, Key, Mechanism, User, Password, Token string
	TLS                                                      bool
}

type order struct {
	Do, Topic, Group string
	Count, Size      int
	Seconds          float64
}

func (c connection) options() ([]kgo.Opt, error) {
	options := []kgo.Opt{kgo.SeedBrokers(c.Servers), kgo.RequestRetries(1), kgo.RecordRetries(3), kgo.AllowAutoTopicCreation()}
	if c.TLS {
		config := &tls.Config{RootCAs: x509.NewCertPool()}
		if c.CA != "" {
			text, err := os.ReadFile(c.CA)
			if err != nil {
				return nil, err
			}
			config.RootCAs.AppendCertsFromPEM(text)
		}
		if c.Cert != "" {
			pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
			if err != nil {
				return nil, err
			}
			config.Certificates = []tls.Certificate{pair}
		}
		options = append(options, kgo.DialTLSConfig(config))
	}
	var mechanism sasl.Mechanism
	switch c.Mechanism {
	case "PLAIN":
		mechanism = plain.Auth{User: c.User, Pass: c.Password}.AsMechanism()
	case "SCRAM-SHA-256":
		mechanism = scram.Auth{User: c.User, Pass: c.Password}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		mechanism = scram.Auth{User: c.User, Pass: c.Password}.AsSha512Mechanism()
	case "OAUTHBEARER":
		mechanism = oauth.Auth{Token: c.Token}.AsMechanism()
	default:
		return options, nil
	}
	return append(options, kgo.SASL(mechanism)), nil
}

func named(err error) string {
	var known *kerr.Error
	if errors.As(err, &known) {
		return known.Message
	}
	return err.Error()
}

func coded(code int16) error { return kerr.ErrorForCode(code) }

func (c connection) with(ctx context.Context, more []kgo.Opt, use func(*kgo.Client) error) error {
	options, err := c.options()
	if err != nil {
		return err
	}
	client, err := kgo.NewClient(append(options, more...)...)
	if err != nil {
		return err
	}
	defer client.Close()
	return use(client)
}

func read(ctx context.Context, client *kgo.Client, count int) error {
	for seen := 0; seen < count; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		seen += fetches.NumRecords()
	}
	return nil
}

func produce(ctx context.Context, client *kgo.Client, o order) error {
	for range max(1, o.Count) {
		if err := client.ProduceSync(ctx, &kgo.Record{Topic: o.Topic, Value: make([]byte, o.Size)}).FirstErr(); err != nil {
			return err
		}
	}
	return nil
}

func (c connection) carryOut(o order) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), orderTime)
	defer cancel()
	start := kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())
	group := []kgo.Opt{kgo.ConsumeTopics(o.Topic), kgo.ConsumerGroup(o.Group), kgo.DisableAutoCommit(), start}
	direct := []kgo.Opt{kgo.ConsumeTopics(o.Topic), start}
	count := o.Count
	var err error
	switch o.Do {
	case "connect":
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		err = c.with(ctx, nil, func(client *kgo.Client) error { return client.Ping(ctx) })
	case "produce":
		err = c.with(ctx, nil, func(client *kgo.Client) error { return produce(ctx, client, o) })
	case "fetch":
		err = c.with(ctx, direct, func(client *kgo.Client) error { return read(ctx, client, max(1, o.Count)) })
	case "group":
		err = c.with(ctx, group, func(client *kgo.Client) error {
			if err := read(ctx, client, max(1, o.Count)); err != nil {
				return err
			}
			return client.CommitUncommittedOffsets(ctx)
		})
	case "create":
		err = c.with(ctx, nil, func(client *kgo.Client) error {
			request := kmsg.NewPtrCreateTopicsRequest()
			topic := kmsg.NewCreateTopicsRequestTopic()
			topic.Topic, topic.NumPartitions, topic.ReplicationFactor = o.Topic, 1, 1
			request.Topics = append(request.Topics, topic)
			answer, err := request.RequestWith(ctx, client)
			if err != nil {
				return err
			}
			return coded(answer.Topics[0].ErrorCode)
		})
	case "delete":
		err = c.with(ctx, nil, func(client *kgo.Client) error {
			request := kmsg.NewPtrDeleteTopicsRequest()
			topic := kmsg.NewDeleteTopicsRequestTopic()
			topic.Topic = kmsg.StringPtr(o.Topic)
			request.Topics, request.TopicNames = append(request.Topics, topic), []string{o.Topic}
			answer, err := request.RequestWith(ctx, client)
			if err != nil {
				return err
			}
			return coded(answer.Topics[0].ErrorCode)
		})
	case "load":
		err = c.with(ctx, nil, func(client *kgo.Client) error {
			end := time.Now().Add(time.Duration(o.Seconds * float64(time.Second)))
			for count = 0; time.Now().Before(end); count++ {
				if err := produce(ctx, client, order{Topic: o.Topic, Size: o.Size}); err != nil {
					return err
				}
			}
			return nil
		})
	default:
		err = fmt.Errorf("no such order: %s", o.Do)
	}
	return count, err
}

func main() {
	var c connection
	if err := json.Unmarshal([]byte(os.Args[1]), &c); err != nil {
		panic(err)
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var o order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			panic(err)
		}
		result := "ok"
		count, err := c.carryOut(o)
		if err != nil {
			result = named(err)
		}
		line, _ := json.Marshal(map[string]any{"result": result, "count": count})
		fmt.Println(string(line))
	}
}
