package admin

import (
	"context"
	"time"

	"github.com/countd/countd/backup"
)

// backupSeenEvery is the interval in which a node looks for an archive that it has not seen yet.
const backupSeenEvery = time.Minute

// seenArchives remembers in which targets this node has seen an archive of its cluster. It begins none there again, because
// the target may be a directory whose file system is not mounted.
type seenArchives interface {
	ArchiveSeen(clusterID, to string) (bool, error)
	NoteArchiveSeen(clusterID, to string) error
}

// hasSeen reports whether this node has seen an archive of its cluster in the target.
func (b *Backups) hasSeen() (bool, error) {
	if b.seen.Load() || b.settings.Seen == nil {
		return b.seen.Load(), nil
	}
	id, err := b.clusterID()
	if err != nil {
		return false, err
	}
	seen, err := b.settings.Seen.ArchiveSeen(id, b.settings.To)
	if seen {
		b.seen.Store(true)
	}
	return seen, err
}

// noteSeen notes that an archive of this cluster is in the target. If that fails, a later call tries it again: a backup is
// worth more.
func (b *Backups) noteSeen() {
	b.noting.Lock()
	defer b.noting.Unlock()
	if seen, err := b.hasSeen(); err == nil && seen {
		return
	}
	if b.settings.Seen != nil {
		id, err := b.clusterID()
		if err == nil {
			err = b.settings.Seen.NoteArchiveSeen(id, b.settings.To)
		}
		if err != nil {
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

// hasArchive reports whether an archive of this cluster is in a target.
func (a *Cluster) hasArchive(ctx context.Context, place string) (bool, error) {
	id, err := backupSource{a}.ID(ctx)
	if err != nil {
		return false, err
	}
	target, err := backup.OpenTarget(ctx, place)
	if err != nil {
		return false, err
	}
	archive, err := backup.OpenArchive(ctx, target, nil)
	if err != nil {
		return false, err
	}
	return archive.ClusterID() == id, nil
}
