package main

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra/doc"

	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/program"
)

var manDir = flag.String("man", "", "write the man pages into this directory")

// Every command has a man page. deploy/release.sh calls this test to generate the pages for a
// release.
func TestManPages(t *testing.T) {
	dir := *manDir
	if dir == "" {
		dir = t.TempDir()
	}
	c := &cli.CLI{Terminal: cli.Terminal{Env: func(string) string { return "" }}}
	root := c.Root(groups...)
	root.DisableAutoGenTag = true
	must.Do(t, doc.GenManTree(root, &doc.GenManHeader{Title: "COUNTCTL", Section: "1", Source: "countctl " + program.Version}, dir))
	for _, page := range []string{"countctl", "countctl-incr", "countctl-keyspace-create", "countctl-completion-bash"} {
		if _, err := os.Stat(filepath.Join(dir, page+".1")); err != nil {
			t.Error(err)
		}
	}
}
