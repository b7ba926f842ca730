package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/countd/countd/shard"
)

// TestBenchmarksNameTheirShards: the scripts of bench measure countd with its default number of
// shards. For a figure measured with another number, docs/BENCHMARKS.md states that number.
func TestBenchmarksNameTheirShards(t *testing.T) {
	scripts, err := filepath.Glob("../../bench/*.sh")
	if err != nil || len(scripts) < 5 {
		t.Fatalf("scripts %q, %v", scripts, err)
	}
	const choosesItself = "--shards \"$keyspace=$1\"" // a script with this text prints the number of shards that it chose
	chooses := map[string]bool{}
	for _, name := range scripts {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if chooses[filepath.Base(name)] = strings.Contains(string(text), choosesItself); chooses[filepath.Base(name)] {
			continue
		}
		if n := regexp.MustCompile(`--shards "?posts=[0-9]+`).Find(text); n != nil {
			t.Errorf("%s has %s, not those of common.sh", name, n)
		}
		if strings.Contains(string(text), "--data-dir") && !strings.Contains(string(text), `"${shard_args[@]}"`) {
			t.Errorf("%s starts nodes without the shards of common.sh", name)
		}
		if want := fmt.Sprintf("SHARDS=${SHARDS:-%d}", shard.ShardsDefault); strings.Contains(string(text), "SHARDS:-") && !strings.Contains(string(text), want) {
			t.Errorf("%s lacks %s", name, want)
		}
	}
	doc, err := os.ReadFile("../../docs/BENCHMARKS.md")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(doc)) {
		_, script, runs := strings.Cut(strings.TrimSpace(line), "bench/")
		if runs && strings.Contains(script, ".sh") && strings.HasPrefix(line, "    ") && !strings.Contains(line, "SHARDS=") && !chooses[script] {
			t.Errorf("docs/BENCHMARKS.md does not name the shards of %q", strings.TrimSpace(line))
		}
	}
}
