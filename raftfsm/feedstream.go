package raftfsm

import (
	"cmp"
	"encoding/binary"
	"fmt"

	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/spill"
)

// The feeds of a snapshot, in sections of about feedSectionBytes:
//
//	feeds:  users (4) | key (8), followees (4), followees as in an op … by the users' hashes
//
// If feedGroups is set in the number of followees, groups.go's form of the user's groups
// follows them. An older program refuses such a snapshot.
//
// The hash is that of spill.Hash; it orders all users of the stream.
const (
	feedSectionBytes = 1 << 20
	feedGroups       = 1 << 31
)

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
	for s.view.More() {
		var failed error
		err := w.Section(codec.StreamFeeds, func(b []byte) []byte {
			start, users := len(b), uint32(0)
			b = append(b, 0, 0, 0, 0)
			for s.view.More() && len(b)-start < feedSectionBytes {
				var key uint64
				var body []byte
				if key, body, failed = s.view.Next(); failed != nil {
					break
				}
				var groups []byte
				followees, groups = decodeFeed(followees[:0], body)
				n := uint32(len(followees))
				if len(groups) > 0 {
					n |= feedGroups
				}
				b = binary.LittleEndian.AppendUint64(b, key)
				b = appendFolloweeList(binary.LittleEndian.AppendUint32(b, n), followees)
				b = append(b, groups...)
				users++
			}
			binary.LittleEndian.PutUint32(b[start:], users)
			return b
		})
		if err = cmp.Or(err, failed); err != nil {
			return err
		}
	}
	return nil
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
	followees []Followee
	hash      uint64 // of the previous user
	behind    bool   // there is a previous user
}

// section calls visit with each user of a section.
func (r *feedReader) section(p []byte, visit func(user uint64, followees []Followee, groups []Group) error) error {
	if len(p) < 4 {
		return fmt.Errorf("%w: feeds of %d bytes", codec.ErrSnapshot, len(p))
	}
	users := binary.LittleEndian.Uint32(p)
	p = p[4:]
	for range users {
		if len(p) < 12 {
			return fmt.Errorf("%w: feed of %d bytes", codec.ErrSnapshot, len(p))
		}
		key, n := binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint32(p[8:])
		hash, hasGroups := spill.Hash(key), n&feedGroups != 0
		if n &^= feedGroups; n < 1 && !hasGroups || n > FolloweesMax || r.behind && hash <= r.hash {
			return fmt.Errorf("%w: feed of user %d with %d followees", codec.ErrSnapshot, key, n)
		}
		var ok bool
		if r.followees, p, ok = parseFolloweeList(r.followees[:0], p[12:], int(n)); !ok {
			return fmt.Errorf("%w: followees of user %d", codec.ErrSnapshot, key)
		}
		var groups []Group
		if hasGroups {
			if groups, p, ok = parseGroups(p, r.followees); !ok {
				return fmt.Errorf("%w: groups of user %d", codec.ErrSnapshot, key)
			}
		}
		r.hash, r.behind = hash, true
		if err := visit(key, r.followees, groups); err != nil {
			return err
		}
	}
	if len(p) > 0 {
		return fmt.Errorf("%w: %d bytes behind the feeds", codec.ErrSnapshot, len(p))
	}
	return nil
}
