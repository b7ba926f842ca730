package nats

import (
	"errors"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/countd/countd/source"
)

// numbered is a message of a stream that a consumer delivers.
type numbered struct {
	jetstream.Msg
	of jetstream.SequencePair
}

func (numbered) Data() []byte { return nil }
func (m numbered) Metadata() (*jetstream.MsgMetadata, error) {
	return &jetstream.MsgMetadata{Sequence: m.of}, nil
}

// Next first returns the messages before a gap, and then the error for the gap. Otherwise the seek
// that the error names would skip these messages.
func TestMessagesBeforeAGap(t *testing.T) {
	r := &reader{messages: make(chan jetstream.Msg, 3), buffered: source.NewBuffered(), ended: make(chan struct{}), at: 1}
	for i, seq := range []uint64{1, 2, 5} {
		r.messages <- numbered{of: jetstream.SequencePair{Consumer: uint64(i) + 1, Stream: seq}}
	}
	got, err := r.Next(t.Context(), 10)
	if err != nil || len(got.Messages) != 2 || got.Next.Lo != 3 {
		t.Fatalf("fetched %+v, %v, want messages 1 and 2", got, err)
	}
	var lost *source.StalledError
	if _, err = r.Next(t.Context(), 10); !errors.As(err, &lost) || lost.Next.Lo != 5 {
		t.Errorf("then %v", err)
	}
}
