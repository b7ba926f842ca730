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

// ErrDiffers is the ErrIncomplete of a backup that can be read and is not what its manifest says.
var ErrDiffers = fmt.Errorf("%w: it differs from its manifest", ErrIncomplete)

// Check reads a snapshot whole, and compares it with its size and checksum in the manifest.
func (b *Backup) Check(ctx context.Context, f *File) error {
	return b.Read(ctx, f, func(io.Reader) error { return nil })
}

// Read is Check, but lets read have the snapshot first. It reads what read has left. If read fails, Read returns its
// error, and compares nothing.
func (b *Backup) Read(ctx context.Context, f *File, read func(io.Reader) error) error {
	in, err := b.Open(ctx, f)
	if err != nil {
		return err
	}
	defer in.Close()
	sum, bytes := sha256.New(), byteCount(0)
	all := io.TeeReader(in, io.MultiWriter(sum, &bytes))
	if err := read(all); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, all); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); int64(bytes) != f.Bytes || got != f.SHA256 {
		return fmt.Errorf("%s: %w: %s has %d bytes of SHA-256 %s, want %d of %s", b.From, ErrDiffers, f.Name, bytes, got, f.Bytes, f.SHA256)
	}
	return nil
}

// byteCount is an io.Writer that counts bytes.
type byteCount int64

func (n *byteCount) Write(p []byte) (int, error) {
	*n += byteCount(len(p))
	return len(p), nil
}
