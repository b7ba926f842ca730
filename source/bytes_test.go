package source

import (
	"context"
	"strings"
	"testing"

	"github.com/countd/countd/source/sink"
)

// sizedSink is a Sink that records the number of messages in the largest batch.
type sizedSink struct {
	sink.Sink
	most uint64 // number of messages in the largest batch with ops
}

func (s *sizedSink) Apply(ctx context.Context, b *sink.Batch) (sink.Applied, error) {
	if len(b.Ops) > 0 {
		s.most = max(s.most, b.Next.Lo-b.From.Lo)
	}
	return s.Sink.Apply(ctx, b)
}

// TestBatchBytes: large messages are applied in small batches. A batch that is large enough does
// not linger.
func TestBatchBytes(t *testing.T) {
	q, c := newFakes(1, nil)
	q.oneByOne = true
	for range 40 {
		q.add(like(1, 1) + strings.Repeat(" ", 1<<20))
	}
	cfg := testConfig(t, "")
	cfg.Batch = Bounds{Messages: batchMessagesMax, Linger: Duration(lingerMax)}
	s := &sizedSink{Sink: c.Node()}
	_, stop := startRunnerOn(cfg, q, s)
	eventually(t, "full batches are counted", func() bool { return c.Sums()[1] >= 32 })
	stop()
	if most := FetchBytesMax>>20 + 1; s.most > uint64(most) {
		t.Errorf("a batch has %d messages of 1 MiB, %d are its bound", s.most, most)
	}
}

// TestBuffered: one goroutine adds messages while they fit, and otherwise waits.
func TestBuffered(t *testing.T) {
	b, ended := NewBuffered(), make(chan struct{})
	const size = 3 << 20
	added := make(chan bool)
	go func() {
		for b.Add(size, ended) {
			added <- true
		}
		close(added)
	}()
	for range 3 {
		<-added
	}
	if got := b.Bytes(); got != 3*size {
		t.Errorf("%d bytes", got)
	}
	for range 5 {
		b.Remove(size)
		<-added
	}
	close(ended)
	if <-added {
		t.Error("it adds though it has ended")
	}
}

// TestLetterBatches: many letters of one large message are written in several batches.
func TestLetterBatches(t *testing.T) {
	value := make([]byte, 400)
	letters := make([]Letter, 10)
	for i := range letters {
		letters[i].Value = value
	}
	letters[7].Value = make([]byte, 5000)
	var parts []int
	for part := range LetterBatches(letters, 1000) {
		parts = append(parts, len(part))
	}
	if want := []int{2, 2, 2, 1, 1, 2}; len(parts) != len(want) || parts[4] != 1 {
		t.Errorf("parts of %d letters, want %d", parts, want)
	}
}
