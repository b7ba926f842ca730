package backup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// ManifestFile is the name of the manifest in the directory of a single backup.
const ManifestFile = "manifest.json"

// Backup is a complete backup. Its files can be read.
type Backup struct {
	*Manifest
	// From is the name of the backup in errors.
	From string
	open func(ctx context.Context, f *File) (io.ReadCloser, error)
}

// ReadDir opens the single backup in a directory.
func ReadDir(dir string) (*Backup, error) {
	f, err := os.Open(filepath.Join(dir, ManifestFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w: it has no %s", dir, ErrIncomplete, ManifestFile)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m, err := parseManifest(io.LimitReader(f, manifestBytesMax))
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", f.Name(), ErrIncomplete, err)
	}
	return &Backup{Manifest: m, From: dir, open: func(_ context.Context, f *File) (io.ReadCloser, error) {
		return os.Open(filepath.Join(dir, f.Name))
	}}, nil
}

// Open returns a reader of the snapshot of a shard. The caller closes it.
func (b *Backup) Open(ctx context.Context, f *File) (io.ReadCloser, error) {
	in, err := b.open(ctx, f)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", ErrIncomplete, err)
	}
	return in, err
}

// Check reads a snapshot whole, and compares it with its size and checksum in the manifest.
func (b *Backup) Check(ctx context.Context, f *File) error {
	in, err := b.Open(ctx, f)
	if err != nil {
		return err
	}
	defer in.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, in)
	if err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); n != f.Bytes || got != f.SHA256 {
		return fmt.Errorf("%s: %w: %s has %d bytes of SHA-256 %s, want %d of %s", b.From, ErrIncomplete, f.Name, n, got, f.Bytes, f.SHA256)
	}
	return nil
}
