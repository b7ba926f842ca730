package admin

import (
	"context"
	"time"

	"github.com/countd/countd/backup"
)

// backupSeenEvery is the interval in which a node looks for an archive that it has not seen yet.
const backupSeenEvery = time.Minute

// seenArchives remembers in which target this node has seen an archive. It begins none there again, because the target
// may be a directory whose file system is not mounted.
type seenArchives interface {
	ArchiveSeen() (to string, err error) // "" for none
	NoteArchiveSeen(to string) error
}

// hasSeen reports whether this node has seen an archive in the target.
func (b *Backups) hasSeen() (bool, error) {
	if b.seen.Load() || b.settings.Seen == nil {
		return b.seen.Load(), nil
	}
	to, err := b.settings.Seen.ArchiveSeen()
	if err == nil && to == b.settings.To {
		b.seen.Store(true)
	}
	return b.seen.Load(), err
}

// noteSeen notes that an archive is in the target. If that fails, a later call tries it again: a backup is worth more.
func (b *Backups) noteSeen() {
	if seen, err := b.hasSeen(); err != nil || seen {
		return
	}
	if b.settings.Seen != nil {
		if err := b.settings.Seen.NoteArchiveSeen(b.settings.To); err != nil {
			b.logger.Warn("cannot note that this node has seen an archive of backups", "to", b.settings.To, "err", err)
			return
		}
	}
	b.seen.Store(true)
}

// awaitArchive waits until it sees an archive, which perhaps another node begins, or until Close.
func (b *Backups) awaitArchive() {
	for {
		if there, err := b.has(b.ctx); err == nil && there {
			b.noteSeen()
		}
		if seen, err := b.hasSeen(); err == nil && seen {
			return
		}
		select {
		case <-b.ctx.Done():
			return
		case <-time.After(backupSeenEvery):
		}
	}
}

// hasArchive reports whether an archive is in a target.
func hasArchive(ctx context.Context, place string) (bool, error) {
	target, err := backup.OpenTarget(ctx, place)
	if err != nil {
		return false, err
	}
	return backup.HasArchive(ctx, target)
}
