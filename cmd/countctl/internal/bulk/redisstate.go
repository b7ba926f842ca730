package bulk

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
)

const redisStateVersion = 1

// expiringKeysMax bounds the keys that the warning about keys with a time to live names.
const expiringKeysMax = 5

// ErrBadRedisState is returned for a progress file that this program did not write.
var ErrBadRedisState = errors.New("not a progress file of countctl import redis://")

// RedisState is the content of a progress file: the source of the import, its target and its
// progress.
type RedisState struct {
	Version  int      `json:"version"`
	Redis    string   `json:"redis"`   // address and database, for a person to read
	RunID    string   `json:"run_id"`  // run id of the Redis process; its cursors are not valid for another process
	Addr     string   `json:"addr"`    // address of countd, for a person to read
	Cluster  string   `json:"cluster"` // id of the countd cluster
	Patterns []string `json:"patterns"`
	Mapping  []string `json:"mapping,omitempty"`
	Place    Place    `json:"place"`
	// Keyspaces has the number of the first Raft group of each keyspace, by the keyspace's name. A
	// keyspace that is dropped and created again has another number. The number is 0 if the server
	// did not report it.
	Keyspaces map[string]uint32 `json:"keyspaces,omitempty"`
	// Fence is the fence of all runs that used this file.
	Fence Fence `json:"fence,omitzero"`

	Keys    int64 `json:"keys"`    // number of keys that were read
	Values  int64 `json:"values"`  // values that were copied
	Ignored int64 `json:"ignored"` // number of keys, and of fields of hashes, that match no pattern or column
	Bad     int64 `json:"bad"`     // number of values that were rejected

	Expiring     int64    `json:"expiring,omitempty"`      // number of copied keys that have a time to live
	ExpiringKeys []string `json:"expiring_keys,omitempty"` // the first of these keys

	Given []int64 `json:"given,omitempty"` // number of values that were copied, by index of the pattern
	Came  Names   `json:"came,omitempty"`  // number of copied values, by the name of their column in Redis
	Left  Names   `json:"left,omitempty"`  // number of ignored keys and fields, by the name of their column in Redis
}

// Place is the position where the next run continues.
type Place struct {
	Pattern int    `json:"pattern"` // index in Patterns
	Cursor  uint64 `json:"cursor"`  // SCAN cursor in the keys of the pattern
}

// Begin returns the state of a new import. earlier is the state in the progress file that the new
// import replaces, or zero. Begin keeps that state's Fence, because writes of the earlier import
// may still be in flight.
func (s RedisState) Begin(earlier RedisState) RedisState {
	s.Version, s.Fence = redisStateVersion, earlier.Fence
	return s
}

// SameImport reports whether s and other belong to the same import, whatever their progress.
func (s RedisState) SameImport(other RedisState) bool {
	return s.Redis == other.Redis && s.RunID == other.RunID && s.Cluster == other.Cluster &&
		slices.Equal(s.Patterns, other.Patterns) && slices.Equal(s.Mapping, other.Mapping) && maps.Equal(s.Keyspaces, other.Keyspaces)
}

// add adds the numbers of a page and moves the position past it.
func (s *RedisState) add(p *page) {
	s.Keys += p.keys
	s.Values += p.values
	s.Ignored += p.ignored
	s.Bad += int64(len(p.bad))
	s.Expiring += p.expiring
	s.ExpiringKeys = append(s.ExpiringKeys, p.expiringKeys...)
	s.ExpiringKeys = s.ExpiringKeys[:min(len(s.ExpiringKeys), expiringKeysMax)]
	for len(s.Given) <= p.number {
		s.Given = append(s.Given, 0)
	}
	s.Given[p.number] += p.values
	s.Came, s.Left = s.Came.merge(p.came), s.Left.merge(p.left)
	s.Place = Place{p.number, p.next}
	if p.next == 0 {
		s.Place.Pattern++
	}
}

// ReadRedisState reads a progress file; exists is false if there is none.
func ReadRedisState(path string) (s RedisState, exists bool, err error) {
	return readProgress(path, decodeRedisState)
}

func decodeRedisState(text []byte) (RedisState, error) {
	var s RedisState
	if json.Unmarshal(text, &s) != nil {
		return RedisState{}, ErrBadRedisState
	}
	if s.Version != redisStateVersion || s.Place.Pattern < 0 || s.Place.Pattern > len(s.Patterns) ||
		s.Keys < 0 || s.Values < 0 || s.Ignored < 0 || s.Bad < 0 || s.Expiring < 0 || len(s.ExpiringKeys) > expiringKeysMax ||
		len(s.Given) > len(s.Patterns) || len(s.Given) > 0 && slices.Min(s.Given) < 0 || !s.Came.valid() || !s.Left.valid() {
		return RedisState{}, ErrBadRedisState
	}
	return s, nil
}

// namesMax bounds the names in a Names. A hash may have ids as its fields, and so any number of
// names.
const namesMax = 1000

// Names holds a number for each name. It holds at most namesMax names and ignores further ones.
type Names map[string]int64

// add adds count to the number of a name. The map must not be nil.
func (n Names) add(name string, count int64) {
	if _, ok := n[name]; ok || len(n) < namesMax {
		n[name] += count
	}
}

// merge adds the names and numbers of o to n, and returns the result.
func (n Names) merge(o Names) Names {
	if n == nil && len(o) > 0 {
		n = Names{}
	}
	for name, count := range o {
		n.add(name, count)
	}
	return n
}

func (n Names) valid() bool {
	for _, count := range n {
		if count < 0 {
			return false
		}
	}
	return len(n) <= namesMax
}
