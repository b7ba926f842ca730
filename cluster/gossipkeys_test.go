package cluster

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/countd/countd/admin"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

var (
	keyOne = bytes.Repeat([]byte{1}, 32)
	keyTwo = bytes.Repeat([]byte{2}, 16)
)

// keysIn returns the keys of a directory, which begins with those of a key file.
func keysIn(t *testing.T, dir string, given ...string) (*GossipKeys, bool) {
	t.Helper()
	file := ""
	if len(given) > 0 {
		file = filepath.Join(t.TempDir(), "keys")
		must.Do(t, os.WriteFile(file, []byte(strings.Join(given, "\n")), 0o600))
	}
	k, ignored, err := (&DataDir{path: dir}).OpenGossipKeys(file)
	must.Do(t, err)
	return k, ignored
}

const (
	textOne = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="
	textTwo = "AgICAgICAgICAgICAgICAg=="
)

// change has a node make a change, and returns its answer.
func (k *GossipKeys) change(t *testing.T, action, key string) admin.GossipKeyReport {
	t.Helper()
	change, err := admin.ParseGossipKeyChange(action, key)
	must.Do(t, err)
	request, err := json.Marshal(change)
	must.Do(t, err)
	answer, err := k.Handle(t.Context(), request)
	must.Do(t, err)
	var report admin.GossipKeyReport
	must.Do(t, json.Unmarshal(answer, &report))
	if bytes.Contains(answer, []byte(textOne[:8])) || bytes.Contains(answer, []byte(textTwo[:8])) {
		t.Errorf("the answer shows a key: %s", answer)
	}
	return report
}

func (k *GossipKeys) want(t *testing.T, action, key, refused string, ids ...string) {
	t.Helper()
	report := k.change(t, action, key)
	if (report.Refused == "") != (refused == "") || !strings.Contains(report.Refused, refused) {
		t.Errorf("%s: %q, want %q", action, report.Refused, refused)
	}
	if len(report.Keys) != len(ids) {
		t.Fatalf("%s: %+v, want %v", action, report.Keys, ids)
	}
	for i, id := range ids {
		if report.Keys[i].ID != id || report.Keys[i].Primary != (i == 0) {
			t.Errorf("%s: %+v, want %v", action, report.Keys, ids)
		}
	}
}

// TestGossipKeysChange: each change is on disk, for its owner alone, and there is a node that
// restarts.
func TestGossipKeysChange(t *testing.T) {
	dir := t.TempDir()
	one, two := admin.GossipKeyID(keyOne), admin.GossipKeyID(keyTwo)
	k, _ := keysIn(t, dir, textOne)
	k.want(t, admin.GossipKeyAdd, textTwo, "not encrypted", one) // no gossip yet
	_, err := k.use()
	must.Do(t, err)
	k.want(t, admin.GossipKeyUse, textTwo, "does not have this key", one)
	k.want(t, admin.GossipKeyRemove, textOne, "use another one first", one)
	k.want(t, admin.GossipKeyAdd, textTwo, "", one, two)
	k.want(t, admin.GossipKeyAdd, textTwo, "", one, two)
	k.want(t, admin.GossipKeyUse, two, "", two, one)
	k.want(t, admin.GossipKeyUse, textTwo, "", two, one)
	if ring, err := k.use(); err != nil || !bytes.Equal(ring.GetPrimaryKey(), keyTwo) || len(ring.GetKeys()) != 2 {
		t.Error("memberlist has other keys", err)
	}
	info, err := os.Stat(filepath.Join(dir, gossipKeysFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info, err)
	}
	k, ignored := keysIn(t, dir, textOne)
	if _, err := k.use(); err != nil || ignored {
		t.Error("keys of the file that are in use are said to be ignored", err)
	}
	k.want(t, admin.GossipKeyRemove, one, "", two)
	k.want(t, admin.GossipKeyRemove, one, "", two)
	if _, ignored = keysIn(t, dir, textOne); !ignored {
		t.Error("a key of the file that was removed is used, or not said to be ignored")
	}
	if k, _ = keysIn(t, dir); !k.Encrypts() {
		t.Error("the keys of the directory are not used without a key file")
	}
	must.Do(t, os.WriteFile(filepath.Join(dir, gossipKeysFile), []byte("x\n"), 0o600))
	if _, _, err := (&DataDir{path: dir}).OpenGossipKeys(""); err == nil {
		t.Error("a damaged file is no error")
	}
}

// TestGossipKeyRotates: nodes change from one key to another while they gossip, and one with
// the new key alone joins them.
func TestGossipKeyRotates(t *testing.T) {
	var nodes []*GossipKeys
	start := func(name, key string, join ...string) *Gossip {
		k, _ := keysIn(t, t.TempDir(), key)
		cfg := gossiper(name, join...)
		cfg.Keys = k
		nodes = append(nodes, k)
		return startGossip(t, cfg)
	}
	a := start("a", textOne)
	b := start("b", textOne, a.Addr())
	eventually(t, func() string { return all(sees(a, "a", "b"), sees(b, "a", "b")) })
	for _, action := range []string{admin.GossipKeyAdd, admin.GossipKeyUse} {
		for _, k := range nodes {
			if report := k.change(t, action, textTwo); report.Refused != "" {
				t.Fatal(report.Refused)
			}
		}
	}
	for _, k := range nodes {
		k.change(t, admin.GossipKeyRemove, textOne)
	}
	c := start("c", textTwo, a.Addr())
	eventually(t, func() string { return all(sees(a, "a", "b", "c"), sees(b, "a", "b", "c"), sees(c, "a", "b", "c")) })
}

// TestGossipTransition: nodes of two neighbouring steps hear each other.
func TestGossipTransition(t *testing.T) {
	for _, pair := range [][2]string{{"plain", "accept"}, {"accept", "send"}, {"send", "strict"}} {
		t.Run(pair[0]+" and "+pair[1], func(t *testing.T) {
			start := func(name, step string, join ...string) *Gossip {
				cfg := gossiper(name, join...)
				cfg.Logger = new(proctest.Buffer).Logger()
				if step != "plain" {
					cfg.Keys, _ = keysIn(t, t.TempDir(), textOne)
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

func TestParseGossipKeyChange(t *testing.T) {
	for _, tc := range []struct {
		action, key string
		good        bool
	}{
		{"add", textOne, true}, {"use", textTwo, true}, {"remove", "0011223344556677", true},
		{"add", "0011223344556677", false}, {"use", "", false}, {"use", "AQ==", false}, {"drop", textOne, false}, {"", textOne, false},
	} {
		if _, err := admin.ParseGossipKeyChange(tc.action, tc.key); (err == nil) != tc.good {
			t.Errorf("%s %s: %v", tc.action, tc.key, err)
		}
	}
}
