package raftfsm

import (
	"encoding/binary"
	"fmt"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/spill"
)

// The body of a user in sections of feeds:
//
//	stamp, 0 for none (uvarint) | followees as in an op | groups as in groups.go, or 0 (1) for none
func (f *feed) capture() captured { return &feedSnapshot{view: f.bodies.Capture(), sum: f.sum} }

// feedSnapshot is a captured shard of feeds. A snapshot contains all feeds, including
// those on disk.
type feedSnapshot struct {
	inMemory
	view *spill.View
	sum  uint64
}

func (s *feedSnapshot) write(w *codec.StreamWriter) error {
	var followees []Followee
	return writeBodies(w, codec.StreamFeeds, s.view, func(b, body []byte) []byte {
		var groups []byte
		var stamp uint64
		followees, stamp, groups = decodeFeed(followees[:0], body)
		if len(groups) == 0 {
			groups = []byte{0}
		}
		return append(appendFolloweeList(binary.AppendUvarint(b, stamp), followees), groups...)
	})
}

func (s *feedSnapshot) rows() uint64   { return s.view.Keys }
func (s *feedSnapshot) digest() uint64 { return s.sum }
func (s *feedSnapshot) release()       { s.view.Close() }

func (f *feed) load(_ *codec.StreamReader, kind byte, p []byte) error {
	if kind != codec.StreamFeeds {
		return misplaced(kind)
	}
	err := f.loading.section(p, func(user uint64, followees []Followee, groups []Group) error {
		f.was, f.now = f.was[:0], append(f.now[:0], followees...)
		f.wasGroups, f.nowGroups = nil, groups
		f.wasStamp, f.nowStamp = 0, f.loading.stamp
		f.replace(user)
		return nil
	})
	if err != nil {
		return err
	}
	return f.bodies.SpillLoaded(f.loading.hash)
}

// feedReader decodes the sections of feeds of a stream, in order.
type feedReader struct {
	bodyReader
	followees []Followee
	stamp     uint64 // of the user that is visited, or 0
}

// section calls visit with each user of a section.
func (r *feedReader) section(p []byte, visit func(user uint64, followees []Followee, groups []Group) error) error {
	return r.bodyReader.section(p, func(user uint64, p *wire.Reader) error {
		r.stamp = p.Uint()
		r.followees = readFollowees(r.followees[:0], p)
		groups := readGroups(p, r.followees)
		if p.Err != nil || len(r.followees) == 0 && (r.stamp > 0 || len(groups) == 0) {
			return fmt.Errorf("%w: feed of user %d", codec.ErrSnapshot, user)
		}
		return visit(user, r.followees, groups)
	})
}
