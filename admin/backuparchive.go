package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
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
	made   string // the backup that add made; "" for none
}

// openArchive opens the archive in a target. If there is none and begin is set, it begins one. A directory must be there:
// a missing one may be a file system that is not mounted, and a new archive would hide that.
func (a *Cluster) openArchive(ctx context.Context, s BackupSettings, begin bool) (archiver, error) {
	from := backupSource{a}
	id, err := from.ID(ctx)
	if err != nil {
		return nil, err
	}
	target, err := backup.OpenTarget(ctx, s.To)
	if err != nil {
		return nil, err
	}
	if dir, is := target.(backup.Directory); is {
		if _, err := os.Stat(string(dir)); errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("the directory %s does not exist: mount its file system, or make it with mkdir", dir)
		} else if err != nil {
			return nil, err
		}
	}
	if there, err := backup.HasArchive(ctx, target); err != nil {
		return nil, err
	} else if !there && !begin {
		return nil, fmt.Errorf("%w any more: mount it again, or begin a new one with %s", backup.ErrNoArchive, s.command())
	} else if !there {
		a.cfg.Logger.Warn("there was no archive of backups, so this node begins one", "to", s.To)
	}
	archive, err := backup.CreateArchive(ctx, target, id, s.Recipients)
	if err != nil {
		return nil, err
	}
	return &nodeArchive{Archive: archive, from: from, keep: s.Keep, logger: a.cfg.Logger}, nil
}

// newest implements archiver.
func (n *nodeArchive) newest(ctx context.Context) (time.Time, error) {
	newest, err := n.Newest(ctx)
	if err != nil || newest.Name == "" {
		return time.Time{}, err
	}
	return newest.Manifest.Begun, nil
}

// add implements archiver. If the new backup needs a damaged chunk of an earlier one, it is made again without that.
func (n *nodeArchive) add(ctx context.Context) (addedBackup, error) {
	report := backup.Report{Say: func(text string) { n.logger.Info("a backup: " + text) }}
	saved, err := n.BackupChecked(ctx, n.from, report, func(ctx context.Context, made *backup.Backup) error {
		if made.SealedFor != "" { // this node cannot read it
			return n.CheckThere(ctx, made.Manifest)
		}
		return checkBackup(ctx, made)
	})
	if err != nil {
		return addedBackup{}, err
	}
	n.made = saved.Name
	return addedBackup{name: saved.Name, begun: saved.Manifest.Begun, bytes: saved.Bytes, stored: saved.StoredBytes}, nil
}

// prune implements archiver.
func (n *nodeArchive) prune(ctx context.Context) (int, error) {
	pruned, err := n.Prune(ctx, n.keep, n.made)
	return len(pruned.Backups), err
}

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
		return fmt.Errorf("%w: unknown kind %s", backup.ErrDiffers, kind)
	}
	var facts raftfsm.SnapshotFacts
	if err := b.Read(ctx, f, func(in io.Reader) error {
		s, err := kinds.All.OpenAnySnapshot(in, number)
		if err == nil {
			facts, err = s.Visit(raftfsm.SnapshotVisitor{})
		}
		return err
	}); err != nil {
		return err
	}
	if digest := fmt.Sprintf("%016x", facts.Digest); facts.Rows != f.Rows || digest != f.Digest {
		return fmt.Errorf("%w: it has %d rows of digest %s, want %d of %s", backup.ErrDiffers, facts.Rows, digest, f.Rows, f.Digest)
	}
	return nil
}
