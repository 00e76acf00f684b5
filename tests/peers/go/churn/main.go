// A member of a churning group on franz-go; its orders and log as ../../churn/members/work.py says.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	commitEvery    = 250 * time.Millisecond
	pollTime       = 200 * time.Millisecond
	maxRecords     = 50
	metadataAge    = 3 * time.Second
	clockMonotonic = 1
)

type member struct {
	lock    sync.Mutex
	log     *os.File
	pending map[string]map[int32]kgo.EpochOffset
	commits int
	due     time.Time
}

// monotonicNs is the machine's monotonic clock, which all members of a run share.
func monotonicNs() int64 {
	var now syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&now)), 0)
	return now.Nano()
}

func (m *member) say(event string, facts map[string]any) {
	if facts == nil {
		facts = map[string]any{}
	}
	facts["e"], facts["t"] = event, monotonicNs()
	line, err := json.Marshal(facts)
	if err == nil {
		_, err = m.log.Write(append(line, '\n'))
	}
	if err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func name(topic string, partition int32) string {
	return topic + "/" + strconv.Itoa(int(partition))
}

func names(moved map[string][]int32) []string {
	found := []string{}
	for topic, partitions := range moved {
		for _, partition := range partitions {
			found = append(found, name(topic, partition))
		}
	}
	return found
}

func (m *member) process(partition kgo.FetchTopicPartition) {
	offsets, values := []int64{}, []int64{}
	for _, record := range partition.Records {
		number, err := strconv.ParseInt(string(record.Value), 10, 64)
		if err != nil {
			fail(err)
		}
		offsets, values = append(offsets, record.Offset), append(values, number)
		if m.pending[record.Topic] == nil {
			m.pending[record.Topic] = map[int32]kgo.EpochOffset{}
		}
		m.pending[record.Topic][record.Partition] = kgo.EpochOffset{Epoch: record.LeaderEpoch, Offset: record.Offset + 1}
	}
	m.say("records", map[string]any{
		"partition": name(partition.Topic, partition.Partition), "offsets": offsets, "values": values,
	})
}

// commit commits everything that is pending; what is refused stays for as long as its partition is held.
func (m *member) commit(client *kgo.Client) {
	if len(m.pending) == 0 {
		return
	}
	m.commits++
	m.due = time.Now().Add(commitEvery)
	id, told := m.commits, map[string]int64{}
	for topic, partitions := range m.pending {
		for partition, offset := range partitions {
			told[name(topic, partition)] = offset.Offset
		}
	}
	m.say("committing", map[string]any{"id": id, "offsets": told})
	var refused error
	client.CommitOffsetsSync(context.Background(), m.pending,
		func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, answer *kmsg.OffsetCommitResponse, err error) {
			refused = err
			if err != nil {
				return
			}
			count := 0
			for _, topic := range answer.Topics {
				for _, partition := range topic.Partitions {
					count++
					if code := kerr.ErrorForCode(partition.ErrorCode); code != nil {
						refused = code
					}
				}
			}
			if refused == nil && count < len(told) {
				refused = errors.New("not every partition was answered for")
			}
		})
	if refused != nil {
		m.say("refused", map[string]any{"id": id, "error": refused.Error()})
		return
	}
	m.say("committed", map[string]any{"id": id})
	m.pending = map[string]map[int32]kgo.EpochOffset{}
}

func (m *member) forget(moved map[string][]int32) {
	for topic, partitions := range moved {
		for _, partition := range partitions {
			delete(m.pending[topic], partition)
		}
		if len(m.pending[topic]) == 0 {
			delete(m.pending, topic)
		}
	}
}

func (m *member) assigned(_ context.Context, _ *kgo.Client, moved map[string][]int32) {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.say("assigned", map[string]any{"partitions": names(moved)})
}

func (m *member) revoked(_ context.Context, client *kgo.Client, moved map[string][]int32) {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.commit(client)
	m.forget(moved)
	m.say("revoked", map[string]any{"partitions": names(moved)})
}

func (m *member) lost(_ context.Context, _ *kgo.Client, moved map[string][]int32) {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.forget(moved)
	m.say("lost", map[string]any{"partitions": names(moved)})
}

func (m *member) run(client *kgo.Client, stopping context.Context) {
	for stopping.Err() == nil {
		polling, done := context.WithTimeout(stopping, pollTime)
		fetches := client.PollRecords(polling, maxRecords)
		done()
		m.lock.Lock()
		fetches.EachError(func(topic string, partition int32, err error) {
			if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
				m.say("error", map[string]any{"error": name(topic, partition) + ": " + err.Error()})
			}
		})
		fetches.EachPartition(func(partition kgo.FetchTopicPartition) {
			if len(partition.Records) > 0 {
				m.process(partition)
			}
		})
		if time.Now().After(m.due) {
			m.commit(client)
		}
		m.lock.Unlock()
		client.AllowRebalance()
	}
	m.lock.Lock()
	m.commit(client)
	m.say("closing", nil)
	m.lock.Unlock()
	client.CloseAllowingRebalance()
	m.say("closed", nil)
}

func milliseconds(text string) time.Duration {
	number, err := strconv.Atoi(text)
	if err != nil {
		fail(err)
	}
	return time.Duration(number) * time.Millisecond
}

func main() {
	orders := map[string]string{}
	for _, word := range os.Args[1:] {
		key, value, _ := strings.Cut(word, "=")
		orders[key] = value
	}
	log, err := os.OpenFile(orders["log"], os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		fail(err)
	}
	m := &member{log: log, pending: map[string]map[int32]kgo.EpochOffset{}}
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(orders["servers"], ",")...),
		kgo.ClientID(orders["name"]),
		kgo.ConsumerGroup(orders["group"]),
		kgo.ConsumeTopics(strings.Split(orders["topics"], ",")...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.MetadataMaxAge(metadataAge),
		kgo.MetadataMinAge(metadataAge / 2),
		kgo.RebalanceTimeout(milliseconds(orders["rebalance"])),
		kgo.OnPartitionsAssigned(m.assigned),
		kgo.OnPartitionsRevoked(m.revoked),
		kgo.OnPartitionsLost(m.lost),
	}
	if orders["protocol"] == "classic" {
		balancers := map[string]kgo.GroupBalancer{
			"range": kgo.RangeBalancer(), "roundrobin": kgo.RoundRobinBalancer(),
			"cooperative-sticky": kgo.CooperativeStickyBalancer(),
		}
		options = append(options, kgo.Balancers(balancers[orders["strategy"]]),
			kgo.SessionTimeout(milliseconds(orders["session"])), kgo.HeartbeatInterval(milliseconds(orders["heartbeat"])))
	} else {
		options = append(options, kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer()))
	}
	if orders["instance"] != "" {
		options = append(options, kgo.InstanceID(orders["instance"]))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		fail(err)
	}
	stopping, stop := context.WithCancel(context.Background())
	go func() {
		os.Stdin.Read(make([]byte, 1))
		stop()
	}()
	m.run(client, stopping)
}
