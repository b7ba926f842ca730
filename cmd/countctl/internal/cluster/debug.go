package cluster

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/internal/program"
)

// bundlePaths lists the paths that "debug bundle" requests from each node. None of the answers
// contains counts, idempotency keys or settings. The bundle leaves out a path that a node does not
// serve.
var bundlePaths = []struct{ path, file string }{
	{"/metrics", "metrics.txt"},
	{"/readyz", "readyz.json"},
	{"/v1/version", "version.json"},
	{"/v1/cluster", "cluster.json"},
	{"/debug/pprof/goroutine?debug=2", "goroutines.txt"},
}

// bundleAdminPaths lists the admin paths that "debug bundle" requests once, from any node.
var bundleAdminPaths = []string{"nodes", "groups", "digests", "plan", "version", "cold"}

// bundleOutput is the JSON output of "debug bundle".
type bundleOutput struct {
	File   string   `json:"file"`
	Files  int      `json:"files"`
	Bytes  int64    `json:"bytes"` // size before compression
	Failed []string `json:"failed"`
}

func debugCommand(c *cli.CLI) *cobra.Command {
	return cli.CommandGroup("debug", "Collect data for debugging", &cobra.Command{
		Use:   "bundle FILE.tar.gz",
		Short: "Write the metrics and the state of all nodes to a file",
		Long: `Write the metrics and the state of all nodes to a file.

The file has no counts, no keys of requests and no settings. Its errors.txt names nodes
that did not answer. An existing file is overwritten only with --yes.`,
		RunE: func(cmd *cobra.Command, args []string) error { return bundle(cmd.Context(), c, args[0]) },
	})
}

func bundle(ctx context.Context, c *cli.CLI, file string) error {
	if err := c.RefuseExisting(file); err != nil {
		return err
	}
	server, nodes, err := c.Operate(ctx)
	if err != nil {
		return err
	}
	defer server.Close()
	target, err := program.CreateFile(file)
	if err != nil {
		return fmt.Errorf("cannot create %s: %w", file, err)
	}
	defer target.Abort()
	zip := gzip.NewWriter(target)
	b := bundleWriter{tar: tar.NewWriter(zip), now: time.Now(), out: bundleOutput{File: file, Failed: []string{}}}
	for _, what := range bundleAdminPaths {
		b.fetch(ctx, server, "/v1/admin/"+what, path.Join("cluster", what+".json"))
	}
	for _, n := range nodes {
		c.Say("%s at %s", n.ID, n.HTTPAddr)
		one, err := c.Dial([]string{cli.NodeURL(server, n.HTTPAddr)}, client.Retry{For: client.RetryNever})
		b.node(ctx, n, one, err)
	}
	b.errors()
	if b.failed == nil {
		b.failed = b.tar.Close()
	}
	if b.failed == nil {
		b.failed = zip.Close()
	}
	if b.failed == nil {
		b.failed = target.Commit()
	}
	if b.failed != nil {
		return fmt.Errorf("cannot write %s: %w", file, b.failed)
	}
	return c.Print(b.out, func(t *cli.Table) {
		t.Row("FILE", "FILES IN IT", "BYTES", "NOT ANSWERED")
		t.Row(file, b.out.Files, cli.Grouped(b.out.Bytes), len(b.out.Failed))
	})
}

// bundleWriter writes a bundle. After a write has failed, its methods do nothing.
type bundleWriter struct {
	tar    *tar.Writer
	now    time.Time
	out    bundleOutput
	failed error
}

// node adds the answers of one node. If err is not nil, the node has no client (server is nil), and
// node adds err instead.
func (b *bundleWriter) node(ctx context.Context, n admin.ClusterNode, server *client.Client, err error) {
	if err != nil {
		b.out.Failed = append(b.out.Failed, fmt.Sprintf("%s: %v", n.ID, err))
		return
	}
	defer server.Close()
	for _, p := range bundlePaths {
		b.fetch(ctx, server, p.path, path.Join("nodes", n.Key, p.file))
	}
}

func (b *bundleWriter) fetch(ctx context.Context, server *client.Client, from, to string) {
	body, err := admin.New(server).Raw(ctx, from)
	if refused := (*client.Error)(nil); errors.As(err, &refused) && refused.Status == http.StatusNotFound {
		return
	}
	if err != nil {
		b.out.Failed = append(b.out.Failed, fmt.Sprintf("%s%s: %v", server.Addr(), from, err))
		return
	}
	b.add(to, body)
}

func (b *bundleWriter) errors() {
	var text []byte
	for _, line := range b.out.Failed {
		text = append(append(text, line...), '\n')
	}
	b.add("errors.txt", text)
}

func (b *bundleWriter) add(name string, body []byte) {
	if b.failed != nil {
		return
	}
	if b.failed = b.tar.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(body)), ModTime: b.now}); b.failed == nil {
		_, b.failed = b.tar.Write(body)
	}
	b.out.Files++
	b.out.Bytes += int64(len(body))
}
