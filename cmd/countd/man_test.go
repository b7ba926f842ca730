package main

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra/doc"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/program"
)

var manDir = flag.String("man", "", "write the man pages into this directory")

// The command that deploy/release.sh uses writes a man page with every setting.
func TestManPages(t *testing.T) {
	dir := *manDir
	if dir == "" {
		dir = t.TempDir()
	}
	root := rootCommand(newConfig())
	root.DisableAutoGenTag = true
	must.Do(t, doc.GenManTree(root, &doc.GenManHeader{Title: "COUNTD", Section: "8", Source: "countd " + program.Version}, dir))
	if _, err := os.Stat(filepath.Join(dir, "countd.8")); err != nil {
		t.Error(err)
	}
}
