//go:build oldkafka && linux

package kafka

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
	"github.com/countd/countd/source"
	"github.com/countd/countd/source/brokertest"
)

var oldKafka = flag.String("old-kafka", "", "directory of Apache Kafka 0.9, which has libs")

// speakOld limits a client to the protocol of Kafka 0.9, which cannot report its versions.
var speakOld = []kgo.Opt{kgo.MaxVersions(kversion.V0_9_0()), kgo.DisableIdempotentWrite()}

// oldCluster is Apache Kafka 0.9 and its ZooKeeper, as two processes. The broker creates a topic of
// one partition when a client names it.
type oldCluster struct {
	zookeeper, addr string
	config          string
	broker          *exec.Cmd
}

func newOldCluster(t *testing.T) *oldCluster {
	t.Helper()
	ports, dir := proctest.FreePorts(t, 2), t.TempDir()
	c := &oldCluster{zookeeper: ports[0], addr: ports[1], config: filepath.Join(dir, "server.properties")}
	host, port, _ := net.SplitHostPort(c.zookeeper)
	zookeeper := filepath.Join(dir, "zookeeper.properties")
	write(t, zookeeper, "dataDir="+filepath.Join(dir, "zookeeper"), "clientPortAddress="+host, "clientPort="+port, "tickTime=200")
	_, port, _ = net.SplitHostPort(c.addr)
	write(t, c.config, "broker.id=0", "listeners=PLAINTEXT://"+c.addr, "advertised.host.name="+host, "advertised.port="+port, "log.dirs="+filepath.Join(dir, "log"),
		"zookeeper.connect="+c.zookeeper, "zookeeper.session.timeout.ms=2000", "num.partitions=1", "log.flush.interval.messages=1")
	java(t, dir, "org.apache.zookeeper.server.quorum.QuorumPeerMain", zookeeper)
	eventually(t, "ZooKeeper serves", func() bool { return c.ask("ruok") == "imok" })
	c.start(t)
	return c
}

func write(t *testing.T, name string, lines ...string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// java runs a class of Kafka until the end of the test.
func java(t *testing.T, dir, class, config string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("java", "-Xmx256m", "-cp", filepath.Join(*oldKafka, "libs", "*"), class, config)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kill(cmd) })
	return cmd
}

func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill() // the process may have been killed already
	_ = cmd.Wait()
}

// ask returns the answer of ZooKeeper to a command of four letters, or "" if ZooKeeper does not
// answer.
func (c *oldCluster) ask(command string) string {
	conn, err := net.Dial("tcp", c.zookeeper)
	if err != nil {
		return ""
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(conn, command); err != nil {
		return ""
	}
	answer, _ := io.ReadAll(conn)
	return string(answer)
}

// start runs the broker, and returns once it has its topics.
func (c *oldCluster) start(t *testing.T) {
	t.Helper()
	c.broker = java(t, filepath.Dir(c.config), "kafka.Kafka", c.config)
	for _, topic := range []string{"likes", "likes.dead"} {
		b := c.open(t, &source.Config{Name: "likes", Brokers: []string{c.addr}, Topic: topic})
		eventually(t, "topic "+topic+" is there", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			_, _, err := b.Bounds(ctx, 0)
			if err != nil {
				_, _ = b.Partitions(ctx) // creates the topic
			}
			return err == nil
		})
	}
}

func (c *oldCluster) open(t *testing.T, cfg *source.Config) *Broker {
	t.Helper()
	b, err := Open(cfg, source.Access{}, speakOld...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// restart kills the broker and starts it again once ZooKeeper has released it.
func (c *oldCluster) restart(t *testing.T) {
	t.Helper()
	kill(c.broker)
	eventually(t, "ZooKeeper forgets the broker", func() bool {
		all := c.ask("dump")
		return all != "" && !strings.Contains(all, "/brokers/ids/0")
	})
	c.start(t)
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	must.Become(t, what, holds)
}

// TestOldKafka: messages of Apache Kafka 0.9 count once, even if the broker is killed with SIGKILL.
func TestOldKafka(t *testing.T) {
	c := newOldCluster(t)
	client, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(c.addr), kgo.DefaultProduceTopic("likes")}, speakOld...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	brokertest.Once(t, &brokertest.Queue{
		Config: fmt.Sprintf("name: likes\ntype: kafka\nbrokers: [%q]\ntopic: likes\nbatch: {messages: 100, linger: 1ms}\n", c.addr),
		Open: func(cfg *source.Config, _ source.Access) (source.Broker, error) {
			return Open(cfg, source.Access{}, speakOld...)
		},
		Restart: c.restart,
		Write: func(t *testing.T, values ...string) {
			var records []*kgo.Record
			for _, v := range values {
				records = append(records, &kgo.Record{Value: []byte(v)})
			}
			if err := client.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
				t.Fatal(err)
			}
		},
		Letters: func(t *testing.T) (all []string) {
			b := c.open(t, &source.Config{Name: "likes", Brokers: []string{c.addr}, Topic: "likes.dead"})
			_, end, err := b.Bounds(t.Context(), 0)
			if err != nil {
				t.Fatal(err)
			}
			r, err := b.Read(t.Context(), 0, source.Position{}, source.Mark{})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			for uint64(len(all)) < end.Lo {
				got, err := r.Next(t.Context(), 100)
				if err != nil {
					t.Fatal(err)
				}
				for _, m := range got.Messages {
					all = append(all, string(m.Value))
				}
			}
			return all
		},
	})
}
