package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/countd/countd/internal/proctest"
)

const (
	faultyBrokers    = 3
	faultyPartitions = 3
	faultyRows       = 20
)

// faultyKafka is a fake Kafka with several brokers, which stores the topic likes on disk. A source
// on three nodes counts the topic.
type faultyKafka struct {
	t       *testing.T
	brokers *kfake.Cluster
	dir     string
	addrs   []string
	nodes   []*proctest.Member
	written int               // number of written messages
	counted [faultyRows]int64 // expected counts, by row
}

// TestSourceKafkaFaults counts a topic with three nodes while its brokers fail:
//
//  1. moves of leaders, errors and restarts of brokers, and deaths of reading nodes delay messages,
//     but no message counts twice;
//  2. the source stalls if the log was truncated, if messages were removed before they were read,
//     or if the topic was deleted or created again. The API shows the reason, and the stalled
//     partition counts no message;
//  3. the other partitions continue;
//  4. after a seek, all messages from that position on are counted.
func TestSourceKafkaFaults(t *testing.T) {
	long(t)
	beside(t)
	k := &faultyKafka{t: t, dir: filepath.Join(t.TempDir(), "kafka"), addrs: proctest.FreePorts(t, faultyBrokers)}
	k.start()
	t.Cleanup(func() { k.brokers.Close() })
	c := newCluster(t, proctest.Options{})
	k.nodes = c.Nodes()
	file := filepath.Join(t.TempDir(), "likes.yaml")
	config := fmt.Sprintf("name: likes\ntype: kafka\nbrokers: [%s]\ntopic: likes\nbatch: {messages: 100, linger: 1ms}\n", strings.Join(k.addrs, ", "))
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	k.write(300)
	k.nodes[0].MustCtl("source", "create", file)
	k.isCounted()

	for round := range short(1, 10) {
		k.moveLeaders(round)
		k.write(300)
		k.brokers.Fault(
			kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Err: kerr.NotLeaderForPartition, Count: 5},
			kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Err: kerr.LeaderNotAvailable, Count: 3},
			kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Err: kerr.UnknownServerError, Count: 3},
		)
		k.write(300)
		victim := k.nodes[round%len(k.nodes)]
		victim.Kill()
		k.write(300)
		k.restart(func() {})
		k.write(300)
		k.isCountedBy(c.Others(victim)[0], "another node reads what the dead one did", func(shown *partitionsShown) bool {
			for _, p := range shown.Partitions {
				if p.Node == victim.Name {
					return false
				}
			}
			return true
		})
		victim.Start()
		c.AwaitReady(victim)
	}
	k.write(300)
	k.isCounted()

	t.Run("truncated", k.truncated)
	t.Run("removed", k.removed)
	t.Run("made anew", k.madeAnew)
	c.AwaitAgreement(k.nodes...)
}

// truncated truncates partition 0 before messages that were already counted.
func (k *faultyKafka) truncated(t *testing.T) {
	k.t = t
	copied := filepath.Join(t.TempDir(), "copy")
	k.restart(func() { k.ok(os.CopyFS(copied, os.DirFS(k.dir))) })
	end := k.end(0)
	k.writeTo(0, 50)
	k.isCounted()
	k.restart(func() {
		k.ok(os.RemoveAll(k.dir))
		k.ok(os.CopyFS(k.dir, os.DirFS(copied)))
	})
	k.stalls(0, "the log was truncated", "the queue was truncated")
	k.writeTo(1, 50)
	k.isCountedBut(0)
	k.seek(map[int]int64{0: end})
	k.writeTo(0, 60) // beyond the position from before the truncation
	k.isCounted()
}

// removed removes messages from partition 1 before the source reads them.
func (k *faultyKafka) removed(t *testing.T) {
	k.t = t
	k.nodes[1].MustCtl("source", "pause", "likes")
	before := k.end(1)
	const lost = 30
	counted := k.counted
	k.writeTo(1, lost)
	k.counted = counted
	k.ok(k.brokers.DeleteRecords("likes", 1, before+lost))
	k.writeTo(1, 20)
	k.writeTo(2, 20)
	k.nodes[0].MustCtl("source", "resume", "likes")
	k.stalls(1, fmt.Sprintf("messages were removed before they were read; seek to %d", before+lost))
	k.isCountedBut(1)
	k.seek(map[int]int64{1: before + lost})
	k.isCounted()
}

// madeAnew deletes the topic and creates it again.
func (k *faultyKafka) madeAnew(t *testing.T) {
	k.t = t
	k.ok(k.brokers.DeleteTopic("likes"))
	for p := range faultyPartitions {
		k.stalls(p, "topic likes is missing")
	}
	k.ok(k.brokers.CreateTopic("likes", faultyPartitions, nil))
	counted := k.counted
	for p := range faultyPartitions {
		k.writeTo(p, 500) // more messages than the stored positions
		k.stalls(p, "the topic is not the one that was read before", "the queue is not the one that was read before")
	}
	written := k.counted
	k.counted = counted
	k.rowsAre(k.nodes[0])
	k.seek(map[int]int64{0: 0, 1: 0, 2: 0})
	k.counted = written
	k.isCounted()
}

func (k *faultyKafka) ok(err error) {
	k.t.Helper()
	if err != nil {
		k.t.Fatal(err)
	}
}

func (k *faultyKafka) start() {
	k.t.Helper()
	ports := make([]int, len(k.addrs))
	for i, addr := range k.addrs {
		_, port, err := net.SplitHostPort(addr)
		k.ok(err)
		ports[i], err = strconv.Atoi(port)
		k.ok(err)
	}
	succeeds(k.t, "the brokers start", func(context.Context) (err error) {
		k.brokers, err = kfake.NewCluster(kfake.NumBrokers(len(ports)), kfake.Ports(ports...), kfake.DataDir(k.dir), kfake.SyncWrites(),
			kfake.SeedTopics(faultyPartitions, "likes"), kfake.SeedTopics(1, "likes.dead"))
		return err
	})
}

// restart stops the brokers, calls meanwhile, and starts the brokers again. meanwhile may change
// the brokers' data.
func (k *faultyKafka) restart(meanwhile func()) {
	k.t.Helper()
	k.brokers.Close()
	meanwhile()
	k.start()
}

// moveLeaders makes another broker lead each partition.
func (k *faultyKafka) moveLeaders(round int) {
	k.t.Helper()
	for p := range int32(faultyPartitions) {
		k.ok(k.brokers.MoveTopicPartition("likes", p, (p+int32(round)+1)%faultyBrokers))
	}
}

func (k *faultyKafka) end(partition int) int64 {
	return k.brokers.PartitionInfo("likes", int32(partition)).HighWatermark
}

func (k *faultyKafka) write(messages int) {
	k.t.Helper()
	for p := range faultyPartitions {
		k.writeTo(p, messages/faultyPartitions)
	}
}

// writeTo writes messages to a partition and adds them to the expected counts.
func (k *faultyKafka) writeTo(partition, messages int) {
	k.t.Helper()
	// Use another client each time: an earlier one may not know that a log was truncated.
	client, err := kgo.NewClient(kgo.SeedBrokers(k.addrs...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DefaultProduceTopic("likes"))
	k.ok(err)
	defer client.Close()
	records := make([]*kgo.Record, messages)
	for i := range records {
		row, n := k.written%faultyRows, int64(k.written%7)-2
		k.written++
		k.counted[row] += n
		records[i] = &kgo.Record{Partition: int32(partition), Value: []byte(like{uint64(row), n}.String())}
	}
	k.ok(client.ProduceSync(k.t.Context(), records...).FirstErr())
}

// partitionsShown has the fields of a source that the test checks.
type partitionsShown struct {
	State, Reason string
	Rejected      uint64
	Partitions    []struct {
		Partition           int
		State, Reason, Node string
		Position, End       int64
	}
}

// await reads the source from a node until holds returns true.
func (k *faultyKafka) await(n *proctest.Member, what string, holds func(shown *partitionsShown) bool) {
	k.t.Helper()
	succeeds(k.t, what, func(context.Context) error {
		var shown partitionsShown
		code, err := n.Call(http.MethodGet, "/v1/sources/likes", nil, &shown)
		if err == nil && (code != http.StatusOK || len(shown.Partitions) != faultyPartitions || !holds(&shown)) {
			err = fmt.Errorf("status %d, %+v", code, shown)
		}
		return err
	})
}

// stalls waits until the API shows a partition as stalled for one of the reasons. It then checks
// the metrics.
func (k *faultyKafka) stalls(partition int, reasons ...string) {
	k.t.Helper()
	reader := ""
	k.await(k.nodes[0], fmt.Sprintf("partition %d stalls: %q", partition, reasons), func(shown *partitionsShown) bool {
		p := shown.Partitions[partition]
		reader = p.Node
		for _, reason := range reasons {
			if shown.State == "stalled" && shown.Reason != "" && p.State == "stalled" && strings.Contains(p.Reason, reason) {
				return true
			}
		}
		return false
	})
	metric := fmt.Sprintf(`countd_source_state{partition="%d",source="likes",state="stalled"} 1`, partition)
	for _, n := range k.nodes {
		if n.Name == reader && !strings.Contains(n.Text("/metrics"), metric) {
			k.t.Errorf("%s has no %s", n.Name, metric)
		}
	}
}

// seek pauses the source, sets the positions of partitions, and resumes the source.
func (k *faultyKafka) seek(to map[int]int64) {
	k.t.Helper()
	k.nodes[1].MustCtl("source", "pause", "likes")
	args := []string{"source", "seek", "likes"}
	for p, at := range to {
		args = append(args, fmt.Sprintf("%d=%d", p, at))
	}
	k.nodes[2].MustCtl(args...)
	k.nodes[0].MustCtl("source", "resume", "likes")
}

// isCounted waits until all messages are counted.
func (k *faultyKafka) isCounted() {
	k.t.Helper()
	k.isCountedBy(k.nodes[1], "all is counted", func(*partitionsShown) bool { return true })
}

func (k *faultyKafka) isCountedBy(n *proctest.Member, what string, holds func(*partitionsShown) bool) {
	k.t.Helper()
	k.await(n, what, func(shown *partitionsShown) bool {
		for p := range faultyPartitions {
			if shown.Partitions[p].Position != k.end(p) {
				return false
			}
		}
		return shown.State == "running" && shown.Reason == "" && holds(shown)
	})
	k.rowsAre(n)
}

// isCountedBut waits until all messages of the other partitions are counted and the source is
// stalled.
func (k *faultyKafka) isCountedBut(partition int) {
	k.t.Helper()
	k.await(k.nodes[2], "the other partitions go on", func(shown *partitionsShown) bool {
		for p := range faultyPartitions {
			if at := &shown.Partitions[p]; p != partition && (at.Position != k.end(p) || at.State != "running") {
				return false
			}
		}
		return shown.State == "stalled"
	})
}

// rowsAre compares the rows with the expected counts.
func (k *faultyKafka) rowsAre(n *proctest.Member) {
	k.t.Helper()
	ids := make([]string, faultyRows)
	for i := range ids {
		ids[i] = strconv.Itoa(i)
	}
	for i, row := range n.Rows("posts", ids) {
		if got := row.Counts["like"]; got != k.counted[i] {
			k.t.Errorf("row %d is %d, want %d", i, got, k.counted[i])
		}
	}
}
