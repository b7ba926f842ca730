package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

// queue is a queue of a real broker, with the configuration of a source that counts its messages.
type queue struct {
	name   string
	config string // YAML of the source, without its name
	first  uint64 // id of its first row
	broker *proctest.Server
	// write writes messages. After an error, the messages may or may not be in the queue.
	write func(ctx context.Context, likes []like) error
	// sums returns, by row, the sum of all messages in the queue.
	sums func(ctx context.Context) (map[uint64]int64, error)
}

// like is a message that adds n likes to a post.
type like struct {
	id uint64
	n  int64
}

func (l like) String() string {
	return fmt.Sprintf(`{"keyspace":"posts","id":%d,"add":{"like":%d}}`, l.id, l.n)
}

// total is the sum of messages, by row.
type total map[uint64]int64

func (sum total) add(message []byte) error {
	var m struct {
		ID  uint64
		Add struct{ Like int64 }
	}
	err := json.Unmarshal(message, &m)
	sum[m.ID] += m.Add.Like
	return err
}

// startQueues starts a broker of each type.
func startQueues(t *testing.T) []*queue {
	t.Helper()
	queues := append(startPostgresQueues(t), startRedisQueue(t), startNATSQueue(t), startKafkaQueue(t))
	for i, q := range queues {
		q.first = uint64(i) * 1000
	}
	return queues
}

func startRedisQueue(t testing.TB) *queue {
	server := proctest.StartDurableRedis(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	t.Cleanup(func() { client.Close() })
	return &queue{
		name: "redis", config: "type: redis-stream\naddr: " + server.Addr + "\nkey: likes\n", broker: server,
		write: func(ctx context.Context, likes []like) error {
			_, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
				for _, l := range likes {
					p.XAdd(ctx, &redis.XAddArgs{Stream: "likes", Values: []string{"value", l.String()}})
				}
				return nil
			})
			return err
		},
		sums: func(ctx context.Context) (map[uint64]int64, error) {
			all, err := client.XRange(ctx, "likes", "-", "+").Result()
			sum := total{}
			for _, m := range all {
				if err == nil {
					err = sum.add([]byte(m.Values["value"].(string)))
				}
			}
			return sum, err
		},
	}
}

func startNATSQueue(t testing.TB) *queue {
	server := proctest.StartNATS(t)
	url := "nats://" + server.Addr
	conn, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	for stream, subject := range map[string]string{"LIKES": "likes", "DEAD": "LIKES.dead"} {
		succeeds(t, "there is a stream "+stream, func(ctx context.Context) error {
			_, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: stream, Subjects: []string{subject}})
			return err
		})
	}
	return &queue{
		name: "nats", config: "type: nats\nurl: " + url + "\nstream: LIKES\n", broker: server,
		write: func(ctx context.Context, likes []like) error {
			var sent []jetstream.PubAckFuture
			for _, l := range likes {
				ack, err := js.PublishAsync("likes", []byte(l.String()))
				if err != nil {
					return err
				}
				sent = append(sent, ack)
			}
			for _, ack := range sent {
				select {
				case <-ack.Ok():
				case err := <-ack.Err():
					return err
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		},
		sums: func(ctx context.Context) (map[uint64]int64, error) {
			stream, err := js.Stream(ctx, "LIKES")
			if err != nil {
				return nil, err
			}
			sum := total{}
			for seq := uint64(1); seq <= stream.CachedInfo().State.LastSeq; seq++ {
				m, err := stream.GetMsg(ctx, seq)
				if err == nil {
					err = sum.add(m.Data)
				}
				if err != nil {
					return nil, err
				}
			}
			return sum, nil
		},
	}
}

// startPostgresQueues starts one server with two queues. One is an outbox, whose messages are also
// stored in a table. The other is the changes of another table.
func startPostgresQueues(t testing.TB) []*queue {
	server := proctest.StartPostgres(t, nil)
	dsn := "postgres://postgres@" + server.Addr + "/postgres?sslmode=disable"
	do := func(ctx context.Context, f func(*pgx.Conn) error) error {
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			return err
		}
		defer conn.Close(context.WithoutCancel(ctx))
		return f(conn)
	}
	for _, sql := range []string{
		"CREATE TABLE sent (post_id bigint, weight bigint)",
		"CREATE TABLE likes (id bigserial PRIMARY KEY, post_id bigint, weight bigint)",
		"ALTER TABLE likes REPLICA IDENTITY FULL",
		"CREATE PUBLICATION countd FOR TABLE likes",
		"SELECT pg_create_logical_replication_slot('outbox', 'pgoutput'), pg_create_logical_replication_slot('rows', 'pgoutput')",
	} {
		if err := do(t.Context(), func(conn *pgx.Conn) error { _, err := conn.Exec(t.Context(), sql); return err }); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	of := func(name, more string, write func(ctx context.Context, tx pgx.Tx, l like) error, table string) *queue {
		return &queue{
			name: name, config: "type: postgres\ndsn: " + dsn + "\npublication: countd\n" + more, broker: server,
			write: func(ctx context.Context, likes []like) error {
				return do(ctx, func(conn *pgx.Conn) error {
					return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
						for _, l := range likes {
							if err := write(ctx, tx, l); err != nil {
								return err
							}
						}
						return nil
					})
				})
			},
			sums: func(ctx context.Context) (map[uint64]int64, error) {
				sum := total{}
				return sum, do(ctx, func(conn *pgx.Conn) error {
					rows, err := conn.Query(ctx, "SELECT post_id, sum(weight)::bigint FROM "+table+" GROUP BY 1")
					if err != nil {
						return err
					}
					var id uint64
					var n int64
					_, err = pgx.ForEachRow(rows, []any{&id, &n}, func() error { sum[id] = n; return nil })
					return err
				})
			},
		}
	}
	outbox := of("outbox", "slot: outbox\nprefix: likes\n", func(ctx context.Context, tx pgx.Tx, l like) error {
		_, err := tx.Exec(ctx, "INSERT INTO sent VALUES ($1, $2)", l.id, l.n)
		if err == nil {
			_, err = tx.Exec(ctx, "SELECT pg_logical_emit_message(true, 'likes', $1)", l.String())
		}
		return err
	}, "sent")
	// Each like inserts a row. In addition, one like in seven deletes an older row, and one in
	// seven moves an older row to its own post.
	rows := of("rows", "slot: rows\nformat: debezium\nmap: {keyspace: posts, id: $.post_id, column: like, add: $.weight}\n", func(ctx context.Context, tx pgx.Tx, l like) error {
		_, err := tx.Exec(ctx, "INSERT INTO likes (post_id, weight) VALUES ($1, $2)", l.id, l.n)
		switch {
		case err == nil && l.n == 0:
			_, err = tx.Exec(ctx, "DELETE FROM likes WHERE id = (SELECT min(id) FROM likes)")
		case err == nil && l.n == 1:
			_, err = tx.Exec(ctx, "UPDATE likes SET post_id = $1 WHERE id = (SELECT min(id) + 5 FROM likes)", l.id)
		}
		return err
	}, "likes")
	return []*queue{outbox, rows}
}

func startKafkaQueue(t testing.TB) *queue {
	server := proctest.StartKafka(t)
	// Disable idempotence, because without it a producer can continue after any error. A duplicate
	// does no harm, because the expected sums come from the topic.
	client, err := kgo.NewClient(kgo.SeedBrokers(server.Addr), kgo.DefaultProduceTopic("likes"), kgo.DisableIdempotentWrite(), kgo.UnknownTopicRetries(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return &queue{
		name: "kafka", config: "type: kafka\nbrokers: [" + server.Addr + "]\ntopic: likes\n", broker: server,
		write: func(ctx context.Context, likes []like) error {
			var records []*kgo.Record
			for _, l := range likes {
				records = append(records, &kgo.Record{Key: fmt.Append(nil, l.id), Value: []byte(l.String())})
			}
			return client.ProduceSync(ctx, records...).FirstErr()
		},
		sums: func(ctx context.Context) (map[uint64]int64, error) {
			left, err := messagesOf(ctx, client)
			if err != nil {
				return nil, err
			}
			reader, err := kgo.NewClient(kgo.SeedBrokers(server.Addr), kgo.ConsumeTopics("likes"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
			if err != nil {
				return nil, err
			}
			defer reader.Close()
			sum := total{}
			for left > 0 {
				fetches := reader.PollFetches(ctx)
				if err := fetches.Err0(); err != nil {
					return nil, err
				}
				for r := range fetches.RecordsAll() {
					left--
					if err := sum.add(r.Value); err != nil {
						return nil, err
					}
				}
			}
			return sum, nil
		},
	}
}

// messagesOf returns the number of messages in the topic, which is the sum of the partitions' ends
// because no message expires.
func messagesOf(ctx context.Context, client *kgo.Client) (messages int64, err error) {
	topic := kmsg.NewListOffsetsRequestTopic()
	topic.Topic = "likes"
	for partition := range int32(proctest.KafkaPartitions) {
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Partition, p.Timestamp = partition, -1 // -1 requests the end of the partition
		topic.Partitions = append(topic.Partitions, p)
	}
	request := kmsg.NewPtrListOffsetsRequest()
	request.Topics = append(request.Topics, topic)
	answer, err := request.RequestWith(ctx, client)
	if err != nil {
		return 0, err
	}
	for _, topic := range answer.Topics {
		for _, p := range topic.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return 0, err
			}
			messages += p.Offset
		}
	}
	return messages, nil
}

// succeeds repeats try until it returns no error.
func succeeds(t testing.TB, what string, try func(ctx context.Context) error) {
	t.Helper()
	for end := time.Now().Add(must.BecomeMax); ; time.Sleep(20 * time.Millisecond) {
		err := try(t.Context())
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("it never came to be that %s: %v", what, err)
		}
	}
}
