package stream

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/shard/rpc"
)

func TestAppendArrivesAsItWasSent(t *testing.T) {
	for name, args := range map[string]*raft.AppendEntriesRequest{
		"entries": testAppend(), "heartbeat": testHeartbeat(), "nothing": {RPCHeader: raft.RPCHeader{ID: []byte{}, Addr: []byte{}}},
	} {
		sent := appendAppend(nil, 1<<63, 1<<32-1, 1<<63+7, args)
		id, group, to, got, err := parseAppend(sent)
		if err != nil || id != 1<<63 || group != 1<<32-1 || to != 1<<63+7 {
			t.Fatalf("%s: %d, %d, %d, %v", name, id, group, to, err)
		}
		if !reflect.DeepEqual(got, args) {
			t.Errorf("%s: got %+v, want %+v", name, got, args)
		}
		for n := range sent {
			if _, _, _, _, err := parseAppend(sent[:n]); !errors.Is(err, wire.ErrBadMessage) {
				t.Fatalf("%s: its first %d bytes were taken: %v", name, n, err)
			}
		}
		if _, _, _, _, err := parseAppend(append(sent, 0)); !errors.Is(err, wire.ErrBadMessage) {
			t.Errorf("%s: a byte behind it was taken: %v", name, err)
		}
	}
}

func TestAppendAnswerArrivesAsItWasSent(t *testing.T) {
	for _, want := range []Answer{
		{}, {id: 7, Opening: 3, Term: 1 << 50, Last: 12, Success: true}, {id: 1 << 63, Term: 2, NoPause: true},
	} {
		if got, err := parseAppendAnswer(appendAnswerOf(nil, &want)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
	long := strings.Repeat("x", 2*rpc.ErrorTextMax)
	got, err := parseAppendAnswer(appendAnswerOf(nil, &Answer{id: 3, err: errors.New(long), Success: true}))
	if err != nil || got.id != 3 || got.Success || got.err == nil || got.err.Error() != long[:rpc.ErrorTextMax] {
		t.Errorf("an error: %+v, %v", got, err)
	}
	for _, bad := range [][]byte{nil, {1}, {1, 3}, {1, 8}, {1, 5, 0}, {1, 0, 0, 0, 0, 0}, {1, 4, 9}} {
		if _, err := parseAppendAnswer(bad); !errors.Is(err, wire.ErrBadMessage) {
			t.Errorf("%v was taken: %v", bad, err)
		}
	}
}

func FuzzParseAppend(f *testing.F) {
	f.Add(appendAppend(nil, 1, 2, 3, testAppend()))
	f.Add(appendAppend(nil, 1, 2, 3, testHeartbeat()))
	f.Add(appendAnswerOf(nil, &Answer{id: 7, Term: 3, Success: true}))
	f.Add(appendAnswerOf(nil, &Answer{id: 7, err: errReplicaBusy}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if id, group, to, args, err := parseAppend(b); err == nil {
			sent := appendAppend(nil, id, group, to, args)
			_, _, _, again, err := parseAppend(sent)
			if err != nil || !bytes.Equal(sent, appendAppend(nil, id, group, to, again)) {
				t.Fatalf("%x: %+v was read back as %+v, %v", b, args, again, err)
			}
		}
		if a, err := parseAppendAnswer(b); err == nil {
			again, err := parseAppendAnswer(appendAnswerOf(nil, &a))
			if err != nil || again.id != a.id || again.Term != a.Term || again.Success != a.Success || (again.err == nil) != (a.err == nil) {
				t.Fatalf("%x: %+v was read back as %+v, %v", b, a, again, err)
			}
		}
	})
}
