package admin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/countd/countd/backup"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/kinds"
)

// nodeArchive is the archive of backups that this node makes.
type nodeArchive struct {
	*backup.Archive
	from   backupSource
	keep   backup.Keep // zero to keep all
	logger *slog.Logger
}

// openArchive opens the archive in a target, or begins one.
func (a *Cluster) openArchive(ctx context.Context, s BackupSettings) (archiver, error) {
	from := backupSource{a}
	id, err := from.ID(ctx)
	if err != nil {
		return nil, err
	}
	target, err := backup.OpenTarget(ctx, s.To)
	if err != nil {
		return nil, err
	}
	archive, err := backup.CreateArchive(ctx, target, id, s.Recipients)
	if err != nil {
		return nil, err
	}
	return &nodeArchive{Archive: archive, from: from, keep: s.Keep, logger: a.cfg.Logger}, nil
}

func (n *nodeArchive) newest(ctx context.Context) (time.Time, error) {
	all, err := n.List(ctx)
	if err != nil {
		return time.Time{}, err
	}
	newest := time.Time{}
	for _, e := range all {
		if e.Err == nil && e.Manifest.Begun.After(newest) {
			newest = e.Manifest.Begun
		}
	}
	return newest, nil
}

// add implements archiver. If old backups cannot be removed, for example while somebody else backs up to the archive,
// the new one counts all the same.
func (n *nodeArchive) add(ctx context.Context) (addedBackup, error) {
	saved, err := n.Backup(ctx, n.from, backup.Report{Say: func(text string) { n.logger.Info("a backup: " + text) }})
	if err != nil {
		return addedBackup{}, err
	}
	whole, err := n.Open(ctx, saved.Name)
	switch {
	case err != nil:
	case whole.SealedFor != "": // this node cannot read it
		err = n.CheckThere(ctx, whole.Manifest)
	default:
		err = checkBackup(ctx, whole)
	}
	if err != nil {
		return addedBackup{}, fmt.Errorf("the new backup %s cannot be restored: %w", saved.Name, err)
	}
	made := addedBackup{name: saved.Name, begun: saved.Manifest.Begun, bytes: saved.Bytes, stored: saved.StoredBytes}
	if n.keep == (backup.Keep{}) {
		return made, nil
	}
	pruned, err := n.Prune(ctx, n.keep, saved.Name)
	if err != nil && ctx.Err() == nil {
		n.logger.Warn("old backups could not be removed, and it is tried again after the next backup", "err", err)
	}
	made.removed = len(pruned.Backups)
	return made, nil
}

// errChecked is returned for a backup that differs from its manifest.
var errChecked = errors.New("the backup differs from its manifest")

// checkBackup reads a backup whole, as a restore would, and compares the rows of each shard with the manifest.
func checkBackup(ctx context.Context, b *backup.Backup) error {
	for _, k := range b.Keyspaces {
		for _, f := range k.Files {
			if err := checkFile(ctx, b, k.Kind, &f); err != nil {
				return fmt.Errorf("%s: %w", f.Name, err)
			}
		}
	}
	return nil
}

func checkFile(ctx context.Context, b *backup.Backup, kind string, f *backup.File) error {
	number, known := codec.KindOf(kind)
	if !known {
		return fmt.Errorf("%w: unknown kind %s", errChecked, kind)
	}
	in, err := b.Open(ctx, f)
	if err != nil {
		return err
	}
	defer in.Close()
	sum, read := sha256.New(), &countedReader{in: in}
	all := io.TeeReader(read, sum)
	s, err := kinds.All.OpenAnySnapshot(all, number)
	if err != nil {
		return err
	}
	facts, err := s.Visit(raftfsm.SnapshotVisitor{})
	if err == nil {
		_, err = io.Copy(io.Discard, all)
	}
	if err != nil {
		return err
	}
	digest := fmt.Sprintf("%016x", facts.Digest)
	if got := hex.EncodeToString(sum.Sum(nil)); got != f.SHA256 || read.n != f.Bytes || facts.Rows != f.Rows || digest != f.Digest {
		return fmt.Errorf("%w: it has %d bytes of SHA-256 %s, %d rows of digest %s; want %d of %s, %d of %s", errChecked, read.n, got, facts.Rows, digest, f.Bytes, f.SHA256, f.Rows, f.Digest)
	}
	return nil
}

type countedReader struct {
	in io.Reader
	n  int64
}

func (c *countedReader) Read(p []byte) (int, error) {
	n, err := c.in.Read(p)
	c.n += int64(n)
	return n, err
}
