package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func open(t *testing.T, dir, nodeID string) *DataDir {
	t.Helper()
	d, err := OpenDataDir(dir, nodeID)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.KeepIdentity(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func TestIdentityIsMadeOnceAndKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "data")
	d := open(t, dir, "")
	first := d.Identity
	if !ValidNodeID(first.NodeID) || NodeOfKey(first.Key()) != first.NodeID || first.ClusterID != "" {
		t.Fatalf("made identity %+v", first)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	for _, asked := range []string{"", first.NodeID} {
		again := open(t, dir, asked)
		if again.Identity != first {
			t.Errorf("node id asked %q: identity %+v, was %+v", asked, again.Identity, first)
		}
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestIdentityThatWasNotKeptIsNobodys(t *testing.T) {
	dir := t.TempDir()
	d, err := OpenDataDir(dir, "a")
	if err != nil || d.Identity.NodeID != "a" {
		t.Fatalf("identity %+v, %v", d.Identity, err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if got := open(t, dir, "b").Identity.NodeID; got != "b" {
		t.Errorf("the directory is node %q's", got)
	}
}

func TestTwoDirectoriesAreTwoNodes(t *testing.T) {
	a, b := open(t, t.TempDir(), ""), open(t, t.TempDir(), "")
	if a.Identity.NodeID == b.Identity.NodeID || a.Identity.Instance == b.Identity.Instance {
		t.Errorf("identities collide: %+v, %+v", a.Identity, b.Identity)
	}
}

func TestAnotherNodeIDIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := open(t, dir, "a").Close(); err != nil {
		t.Fatal(err)
	}
	_, err := OpenDataDir(dir, "b")
	if !errors.Is(err, ErrNodeIDDiffers) || !strings.Contains(err.Error(), `"a"`) {
		t.Fatalf("error %v, want ErrNodeIDDiffers naming both", err)
	}
	open(t, dir, "a") // the refusal released the lock
}

func TestNodeIDBounds(t *testing.T) {
	for _, tc := range []struct {
		id string
		ok bool
	}{
		{"a", true}, {"Node-1.zone_b", true}, {strings.Repeat("x", 64), true},
		{strings.Repeat("x", 65), false}, {"a b", false}, {"a/b", false}, {"é", false}, {"a\n", false},
	} {
		_, err := OpenDataDir(t.TempDir(), tc.id)
		if tc.ok != (err == nil) || !tc.ok && !errors.Is(err, ErrBadNodeID) {
			t.Errorf("node id %q: error %v", tc.id, err)
		}
	}
}

func TestSecondHolderIsRefusedWithThePID(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir, "")
	_, err := OpenDataDir(dir, "")
	if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), "pid "+strconv.Itoa(os.Getpid())) {
		t.Fatalf("error %v, want ErrLocked with this pid", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, dir, "")
}

// TestLockGoesWithItsProcess: a killed process leaves no lock that keeps out the next process.
func TestLockGoesWithItsProcess(t *testing.T) {
	dir := os.Getenv("COUNTD_TEST_LOCK_DIR")
	if dir != "" {
		if _, err := OpenDataDir(dir, ""); err != nil {
			t.Fatal(err)
		}
		os.Stdout.WriteString("locked\n")
		select {} // until killed
	}
	dir = t.TempDir()
	holder := exec.Command(os.Args[0], "-test.run=^TestLockGoesWithItsProcess$")
	holder.Env = append(os.Environ(), "COUNTD_TEST_LOCK_DIR="+dir)
	out, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, len("locked\n"))
	if _, err := out.Read(line); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenDataDir(dir, ""); !errors.Is(err, ErrLocked) {
		t.Errorf("while held: error %v, want ErrLocked", err)
	}
	if err := holder.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = holder.Wait()
	open(t, dir, "")
}

// OpenDataDir refuses a file that is too long, without reading the checksum at its end.
func TestLongIdentityIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, identityFile), make([]byte, 10*identityBytesMax), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenDataDir(dir, ""); !errors.Is(err, ErrUnreleased) {
		t.Errorf("error %v, want ErrUnreleased", err)
	}
}

func TestDamagedIdentityIsRefused(t *testing.T) {
	good, err := json.Marshal(newIdentity("a"))
	if err != nil {
		t.Fatal(err)
	}
	for name, raw := range map[string]string{
		"empty":          "",
		"cut short":      string(good[:len(good)-3]),
		"later format":   strings.Replace(string(good), `"format":1`, `"format":4`, 1),
		"no format":      strings.Replace(string(good), `"format":1`, `"format":0`, 1),
		"unknown field":  strings.Replace(string(good), `{`, `{"zone":"x",`, 1),
		"second object":  string(good) + "{}",
		"no instance":    `{"format":1,"node_id":"a","cluster_id":""}`,
		"odd cluster id": strings.Replace(string(good), `"cluster_id":""`, `"cluster_id":"ABCDEF0123456789abcdef0123456789"`, 1),
		"odd joining":    strings.Replace(string(good), `{`, `{"joining":"x",`, 1),
		"bare founder":   strings.Replace(string(good), `{`, `{"founder":true,`, 1),
		"joined and joining": `{"format":1,"node_id":"a","instance":"01234567","cluster_id":"` + strings.Repeat("ab", 16) +
			`","joining":"` + strings.Repeat("ab", 16) + `"}`,
		"no node id": strings.Replace(string(good), `"a"`, `""`, 1),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, identityFile), appendChecksum([]byte(raw), []byte(raw)), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := OpenDataDir(dir, ""); !errors.Is(err, ErrBadIdentity) {
				t.Errorf("error %v, want ErrBadIdentity", err)
			}
		})
	}
}

// OpenDataDir refuses a data directory of an unreleased version. The error names the file.
func TestUnreleasedDirIsRefused(t *testing.T) {
	object := []byte(`{"format":2,"node_id":"a","instance":"01234567","cluster_id":""}` + "\n")
	dir := t.TempDir()
	path := filepath.Join(dir, identityFile)
	if err := os.WriteFile(path, appendChecksum(bytes.Clone(object), object), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenDataDir(dir, ""); !errors.Is(err, ErrUnreleased) || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v, want ErrUnreleased", err)
	}
}

func TestGroupsWithoutIdentityAreRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, groupsDir), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenDataDir(dir, ""); !errors.Is(err, ErrIdentityLost) {
		t.Errorf("error %v, want ErrIdentityLost", err)
	}
}

func FuzzParseIdentity(f *testing.F) {
	good, err := json.Marshal(newIdentity("a"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"format":1}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		id, err := parseIdentity(raw)
		if err != nil {
			if !errors.Is(err, ErrBadIdentity) {
				t.Fatalf("error %v, want ErrBadIdentity", err)
			}
			return
		}
		out, err := json.Marshal(id)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := parseIdentity(out); err != nil || again != id {
			t.Fatalf("%+v came back as %+v, %v", id, again, err)
		}
	})
}
