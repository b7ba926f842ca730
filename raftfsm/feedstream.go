package raftfsm

import (
	"encoding/binary"
	"fmt"

	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/spill"
)

// The body of a user in sections of feeds:
//
//	followees (4), followees as in an op
//
// If feedStamped is set in the number of followees, the stamp (uvarint) follows them. If
// feedGroups is set, groups.go's form of the user's groups is last.
const feedGroups = 1 << 31

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
		n := uint32(len(followees))
		if len(groups) > 0 {
			n |= feedGroups
		}
		if stamp > 0 {
			n |= feedStamped
		}
		b = appendFolloweeList(binary.LittleEndian.AppendUint32(b, n), followees)
		if stamp > 0 {
			b = binary.AppendUvarint(b, stamp)
		}
		return append(b, groups...)
	})
}

func (s *feedSnapshot) rows() uint64   { return s.view.Keys }
func (s *feedSnapshot) digest() uint64 { return s.sum }
func (s *feedSnapshot) release()       { s.view.Close() }

func (f *feed) load(_ *codec.StreamReader, kind, last byte, p []byte) error {
	if kind != codec.StreamFeeds || last != codec.StreamHead && last != codec.StreamFeeds {
		return misplaced(kind, last)
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
	return r.bodyReader.section(p, func(user uint64, p []byte) ([]byte, error) {
		if len(p) < 4 {
			return nil, fmt.Errorf("%w: feed of %d bytes", codec.ErrSnapshot, len(p))
		}
		n := binary.LittleEndian.Uint32(p)
		hasGroups, stamped := n&feedGroups != 0, n&feedStamped != 0
		if n &^= feedGroups | feedStamped; n < 1 && stamped || n < 1 && !hasGroups || n > FolloweesMax {
			return nil, fmt.Errorf("%w: feed of user %d with %d followees", codec.ErrSnapshot, user, n)
		}
		var ok bool
		if r.followees, p, ok = parseFolloweeList(r.followees[:0], p[4:], int(n)); !ok {
			return nil, fmt.Errorf("%w: followees of user %d", codec.ErrSnapshot, user)
		}
		if r.stamp = 0; stamped {
			if r.stamp, p, ok = parseStamp(p); !ok {
				return nil, fmt.Errorf("%w: stamp of user %d", codec.ErrSnapshot, user)
			}
		}
		var groups []Group
		if hasGroups {
			if groups, p, ok = parseGroups(p, r.followees); !ok {
				return nil, fmt.Errorf("%w: groups of user %d", codec.ErrSnapshot, user)
			}
		}
		return p, visit(user, r.followees, groups)
	})
}
