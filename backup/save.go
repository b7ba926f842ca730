package backup

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// Saved describes a backup that has just been stored.
type Saved struct {
	Name        string
	Manifest    *Manifest
	Bytes       int64 // of all snapshots
	Chunks      int   // that this backup has put
	StoredBytes int64 // of these chunks as they are stored, and of the manifest
	Took        time.Duration
}

// Backup stores a backup of a cluster. If it fails or is killed, the archive has no new backup; a later Prune deletes
// the chunks that it left. It returns ErrBusy if a sweep is under way for long.
func (a *Archive) Backup(ctx context.Context, cluster Cluster, report Report) (*Saved, error) {
	id, err := cluster.ID(ctx)
	if err != nil {
		return nil, err
	}
	if err := sameCluster(archiveFile, a.clusterID, id); err != nil {
		return nil, err
	}
	began := a.now()
	c, err := a.take(ctx, claimBackup, &report)
	if err != nil {
		return nil, err
	}
	defer c.release(ctx)
	ctx, cancel := context.WithTimeout(ctx, c.kind.runMax)
	defer cancel()
	s := saving{a: a}
	if s.known, err = a.reusable(ctx); err != nil {
		return nil, err
	}
	m, err := Take(ctx, cluster, s.store, report)
	if err != nil {
		return nil, err
	}
	if err := sameCluster(archiveFile, a.clusterID, m.ClusterID); err != nil {
		return nil, err
	}
	m.SealedFor = a.sealing.recipients.sealedFor()
	out := &Saved{Name: a.newName(began), Manifest: m}
	text, err := appendManifest(nil, m)
	if err != nil {
		return nil, err
	}
	if err := s.confirm(ctx, c, m); err != nil {
		return nil, err
	}
	if err := a.target.Put(ctx, manifestPath(out.Name), text); err != nil {
		c.note(err)
		return nil, fmt.Errorf("cannot store the manifest: %w", err)
	}
	out.Chunks, out.StoredBytes, out.Took = s.mu.chunks, s.mu.bytes+int64(len(text)), a.now().Sub(began)
	_, _, out.Bytes = m.Totals()
	return out, nil
}

// BackupChecked stores a backup and checks it. A nil check reads every chunk, or asks whether each is there if the
// archive is sealed. If the check fails twice, or a chunk is damaged, BackupChecked deletes the manifest of the backup,
// and stores another backup, which puts each damaged chunk again. It returns an error if that one fails its check too.
// While the target cannot be read, or once ctx has ended, a check says nothing about the backup, so that it stays.
func (a *Archive) BackupChecked(ctx context.Context, cluster Cluster, report Report, check func(context.Context, *Backup) error) (*Saved, error) {
	for again := false; ; again = true {
		s, err := a.Backup(ctx, cluster, report)
		if err != nil {
			return nil, err
		}
		failed := a.checkSaved(ctx, s, check)
		if failed == nil {
			return s, nil
		}
		// It notes all damaged chunks, because a check may end at the first.
		whole := a.checkSaved(ctx, s, nil)
		if whole == nil { // so the first check may have met an error that has passed
			if failed = a.checkSaved(ctx, s, check); failed == nil {
				return s, nil
			}
		}
		if ctx.Err() != nil || whole != nil && !errors.Is(whole, ErrIncomplete) {
			return nil, fmt.Errorf("cannot check the new backup %s, which stays: %w", s.Name, cmp.Or(whole, failed))
		}
		failed = fmt.Errorf("the new backup %s cannot be restored: %w", s.Name, failed)
		if err := a.DeleteBackup(ctx, s.Name); err != nil || again {
			return nil, errors.Join(failed, err)
		}
		report.say("%v; it is deleted, and stored again", failed)
	}
}

func (a *Archive) checkSaved(ctx context.Context, s *Saved, check func(context.Context, *Backup) error) error {
	switch {
	case check == nil && a.sealed:
		return a.CheckThere(ctx, s.Manifest)
	case check == nil:
		_, err := a.Verifier().Verify(ctx, s.Manifest)
		return err
	}
	b, err := a.Open(ctx, s.Name)
	if err != nil {
		return err
	}
	return check(ctx, b)
}

// DeleteBackup deletes the manifest of a backup by its full name, so that it counts as a backup no more. Prune deletes
// its chunks.
func (a *Archive) DeleteBackup(ctx context.Context, name string) error {
	if !backupName.MatchString(name) {
		return fmt.Errorf("%q is no name of a backup", name)
	}
	if err := a.target.Delete(ctx, manifestPath(name)); err != nil {
		return fmt.Errorf("cannot delete backup %s: %w", name, err)
	}
	return nil
}

// reusable returns the names of the chunks that a manifest names and that are there. Manifests that cannot be read are
// ignored: a sweep reports them.
func (a *Archive) reusable(ctx context.Context) (map[string]bool, error) {
	there, err := a.chunks(ctx)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	err = a.each(ctx, func(e Entry) {
		if e.Err != nil {
			return
		}
		for name := range e.Manifest.chunks {
			if there[name] {
				known[name] = true
			}
		}
	})
	return known, err
}

// chunks returns the names of all chunks of the archive, without those that it could not read.
func (a *Archive) chunks(ctx context.Context) (map[string]bool, error) {
	files, err := a.target.List(ctx, chunksDir)
	if err != nil {
		return nil, fmt.Errorf("cannot list the chunks: %w", err)
	}
	all := make(map[string]bool, len(files))
	for _, file := range files {
		if name := path.Base(file); chunkName.MatchString(name) {
			all[name] = true
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for name := range a.mu.damaged {
		delete(all, name)
	}
	return all, nil
}

// eachChunk iterates over the chunks of all files.
func (m *Manifest) eachChunk(yield func(Chunk) bool) {
	for _, k := range m.Keyspaces {
		for _, f := range k.Files {
			for _, c := range f.Chunks {
				if !yield(c) {
					return
				}
			}
		}
	}
}

// chunks iterates over the names of the chunks of all files, as they are stored.
func (m *Manifest) chunks(yield func(name string) bool) {
	for c := range m.eachChunk {
		if !yield(storedName(m.SealedFor, c.SHA256)) {
			return
		}
	}
}

// Totals returns the number of files, and the sums of their rows and bytes.
func (m *Manifest) Totals() (files int, rows uint64, bytes int64) {
	for _, k := range m.Keyspaces {
		for _, f := range k.Files {
			files, rows, bytes = files+1, rows+f.Rows, bytes+f.Bytes
		}
	}
	return files, rows, bytes
}

// saving stores the chunks of one backup.
type saving struct {
	a     *Archive
	known map[string]bool // names of chunks that the archive had
	mu    struct {
		sync.Mutex
		put    map[string]bool // names of chunks that this backup has put, or puts
		chunks int
		bytes  int64
	}
}

// store implements Store.
func (s *saving) store(ctx context.Context, f *File, in io.Reader) error {
	f.Chunks = nil
	group, running := errgroup.WithContext(ctx)
	group.SetLimit(workers)
	cutter := newChunker(s.a.cutting, in)
	for running.Err() == nil {
		plain, err := cutter.next()
		if errors.Is(err, io.EOF) {
			return group.Wait()
		}
		if err != nil {
			return errors.Join(group.Wait(), err)
		}
		sum := sha256.Sum256(plain)
		chunk := Chunk{hex.EncodeToString(sum[:]), int64(len(plain))}
		f.Chunks = append(f.Chunks, chunk)
		if name := storedName(s.a.sealing.recipients.sealedFor(), chunk.SHA256); s.claims(name) {
			group.Go(func() error { return s.put(running, name, plain) })
		}
	}
	return cmp.Or(group.Wait(), running.Err())
}

// claims reports whether the caller must put a chunk.
func (s *saving) claims(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known[name] || s.mu.put[name] {
		return false
	}
	if s.mu.put == nil {
		s.mu.put = map[string]bool{}
	}
	s.mu.put[name] = true
	return true
}

// put stores a chunk. If that fails, a later try to store the snapshot puts it again.
func (s *saving) put(ctx context.Context, name string, plain []byte) error {
	sealed, err := s.a.sealing.seal(plain)
	if err == nil {
		err = s.a.target.Put(ctx, chunkPath(name), sealed)
	}
	if err == nil {
		s.a.note(name, false)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		delete(s.mu.put, name)
		return fmt.Errorf("cannot store chunk %s: %w", name, err)
	}
	s.mu.chunks++
	s.mu.bytes += int64(len(sealed))
	return nil
}

// confirm returns an error unless the manifest may be stored: the archive is still that of the cluster, no sweep may
// have run meanwhile, and all chunks are there.
func (s *saving) confirm(ctx context.Context, c *claim, m *Manifest) error {
	body, err := readArchive(ctx, s.a.target)
	if err != nil {
		return err
	}
	if err := body.mustBe(archiveBody{archiveFormat, m.ClusterID, m.SealedFor != ""}); err != nil {
		return err
	}
	if err := s.a.CheckThere(ctx, m); err != nil {
		if errors.Is(err, ErrIncomplete) { // a backup that was never complete: no damage
			return errors.New("something else changed the archive during the backup, so it is not stored: " + err.Error())
		}
		return err
	}
	return c.check(ctx)
}
