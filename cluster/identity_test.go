package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func reopened(t *testing.T, d *DataDir) *DataDir {
	t.Helper()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	return open(t, d.Path(), "")
}

func TestClusterIsWrittenOnceAndKept(t *testing.T) {
	d := open(t, t.TempDir(), "a")
	key := d.Identity.Key()
	if err := d.SetPromised("a.00000000,b.00000000"); err != nil {
		t.Fatal(err)
	}
	x, y := strings.Repeat("0a", clusterIDBytes), strings.Repeat("0b", clusterIDBytes)
	if err := d.SetJoining(x); err != nil {
		t.Fatal(err)
	}
	d = reopened(t, d)
	if id := d.Identity; id.Joining != x || id.Promised != "a.00000000,b.00000000" || id.ClusterID != "" {
		t.Fatalf("before it joined: %+v", id)
	}
	if err := d.SetCluster(x, false); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func() error{
		"another cluster": func() error { return d.SetCluster(y, true) },
		"the same again":  func() error { return d.SetCluster(x, false) },
		"a promise":       func() error { return d.SetPromised("a,b") },
		"a wish to join":  func() error { return d.SetJoining(y) },
	} {
		if err := change(); !errors.Is(err, ErrHasCluster) {
			t.Errorf("%s: error %v, want ErrHasCluster", name, err)
		}
	}
	d = reopened(t, d)
	want := Identity{Format: identityFormat, NodeID: "a", Instance: d.Identity.Instance, ClusterID: x}
	if d.Identity != want || d.Identity.Key() != key {
		t.Errorf("identity %+v, want %+v", d.Identity, want)
	}
}

func TestUnreadableIdentityIsNotWritten(t *testing.T) {
	d := open(t, t.TempDir(), "a")
	was := d.Identity
	if err := d.SetCluster("no id", true); !errors.Is(err, ErrBadIdentity) {
		t.Errorf("error %v, want ErrBadIdentity", err)
	}
	if d = reopened(t, d); d.Identity != was {
		t.Errorf("identity %+v, was %+v", d.Identity, was)
	}
}

func TestFounderIsKept(t *testing.T) {
	d := open(t, t.TempDir(), "a")
	if err := d.SetCluster(strings.Repeat("0a", clusterIDBytes), true); err != nil {
		t.Fatal(err)
	}
	if d = reopened(t, d); !d.Identity.Founder {
		t.Errorf("identity %+v is no founder's", d.Identity)
	}
}

func TestNodeOfKey(t *testing.T) {
	for key, want := range map[string]string{
		"a.01234567": "a", "a.b.c.01234567": "a.b.c", strings.Repeat("n", 64) + ".89abcdef": strings.Repeat("n", 64),
		"a": "", ".01234567": "", "a.0123456": "", "a.ABCDEF01": "", "a b.01234567": "", "a-01234567": "", "": "",
	} {
		if got := NodeOfKey(key); got != want {
			t.Errorf("key %q: node id %q, want %q", key, got, want)
		}
	}
}

func TestOpenedGroupsAreKept(t *testing.T) {
	d := open(t, t.TempDir(), "a")
	for _, n := range []uint32{7, 0, 4294967295, 7} {
		if err := d.GroupOpened(n); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.GroupRemoved(7); err != nil {
		t.Fatal(err)
	}
	if err := d.GroupRemoved(8); err != nil { // the node never had this group
		t.Fatal(err)
	}
	d = reopened(t, d)
	for n, want := range map[uint32]bool{0: true, 7: false, 8: false, 4294967295: true} {
		if got := d.WasOpened(n); got != want {
			t.Errorf("group %d was opened: %v, want %v", n, got, want)
		}
	}
}

func TestOpenedGroupIsNotForgottenWhenTheDiskFails(t *testing.T) {
	d := open(t, t.TempDir(), "a")
	if err := d.GroupOpened(1); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(d.Path(), openedFile+".tmp"), 0o700); err != nil { // so that the file cannot be written
		t.Fatal(err)
	}
	if err := d.GroupOpened(2); err == nil || d.WasOpened(2) {
		t.Errorf("group 2: error %v, opened %v", err, d.WasOpened(2))
	}
	if err := d.GroupRemoved(1); err == nil || !d.WasOpened(1) {
		t.Errorf("group 1: error %v, opened %v", err, d.WasOpened(1))
	}
}

func TestLostGroupsRecordIsRefused(t *testing.T) {
	d := open(t, t.TempDir(), "a")
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(d.Path(), openedFile)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenDataDir(d.Path(), ""); !errors.Is(err, ErrGroupsLost) {
		t.Errorf("error %v, want ErrGroupsLost", err)
	}
	for name, raw := range map[string]string{
		"empty":          "",
		"later format":   `{"format":2,"groups":[]}`,
		"not ascending":  `{"format":1,"groups":[2,1]}`,
		"twice":          `{"format":1,"groups":[1,1]}`,
		"negative":       `{"format":1,"groups":[-1]}`,
		"another object": `{"format":1,"groups":[]}{}`,
	} {
		if err := os.WriteFile(path, appendChecksum([]byte(raw), []byte(raw)), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenDataDir(d.Path(), ""); !errors.Is(err, ErrBadIdentity) {
			t.Errorf("%s: error %v, want ErrBadIdentity", name, err)
		}
	}
}

// TestStartCutShort: a first start may end between any two of its writes.
func TestStartCutShort(t *testing.T) {
	dir := t.TempDir()
	if _, err := loadOpened(dir, false); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, identityFile+".tmp"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := open(t, dir, "a")
	if err := d.GroupOpened(3); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, identityFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenDataDir(dir, "a"); !errors.Is(err, ErrIdentityLost) {
		t.Errorf("error %v, want ErrIdentityLost: the directory had a replica", err)
	}
}

func FuzzParseOpened(f *testing.F) {
	f.Add([]byte(`{"format":1,"groups":[0,1,64]}`))
	f.Add([]byte(`{"format":1}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		groups, err := parseOpened(raw)
		if err != nil {
			if !errors.Is(err, ErrBadIdentity) {
				t.Fatalf("error %v, want ErrBadIdentity", err)
			}
			return
		}
		if !slices.IsSorted(groups) || len(slices.Compact(slices.Clone(groups))) != len(groups) {
			t.Fatalf("groups %v", groups)
		}
	})
}

// TestForeignDirIsRefused checks that a node creates no files in a directory with foreign files, and accepts the root of a new
// volume.
func TestForeignDirIsRefused(t *testing.T) {
	for name, test := range map[string]struct {
		files  []string
		refuse bool
	}{
		"empty":             {nil, false},
		"of somebody else":  {[]string{"main.go"}, true},
		"a new volume":      {[]string{"lost+found", ".snapshot"}, false},
		"a start cut short": {[]string{"node.json.tmp", "notes.txt"}, false},
		"of a node":         {[]string{"LOCK", "notes.txt"}, false},
	} {
		dir := t.TempDir()
		for _, file := range test.files {
			if err := os.WriteFile(filepath.Join(dir, file), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		d, err := OpenDataDir(dir, "")
		if errors.Is(err, ErrForeignDir) != test.refuse || err != nil && !test.refuse {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
			continue
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != len(test.files) {
			t.Errorf("%s: it left %v, %v", name, left, err)
		}
	}
}
