package bulk

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
)

const redisStateVersion = 1

// expiringKeysMax bounds the keys with a time to live that a warning names.
const expiringKeysMax = 5

// ErrBadRedisState is returned for a progress file that this program did not write.
var ErrBadRedisState = errors.New("not a progress file of countctl import redis://")

// RedisState is the progress file of an import: the source, the target and the progress.
type RedisState struct {
	Version  int      `json:"version"`
	Redis    string   `json:"redis"`   // address and database, for a person to read
	RunID    string   `json:"run_id"`  // run id of the Redis process, because another process does not understand its cursors
	Addr     string   `json:"addr"`    // address of countd, for a person to read
	Cluster  string   `json:"cluster"` // id of its cluster
	Patterns []string `json:"patterns"`
	Mapping  []string `json:"mapping,omitempty"`
	Place    Place    `json:"place"`
	// Keyspaces has the numbers of the keyspaces' first Raft groups, by name. No two keyspaces ever
	// have the same number. It is 0 if the server did not report it.
	Keyspaces map[string]uint32 `json:"keyspaces,omitempty"`
	// Fence is the fence of all runs that used this file.
	Fence Fence `json:"fence,omitzero"`

	Keys    int64 `json:"keys"`    // keys that were read
	Values  int64 `json:"values"`  // values that were copied
	Ignored int64 `json:"ignored"` // keys, and fields of hashes, that match no pattern or column
	Bad     int64 `json:"bad"`     // values that were rejected

	Expiring     int64    `json:"expiring,omitempty"`      // keys that were copied and have a time to live
	ExpiringKeys []string `json:"expiring_keys,omitempty"` // the first of them

	Given []int64 `json:"given,omitempty"` // values that were copied, by pattern
	Came  Names   `json:"came,omitempty"`  // number of values, by their column's name in Redis
	Left  Names   `json:"left,omitempty"`  // number of ignored keys and fields, by the same name
}

// Place is where the iteration continues.
type Place struct {
	Pattern int    `json:"pattern"` // index in Patterns
	Cursor  uint64 `json:"cursor"`  // cursor of its SCAN
}

// Begin returns the state of an import that has not begun. earlier is the progress file of
// an earlier run of any import, or zero. Begin keeps its fence, because writes of that run
// may still be under way.
func (s RedisState) Begin(earlier RedisState) RedisState {
	s.Version, s.Fence = redisStateVersion, earlier.Fence
	return s
}

// SameImport reports whether both belong to the same import, whatever their progress.
func (s RedisState) SameImport(other RedisState) bool {
	return s.Redis == other.Redis && s.RunID == other.RunID && s.Cluster == other.Cluster &&
		slices.Equal(s.Patterns, other.Patterns) && slices.Equal(s.Mapping, other.Mapping) && maps.Equal(s.Keyspaces, other.Keyspaces)
}

// add moves the position past a page.
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

// namesMax bounds a Names, because a hash with ids as fields may have any number of names.
const namesMax = 1000

// Names counts names of keys and fields, up to namesMax names.
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
