package cluster

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

const (
	textOne   = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="
	textTwo   = "AgICAgICAgICAgICAgICAg=="
	textThree = "AwMDAwMDAwMDAwMDAwMDAw=="
)

// openKeys returns the keys of a file with these lines.
func openKeys(t *testing.T, lines ...string) *GossipKeys {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys")
	must.Do(t, os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600))
	k, err := OpenGossipKeys(path)
	must.Do(t, err)
	return k
}

// reload replaces the lines of the file and makes the node read it.
func (k *GossipKeys) reload(t *testing.T, lines ...string) error {
	t.Helper()
	must.Do(t, os.WriteFile(k.path, []byte(strings.Join(lines, "\n")), 0o600))
	return k.Reload()
}

// TestGossipKeysReload: a reload uses the keys of the file. If the file is invalid or skips a step,
// the node keeps its keys.
func TestGossipKeysReload(t *testing.T) {
	one, two := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 16)
	k := openKeys(t, textOne)
	for _, step := range []struct {
		name  string
		lines []string
		err   error
		want  [][]byte // keys after the reload; the node encrypts with the first
	}{
		{"the same keys", []string{textOne}, nil, [][]byte{one}},
		{"no key", []string{"# none"}, ErrBadGossipKeys, [][]byte{one}},
		{"a new first key", []string{textTwo, textOne}, ErrGossipKeyStep, [][]byte{one}},
		{"another key alone", []string{textTwo}, ErrGossipKeyStep, [][]byte{one}},
		{"a key more", []string{textOne, textTwo}, nil, [][]byte{one, two}},
		{"without the key in use", []string{textTwo}, ErrGossipKeyStep, [][]byte{one, two}},
		{"the other key first", []string{textTwo, textOne}, nil, [][]byte{two, one}},
		{"without the former key", []string{textTwo}, nil, [][]byte{two}},
		{"two keys more", []string{textTwo, textOne, textThree}, nil, [][]byte{two, one, bytes.Repeat([]byte{3}, 16)}},
		{"without both", []string{textTwo}, nil, [][]byte{two}},
	} {
		if err := k.reload(t, step.lines...); !errors.Is(err, step.err) {
			t.Errorf("%s: %v, want %v", step.name, err, step.err)
		}
		if got := k.ring.GetKeys(); !bytes.Equal(bytes.Join(got, nil), bytes.Join(step.want, nil)) {
			t.Errorf("%s: %d keys, want %d", step.name, len(got), len(step.want))
		}
	}
	must.Do(t, os.Remove(k.path))
	if err := k.Reload(); !errors.Is(err, os.ErrNotExist) || len(k.ring.GetKeys()) != 1 {
		t.Errorf("without the file: %v", err)
	}
}

// TestGossipKeyRotates: nodes change from one key to another while they gossip, and a node with only the new key joins them.
func TestGossipKeyRotates(t *testing.T) {
	var nodes []*GossipKeys
	start := func(name, key string, join ...string) *Gossip {
		cfg := gossiper(name, join...)
		cfg.Keys = openKeys(t, key)
		nodes = append(nodes, cfg.Keys)
		return startGossip(t, cfg)
	}
	a := start("a", textOne)
	b := start("b", textOne, a.Addr())
	eventually(t, func() string { return all(sees(a, "a", "b"), sees(b, "a", "b")) })
	for _, lines := range [][]string{{textOne, textTwo}, {textTwo, textOne}, {textTwo}} {
		for _, k := range nodes {
			must.Do(t, k.reload(t, lines...))
		}
	}
	c := start("c", textTwo, a.Addr())
	eventually(t, func() string { return all(sees(a, "a", "b", "c"), sees(b, "a", "b", "c"), sees(c, "a", "b", "c")) })
}

// TestGossipTransition: nodes at two neighbouring steps of the transition see each other.
func TestGossipTransition(t *testing.T) {
	for _, pair := range [][2]string{{"plain", "accept"}, {"accept", "send"}, {"send", "strict"}} {
		t.Run(pair[0]+" and "+pair[1], func(t *testing.T) {
			start := func(name, step string, join ...string) *Gossip {
				cfg := gossiper(name, join...)
				cfg.Logger = new(proctest.Buffer).Logger()
				if step != "plain" {
					cfg.Keys = openKeys(t, textOne)
				}
				if step == "accept" || step == "send" {
					cfg.Transition = GossipTransition(step)
				}
				return startGossip(t, cfg)
			}
			a := start("a", pair[0])
			b := start("b", pair[1], a.Addr())
			eventually(t, func() string { return all(sees(a, "a", "b"), sees(b, "a", "b")) })
		})
	}
}
