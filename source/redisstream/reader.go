package redisstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/countd/countd/source"
)

const (
	// waitMax bounds the wait of Next for an entry.
	waitMax = 500 * time.Millisecond
	// countFirst is the number of entries that the first fetch requests. It is small, because the
	// size of entries is unknown.
	countFirst = 16
)

// endsMax bounds reader.mu.ends, which grows by one with each fetch until the next Commit.
const endsMax = 10_000

// end is a position that a reader has reached, and the count that Commit records with it in the
// consumer group.
type end struct {
	at    source.Position
	added int64 // number of entries that were ever added below the position
}

// reader reads a stream. Each read is one transaction that also reads the stream's counters, which
// show whether entries were removed between two reads. Only Commit may be called during a read.
type reader struct {
	b     *Broker
	group string          // name of the consumer group, which is missing if the stream was created again
	next  source.Position // next position to read
	// added is the number of entries ever added below next; valid only if counted is set.
	added   int64
	counted bool
	// count is the number of entries that the next fetch requests: as many as fit into
	// FetchBytesMax if they are as large as those of the last fetch. It grows slowly, because an
	// answer that is too large does not arrive in time.
	count int
	// last is the mark of the highest entry that was read or, before the first entry, the parameter
	// found of Read. Each read compares it with the stream, because the stream may be replaced at
	// any time: by a restored or promoted server behind a new connection, or by a command such as
	// RESTORE, COPY or RENAME.
	last source.Mark

	mu struct {
		sync.Mutex
		ends []end // ascending, beginning at the last committed position
	}
}

// Read returns a reader. It returns a *source.StalledError if entries at or above position from may
// be gone.
func (b *Broker) Read(ctx context.Context, _ uint32, from source.Position, found source.Mark) (source.Reader, error) {
	group, err := b.Identity(ctx)
	if err != nil {
		return nil, err
	}
	r := &reader{b: b, group: group, next: from, count: countFirst, last: found}
	_, err = r.read(ctx, 0)
	return r, err
}

// Next returns entries, or none after waitMax.
func (r *reader) Next(ctx context.Context, limit int) (source.Fetched, error) {
	got, err := r.read(ctx, limit)
	if err != nil || len(got.Messages) > 0 {
		return got, err
	}
	wait := &redis.XReadArgs{Streams: []string{r.b.cfg.Key, format(before(got.Next))}, Count: 1, Block: waitMax}
	if err := r.b.client.XRead(ctx, wait).Err(); err != nil {
		if errors.Is(err, redis.Nil) {
			err = nil
		}
		return got, r.b.explain(ctx, err)
	}
	return r.read(ctx, limit)
}

// read returns at most limit entries and does not wait for new ones. If the answer is too large,
// or does not arrive within the client's read timeout, read requests fewer entries.
func (r *reader) read(ctx context.Context, limit int) (source.Fetched, error) {
	for {
		count := min(limit, r.count)
		got, err := r.fetch(ctx, count)
		tooMuch := errors.Is(err, errAnswer) || errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil
		if !tooMuch || count <= 1 {
			return got, r.b.explain(ctx, err)
		}
		r.count = max(1, count/8)
	}
}

// fetch returns at most limit entries. It returns an error if unread entries are gone.
func (r *reader) fetch(ctx context.Context, limit int) (source.Fetched, error) {
	got := source.Fetched{Next: r.next, Left: -1}
	key := r.b.cfg.Key
	tx := r.b.client.TxPipeline()
	stream, groups := tx.XInfoStream(ctx, key), tx.XInfoGroups(ctx, key)
	entries := tx.XRead(ctx, &redis.XReadArgs{Streams: []string{key, format(before(r.next))}, Count: int64(max(limit, 1)), Block: -1})
	from := r.next // if there is no last entry, compare ignores what readTwo reads
	if r.last.Exists() {
		from = r.last.Position
	}
	passed := r.b.readTwo(ctx, tx, from)
	if _, err := tx.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return got, executed(err, stream, groups, entries, passed)
	}
	next := entriesOf(entries)
	deleted, err := r.deleted(stream.Val())
	if err != nil {
		return got, err
	}
	if deleted != (source.Position{}) {
		r.counted = false // the number of entries that are gone below deleted is unknown
		next = slices.DeleteFunc(next, func(e redis.XMessage) bool {
			p, err := parse(e.ID)
			return err == nil && deleted.Less(p)
		})
	}
	if err := r.judge(stream.Val(), groups.Val(), deleted); err != nil {
		return got, err
	}
	if err := r.compare(stream.Val(), entriesOf(passed)); err != nil {
		return got, err
	}
	if deleted != (source.Position{}) && len(next) == 0 {
		return got, source.Lost(after(deleted), "entries up to %s were deleted before they were read; position is %s", format(deleted), r.next)
	}
	if limit > 0 && len(next) > 0 {
		if err := r.take(&got, next); err != nil {
			return got, err
		}
	}
	if last, err := parse(stream.Val().LastGeneratedID); err == nil && after(last) == r.next && deleted == (source.Position{}) {
		r.added, r.counted = stream.Val().EntriesAdded, true
	}
	if r.counted {
		r.reached(end{r.next, r.added})
		got.Left = max(0, stream.Val().EntriesAdded-r.added)
	}
	return got, nil
}

// deleted returns the position of the last deleted entry at or above r.next, or zero if there is
// none. The reader returns the remaining entries below that entry before the source stalls, so that
// a seek past the deleted entry skips none of them.
func (r *reader) deleted(stream *redis.XInfoStream) (source.Position, error) {
	last, err := parse(stream.MaxDeletedEntryID)
	if err != nil || stream.EntriesAdded < stream.Length {
		return last, source.Stalled("Redis does not count the entries that were added: version 7.0 or newer is needed")
	}
	if stream.EntriesAdded == stream.Length || last.Less(r.next) {
		return source.Position{}, nil
	}
	return last, nil
}

// Again returns the first two entries from one position up to another. The highest deleted id shows
// whether a missing entry was deleted or lost.
func (b *Broker) Again(ctx context.Context, _ uint32, from, to source.Position, _ func()) (source.Again, error) {
	tx := b.client.TxPipeline()
	info := tx.XInfoStream(ctx, b.cfg.Key)
	read := b.readTwo(ctx, tx, from)
	if _, err := tx.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return source.Again{}, b.explain(ctx, executed(err, info, read))
	}
	return b.between(info.Val(), entriesOf(read), from, to)
}

// readTwo adds a command to a transaction that reads the first two entries at or above a position.
// The first entry should be that of a mark. The second one shows whether another entry follows
// below a shard's position.
func (b *Broker) readTwo(ctx context.Context, tx redis.Pipeliner, p source.Position) *redis.XStreamSliceCmd {
	return tx.XRead(ctx, &redis.XReadArgs{Streams: []string{b.cfg.Key, format(before(p))}, Count: 2, Block: -1})
}

// entriesOf returns the entries of an answer about one stream.
func entriesOf(read *redis.XStreamSliceCmd) []redis.XMessage {
	if streams := read.Val(); len(streams) > 0 {
		return streams[0].Messages
	}
	return nil
}

// between returns the result of Again, given the first two entries at or above from.
func (b *Broker) between(stream *redis.XInfoStream, entries []redis.XMessage, from, to source.Position) (source.Again, error) {
	var again source.Again
	for _, e := range entries {
		m, err := b.message(e)
		if err != nil {
			return again, err
		}
		if m.Position.Less(to) {
			again.Messages = append(again.Messages, m)
		}
	}
	if again.Whole = stream.EntriesAdded == stream.Length; again.Whole || stream.Length == 0 {
		return again, nil
	}
	first, err := parse(stream.FirstEntry.ID)
	if err != nil {
		return again, err
	}
	deleted, err := parse(stream.MaxDeletedEntryID)
	again.Whole = !from.Less(first) && deleted.Less(from)
	return again, err
}

// executed returns the error of a failed transaction. If a command was refused, only the error of
// that command has the reason.
func executed(err error, commands ...redis.Cmder) error {
	for _, of := range commands {
		if redis.IsExecAbortError(err) && of.Err() != nil {
			err = of.Err()
		}
	}
	return err
}

// judge returns a *source.StalledError if an entry at or above r.next was lost or trimmed; fetch
// handles deleted entries. It sets r.added if the counters allow that.
func (r *reader) judge(stream *redis.XInfoStream, groups []redis.XInfoGroup, deleted source.Position) error {
	i := slices.IndexFunc(groups, func(g redis.XInfoGroup) bool { return g.Name == r.group })
	if i < 0 {
		return source.Stalled("stream %s was made anew: its consumer group %s is gone", r.b.cfg.Key, r.group)
	}
	last, err := parse(stream.LastGeneratedID)
	if err != nil {
		return err
	}
	at := r.next
	if after(last).Less(at) {
		return source.Truncated(after(last), "position %s is beyond the last entry, %s: the stream lost entries; seek to go on", at, format(last))
	}
	if deleted != (source.Position{}) {
		return nil // fetch stalls after it has returned the entries below deleted
	}
	left := after(last) // position of the first remaining entry, or the next position if none remains
	if stream.Length > 0 {
		if left, err = parse(stream.FirstEntry.ID); err != nil {
			return err
		}
	}
	if g := groups[i]; !r.counted {
		switch {
		case left == at: // all removed entries, and no others, are below at
			r.added, r.counted = stream.EntriesAdded-stream.Length, true
		case g.LastDeliveredID == format(before(at)) && g.EntriesRead > 0:
			r.added, r.counted = g.EntriesRead, true
		}
	}
	if !at.Less(left) || after(last) == at {
		return nil // no entry from position at on was trimmed, or everything was read
	}
	// All remaining entries are above at. A trim may have removed unread entries between at and
	// left.
	if !r.counted {
		if stream.EntriesAdded != stream.Length {
			return source.Lost(left, "entries from position %s up to %s may have been trimmed before they were read", at, left)
		}
		r.added, r.counted = 0, true // no entry was ever removed
	}
	if lost := stream.EntriesAdded - r.added - stream.Length; lost != 0 {
		return source.Lost(left, "%d entries from position %s up to %s were trimmed before they were read", lost, at, left)
	}
	return nil
}

// compare returns a *source.StalledError if the stream lacks the entry r.last, or has another entry
// between r.last and r.next. entries has the first two entries at or above the position of r.last.
func (r *reader) compare(stream *redis.XInfoStream, entries []redis.XMessage) error {
	last := r.last
	if !last.Exists() {
		return nil
	}
	to := r.next
	if !last.Position.Less(to) { // a shard is ahead of this reader
		to = after(last.Position)
	}
	again, err := r.b.between(stream, entries, last.Position, to)
	if err != nil {
		return err
	}
	if how := again.Differs(last); how != "" {
		return source.Replaced("entry %s, the last one read, %s", format(last.Position), how)
	}
	return nil
}

// take appends entries to fetched and moves r.next past them.
func (r *reader) take(fetched *source.Fetched, entries []redis.XMessage) error {
	fetched.Messages = make([]source.Message, 0, len(entries))
	for _, e := range entries {
		m, err := r.b.message(e)
		if err != nil {
			return err
		}
		if after(m.Position) == m.Position {
			return source.Stalled("the last entry, %s, has the highest id: no position follows it, and no entry", e.ID)
		}
		fetched.Messages = append(fetched.Messages, m)
		r.next = after(m.Position)
	}
	if n := len(entries); n > 0 {
		if last := source.MarkOf(&fetched.Messages[n-1]); r.last.Position.Less(last.Position) {
			r.last = last
		}
		r.count = max(1, min(n*source.FetchBytesMax/max(1, fetched.Bytes()), r.count+r.count/8+1))
	}
	r.added += int64(len(entries))
	fetched.Next = r.next
	return nil
}

// message returns an entry as a message.
func (b *Broker) message(e redis.XMessage) (source.Message, error) {
	p, err := parse(e.ID)
	return source.Message{Position: p, Value: b.value(e.Values), Time: time.UnixMilli(int64(p.Hi))}, err
}

// value returns the configured field of an entry. If the entry lacks that field, it returns all
// fields as a JSON object.
func (b *Broker) value(fields map[string]any) []byte {
	if v, ok := fields[b.cfg.Field].(string); ok {
		return []byte(v)
	}
	text, err := json.Marshal(fields)
	if err != nil {
		return fmt.Appendf(nil, "%v", fields) // cannot happen, because all fields are strings
	}
	return text
}

// reached records for Commit that the reader has reached a position.
func (r *reader) reached(e end) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.mu.ends)
	if n > 0 && r.mu.ends[n-1].at == e.at {
		n--
	} else if n == endsMax {
		n = 0 // forget the earlier positions; the next Commit may then lack a count
	}
	r.mu.ends = append(r.mu.ends[:n], e)
}

// Commit moves the consumer group to p, so that Redis shows the lag and a later reader can notice
// a trim.
func (r *reader) Commit(ctx context.Context, p source.Position) error {
	args := []any{"XGROUP", "SETID", r.b.cfg.Key, r.group, format(before(p))}
	r.mu.Lock()
	i, exact := slices.BinarySearchFunc(r.mu.ends, p, func(e end, p source.Position) int { return e.at.Compare(p) })
	if r.mu.ends = slices.Delete(r.mu.ends, 0, i); exact {
		args = append(args, "ENTRIESREAD", r.mu.ends[0].added)
	}
	r.mu.Unlock()
	return r.b.explain(ctx, r.b.client.Do(ctx, args...).Err())
}

// Close does nothing, because the broker owns the connections.
func (r *reader) Close() error { return nil }
