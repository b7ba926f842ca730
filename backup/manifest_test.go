package backup

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

func FuzzParseManifest(f *testing.F) {
	f.Add([]byte(`{"format":"countd backup 1","keyspaces":[{"name":"a","columns":["b"],"shards":1,"groups":[{"shard":0,"file":"a-00.snapshot","bytes":1}]}]}`))
	f.Add([]byte(`{"format":"countd backup 1","keyspaces":[{"name":"a","columns":["b"],"shards":1,"groups":[{"shard":0,"file":"../a","bytes":1}]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := parseManifest(bytes.NewReader(text))
		if err != nil {
			return
		}
		b := Backup{Manifest: m, From: "b", open: func(_ context.Context, f *File) (io.ReadCloser, error) {
			return os.Open(filepath.Join(t.TempDir(), f.Name))
		}}
		for _, k := range m.Keyspaces {
			for _, f := range k.Files {
				if f.Name != filepath.Base(f.Name) || f.Name == "" {
					t.Fatalf("a file that lies elsewhere: %q", f.Name)
				}
				if err := b.Check(t.Context(), &f); !errors.Is(err, ErrIncomplete) {
					t.Fatalf("a file that is not there: %v", err)
				}
			}
		}
	})
}
