package floors

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// knowsKinds are the packages under shard that may name kinds of shards. Package tiering chooses
// which rows and bodies leave memory. Package replica carries the sets of members beside a
// snapshot.
var knowsKinds = []string{"shard/replica", "shard/tiering"}

var ofKind = regexp.MustCompile(`"github\.com/countd/countd/raftfsm/(counters|unread|feed|names|rows)"|\bcodec\.Kind(Counters|Unread|Feed|Board|Names)\b|\bkinds\.(Counters|Unread|Feed|Board|Names|Keyspace[A-Z]\w*)\b`)

// TestShardKnowsNoKind checks that the other packages under shard name no kind of shard. They find
// kinds and their traits in package kinds.
func TestShardKnowsNoKind(t *testing.T) {
	read := 0
	err := filepath.WalkDir("../../shard", func(name string, d fs.DirEntry, err error) error {
		rel := strings.TrimPrefix(filepath.ToSlash(name), "../../")
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains(knowsKinds, rel):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		read++
		src, err := os.ReadFile(name)
		if found := ofKind.Find(src); found != nil {
			t.Errorf("%s names a kind: %s", rel, found)
		}
		return err
	})
	if err != nil || read < 50 {
		t.Errorf("%d files were read, %v", read, err)
	}
}
