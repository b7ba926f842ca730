// Package redisstream reads a Redis stream for package source.
//
// A stream has no identity, and a trim silently removes unread entries. So a source creates a
// consumer group in the stream. The name of the group has a random part, so a stream that was
// created again lacks the group. The group's count of read entries shows whether a trim removed
// unread entries.
package redisstream

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/countd/countd/source"
)

// Broker is a connection to a stream. It has partition 0 only.
type Broker struct {
	client    *redis.Client
	cfg       *source.Config
	answerMax int // bound of the bytes of one answer of Redis
}

// Open returns a broker. It connects when it is used.
func Open(cfg *source.Config, access source.Access) (*Broker, error) {
	return open(cfg, access, answerBytesMax)
}

func open(cfg *source.Config, access source.Access, answerMax int) (*Broker, error) {
	options := &redis.Options{Addr: cfg.Addr}
	if strings.Contains(cfg.Addr, "://") {
		var err error
		if options, err = redis.ParseURL(cfg.Addr); err != nil {
			return nil, fmt.Errorf("addr: %w", err)
		}
	}
	if access.TLS != nil {
		options.TLSConfig = access.TLS
	}
	if cfg.Username != "" {
		options.Username = cfg.Username
	}
	options.Password = access.Password
	options.ContextTimeoutEnabled = true
	options.DialTimeout = cmp.Or(options.DialTimeout, dialTimeout)
	options.Dialer = bounded(redis.NewDialer(options), answerMax)
	return &Broker{client: redis.NewClient(options), cfg: cfg, answerMax: answerMax}, nil
}

// dialTimeout bounds the wait for a connection.
const dialTimeout = 5 * time.Second

// Quiet turns off the log of the Redis client, which also writes each returned error to stderr.
// The log belongs to the whole process, so call Quiet before opening a broker.
func Quiet() { logging.Disable() }

// Close closes the connections.
func (b *Broker) Close() error { return b.client.Close() }

// findGroup returns the name of the source's consumer group. It creates a missing group. It is
// atomic, so two nodes that run it at the same time get the same name.
var findGroup = redis.NewScript(`
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
	for i = 1, #group, 2 do
		if group[i] == 'name' and string.sub(group[i + 1], 1, #ARGV[1]) == ARGV[1] then return group[i + 1] end
	end
end
redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1] .. ARGV[2], '0')
return ARGV[1] .. ARGV[2]`)

// Identity returns the name of the source's consumer group in the stream.
func (b *Broker) Identity(ctx context.Context) (string, error) {
	name, err := findGroup.Run(ctx, b.client, []string{b.cfg.Key}, "countd:"+b.cfg.Name+":", rand.Text()).Text()
	if errors.Is(err, redis.Nil) {
		return "", b.missing()
	}
	return name, err
}

func (b *Broker) missing() error { return source.Stalled("stream %s is missing", b.cfg.Key) }

// Partitions returns partition 0.
func (b *Broker) Partitions(context.Context) ([]uint32, error) { return []uint32{0}, nil }

// Bounds returns the position of the first entry, and the position after the last entry.
func (b *Broker) Bounds(ctx context.Context, _ uint32) (first, end source.Position, err error) {
	info, err := b.client.XInfoStream(ctx, b.cfg.Key).Result()
	if err != nil {
		return first, end, b.explain(ctx, err)
	}
	if end, err = parse(info.LastGeneratedID); err != nil {
		return first, end, err
	}
	end = after(end)
	if info.Length == 0 {
		return end, end, nil
	}
	first, err = parse(info.FirstEntry.ID)
	return first, end, err
}

// explain returns a *source.StalledError if the stream is missing or its entries are too large. If
// the client gave up waiting for an answer before ctx ended, the error names the setting that
// allows more time.
func (b *Broker) explain(ctx context.Context, err error) error {
	if errors.Is(err, errAnswer) {
		return source.Stalled("stream %s has entries that are too large: an answer of Redis with up to five of them is over %d MiB", b.cfg.Key, b.answerMax>>20)
	}
	if err != nil && strings.Contains(err.Error(), "no such key") {
		return b.missing()
	}
	if end, bounded := ctx.Deadline(); errors.Is(err, os.ErrDeadlineExceeded) && (!bounded || time.Now().Before(end)) {
		return fmt.Errorf("no whole answer of Redis arrived in time, which read_timeout in addr sets: %w", err)
	}
	return err
}

// DeadLetter appends letters to the stream of dead letters. If this node ends before Redis
// answers, a letter may be written twice. Its source, partition and position identify it.
func (b *Broker) DeadLetter(ctx context.Context, letters []source.Letter) error {
	for part := range source.LetterBatches(letters, letterBatchBytes) {
		if err := b.add(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

// letterBatchBytes bounds the letters of one pipeline.
const letterBatchBytes = 1 << 20

func (b *Broker) add(ctx context.Context, letters []source.Letter) error {
	_, err := b.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range letters {
			l := &letters[i]
			values := []any{
				"source", l.Source, "partition", l.Partition, "position", l.Position.String(),
				"reason", l.Reason, b.cfg.Field, l.Value,
			}
			if l.Op != "" {
				values = append(values, "op", l.Op)
			}
			p.XAdd(ctx, &redis.XAddArgs{Stream: b.cfg.DeadLetters, Values: values})
		}
		return nil
	})
	return err
}

// Denied reports whether the server refuses the user or a command.
func (b *Broker) Denied(err error) bool {
	if redis.IsAuthError(err) {
		return true
	}
	// The error of a refused script has only a text, which version 7.0 words differently from later
	// versions.
	return slices.ContainsFunc([]string{"NOPERM", "user executing the script can't run", "ACL failure in script"}, func(words string) bool {
		return err != nil && strings.Contains(err.Error(), words)
	})
}

// parse converts the id of an entry to a position.
func parse(id string) (source.Position, error) {
	ms, seq, ok := strings.Cut(id, "-")
	hi, err1 := strconv.ParseUint(ms, 10, 64)
	lo, err2 := strconv.ParseUint(seq, 10, 64)
	if !ok || err1 != nil || err2 != nil {
		return source.Position{}, fmt.Errorf("%q is no id of an entry", id)
	}
	return source.Position{Hi: hi, Lo: lo}, nil
}

// format converts a position to the id of an entry.
func format(p source.Position) string {
	return strconv.FormatUint(p.Hi, 10) + "-" + strconv.FormatUint(p.Lo, 10)
}

// after returns the position that follows p, or p if p is the highest position.
func after(p source.Position) source.Position {
	switch {
	case p.Lo < math.MaxUint64:
		p.Lo++
	case p.Hi < math.MaxUint64:
		p.Hi, p.Lo = p.Hi+1, 0
	}
	return p
}

// before returns the position that precedes p, or zero if p is zero.
func before(p source.Position) source.Position {
	if p == (source.Position{}) {
		return p
	}
	if p.Lo == 0 {
		p.Hi--
	}
	p.Lo--
	return p
}
