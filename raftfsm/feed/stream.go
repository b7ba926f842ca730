package feed

import (
	"encoding/binary"
	"fmt"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/spill"
)

// In a section of feeds, the body of a user is:
//
//	stamp, 0 for none (uvarint) | followees as in an op | groups as in groups.go, or 0 (1) for none
func (f *contents) Capture() raftfsm.Captured {
	return &captured{view: f.bodies.Capture(), sum: f.bodies.Digest(), of: f.bodies}
}

// captured is a captured shard of feeds. A snapshot contains all feeds, including
// those on disk.
type captured struct {
	raftfsm.InMemory
	view *spill.View
	sum  uint64
	of   *spill.Bodies
}

func (s *captured) Write(w *codec.StreamWriter) error {
	var followees []Followee
	return raftfsm.WriteBodies(w, codec.StreamFeeds, s.view, func(b, body []byte) []byte {
		var groups []byte
		var stamp uint64
		followees, stamp, groups = decodeBody(followees[:0], body)
		if len(groups) == 0 {
			groups = []byte{0}
		}
		return append(appendFolloweeList(binary.AppendUvarint(b, stampOf(s.of, stamp)), followees), groups...)
	})
}

func (s *captured) Rows() uint64   { return s.view.Keys }
func (s *captured) Digest() uint64 { return s.sum }
func (s *captured) Release()       { s.view.Close() }

func (f *contents) Load(_ *codec.StreamReader, kind byte, p []byte) error {
	if kind != codec.StreamFeeds {
		return raftfsm.Misplaced(kind)
	}
	err := f.loading.section(p, func(user uint64, of *Feed) error {
		f.was, f.now = f.was[:0], append(f.now[:0], of.Followees...)
		f.wasGroups, f.nowGroups = nil, of.Groups
		f.wasStamp, f.nowStamp = 0, f.loading.stamp
		f.replace(user)
		return nil
	})
	if err != nil {
		return err
	}
	return f.bodies.SpillLoaded(f.loading.Hash)
}

// Feed is the body of a user that the visitor of a snapshot receives.
type Feed struct {
	Followees []Followee // ascending by id
	Groups    []Group    // ascending by name
}

// reader decodes the sections of feeds of a stream, in order.
type reader struct {
	raftfsm.BodyReader
	feed  Feed
	stamp uint64 // stamp of the visited user's feed; 0 for none
}

// section calls visit with each user of a section.
func (r *reader) section(p []byte, visit func(user uint64, feed *Feed) error) error {
	return r.Section(p, func(user uint64, p *wire.Reader) error {
		r.stamp = p.Uint()
		f := &r.feed
		f.Followees = readFollowees(f.Followees[:0], p)
		f.Groups = readGroups(p, f.Followees)
		if p.Err != nil || len(f.Followees) == 0 && (r.stamp > 0 || len(f.Groups) == 0) {
			return fmt.Errorf("%w: feed of user %d", codec.ErrSnapshot, user)
		}
		return visit(user, f)
	})
}
