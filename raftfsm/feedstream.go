package raftfsm

import (
	"encoding/binary"
	"fmt"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/raftfsm/codec"
)

// The feeds of a snapshot, in sections of about feedSectionBytes:
//
//	feeds:  users (4) | key (8), followees (4), followees as in an op … by the users' hashes
//
// If feedGroups is set in the number of followees, groups.go's form of the user's groups
// follows them. An older program refuses such a snapshot.
//
// The hash is that of feedHash; it orders all users of the stream.
const (
	feedSectionBytes = 1 << 20
	feedGroups       = 1 << 31
)

// capture captures pages and their records at one moment.
func (f *feed) capture() captured {
	f.pages.mu.Lock()
	defer f.pages.mu.Unlock()
	s := &feedSnapshot{pages: f.pages.pages(), users: uint64(f.pages.users.Load()), sum: f.sum}
	if f.out != nil && f.out.users.Load() > 0 {
		s.out = f.out.records.Capture()
	}
	return s
}

// feedSnapshot is a captured shard of feeds. A snapshot contains all feeds, including
// those on disk.
type feedSnapshot struct {
	inMemory
	pages []*feedPage
	out   *cold.RecordsView // nil for none
	users uint64
	sum   uint64

	body []byte // reused for feeds read from disk
}

func (s *feedSnapshot) write(w *codec.StreamWriter) error {
	var followees []Followee
	var failed error
	user := 0 // index in the page
	for at := 0; at < len(s.pages) && failed == nil; {
		err := w.Section(codec.StreamFeeds, func(b []byte) []byte {
			start, users := len(b), uint32(0)
			b = append(b, 0, 0, 0, 0)
			for at < len(s.pages) && len(b)-start < feedSectionBytes {
				page := s.pages[at]
				if user == page.users() {
					at, user = at+1, 0
					continue
				}
				body, err := s.read(page, user)
				if err != nil {
					failed = err
					break
				}
				var groups []byte
				followees, groups = decodeFeed(followees[:0], body)
				n := uint32(len(followees))
				if len(groups) > 0 {
					n |= feedGroups
				}
				b = binary.LittleEndian.AppendUint64(b, page.key(user))
				b = appendFolloweeList(binary.LittleEndian.AppendUint32(b, n), followees)
				b = append(b, groups...)
				user, users = user+1, users+1
			}
			binary.LittleEndian.PutUint32(b[start:], users)
			return b
		})
		if err != nil {
			return err
		}
	}
	return failed
}

// read returns the followees of user i of a page in their form in memory, valid until
// the next call.
func (s *feedSnapshot) read(page *feedPage, i int) ([]byte, error) {
	body := page.body(i)
	if !isSpilled(body) {
		return body, nil
	}
	b, err := s.out.Get(s.body[:0], feedHash(page.key(i)), spilledVersion(body))
	if err != nil {
		return nil, fmt.Errorf("cannot read the feed of user %d: %w", page.key(i), err)
	}
	s.body = padded(b)
	return s.body, nil
}

func (s *feedSnapshot) rows() uint64   { return s.users }
func (s *feedSnapshot) digest() uint64 { return s.sum }

func (s *feedSnapshot) release() {
	s.pages = nil
	if s.out != nil {
		_ = s.out.Close() // nobody needs the records any more
	}
}

// feedLoading is the state of loading feeds from a stream.
type feedLoading struct {
	reader feedReader
	from   uint64 // feeds of the stream from this hash on are still in memory
}

func (f *feed) load(_ *codec.StreamReader, kind, last byte, p []byte) error {
	if kind != codec.StreamFeeds || last != codec.StreamHead && last != codec.StreamFeeds {
		return misplaced(kind, last)
	}
	err := f.loading.reader.section(p, func(user uint64, followees []Followee, groups []Group) error {
		f.was, f.now = f.was[:0], append(f.now[:0], followees...)
		f.wasGroups, f.nowGroups = nil, groups
		f.replace(user)
		return nil
	})
	if err != nil {
		return err
	}
	return f.spillLoaded()
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
		hash, hasGroups := feedHash(key), n&feedGroups != 0
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
