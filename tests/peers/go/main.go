// franz-go as producer and as group member. Usage: produce|consume SERVERS TOPIC COUNT|GROUP
// Talks as ../drivers/speak.py says.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var output sync.Mutex

func say(event string, facts map[string]any) {
	if facts == nil {
		facts = map[string]any{}
	}
	facts["event"] = event
	line, _ := json.Marshal(facts)
	output.Lock()
	defer output.Unlock()
	fmt.Println(string(line))
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func produce(servers []string, topic string, count int) {
	client, err := kgo.NewClient(kgo.SeedBrokers(servers...), kgo.ProducerBatchCompression(kgo.SnappyCompression()))
	if err != nil {
		fail(err)
	}
	defer client.Close()
	records := make([]*kgo.Record, count)
	for n := range records {
		records[n] = &kgo.Record{Topic: topic, Key: []byte(fmt.Sprintf("key-%d", n)), Value: []byte(fmt.Sprintf("value-%d", n))}
	}
	if err := client.ProduceSync(context.Background(), records...).FirstErr(); err != nil {
		fail(err)
	}
	say("produced", map[string]any{"count": count})
}

type holding struct {
	lock       sync.Mutex
	partitions map[int32]bool
}

func (h *holding) change(topic string, moved map[string][]int32, held bool) {
	h.lock.Lock()
	defer h.lock.Unlock()
	for _, partition := range moved[topic] {
		if held {
			h.partitions[partition] = true
		} else {
			delete(h.partitions, partition)
		}
	}
	now := []int{}
	for partition := range h.partitions {
		now = append(now, int(partition))
	}
	sort.Ints(now)
	say("assigned", map[string]any{"partitions": now})
}

func consume(servers []string, topic, group string) {
	held := &holding{partitions: map[int32]bool{}}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(servers...),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.SessionTimeout(10*time.Second),
		kgo.HeartbeatInterval(500*time.Millisecond),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, m map[string][]int32) { held.change(topic, m, true) }),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, m map[string][]int32) { held.change(topic, m, false) }),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, m map[string][]int32) { held.change(topic, m, false) }),
	)
	if err != nil {
		fail(err)
	}
	stopping, stop := context.WithCancel(context.Background())
	go func() {
		bufio.NewReader(os.Stdin).ReadString('\n')
		stop()
	}()
	for stopping.Err() == nil {
		fetches := client.PollRecords(stopping, 100)
		if err := fetches.Err(); err != nil && stopping.Err() == nil {
			fail(err)
		}
		records := fetches.Records()
		for _, record := range records {
			say("record", map[string]any{"partition": record.Partition, "offset": record.Offset, "value": string(record.Value)})
		}
		if len(records) > 0 {
			if err := client.CommitRecords(context.Background(), records...); err != nil {
				fail(err)
			}
			say("committed", nil)
		}
		client.AllowRebalance()
	}
	client.Close()
	say("closed", nil)
}

func main() {
	mode, servers, topic, last := os.Args[1], strings.Split(os.Args[2], ","), os.Args[3], os.Args[4]
	if mode == "produce" {
		count, err := strconv.Atoi(last)
		if err != nil {
			fail(err)
		}
		produce(servers, topic, count)
		return
	}
	consume(servers, topic, last)
}
