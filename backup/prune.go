package backup

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// goodMin is the number of newest backups that no retention deletes.
const goodMin = 2

// Keep says which backups stay: the newest of each of so many latest hours, days and weeks that have one. The zero Keep
// keeps all.
type Keep struct{ Hours, Days, Weeks int }

// keepMax bounds each number of a Keep.
const keepMax = 10_000

// keepAll is the text of the zero Keep.
const keepAll = "0"

// ParseKeep parses a text such as hours=24,days=7,weeks=4. What the text leaves out is 0. The text 0 keeps all backups;
// numbers that are all 0 are refused, because they could mean the opposite.
func ParseKeep(text string) (k Keep, err error) {
	if text == keepAll {
		return Keep{}, nil
	}
	bad := fmt.Errorf("%q is not like hours=24,days=7,weeks=4, with numbers from 0 to %d that are not all 0, nor %s to keep all", text, keepMax, keepAll)
	seen := map[string]bool{}
	for part := range strings.SplitSeq(text, ",") {
		name, number, _ := strings.Cut(part, "=")
		n, err := strconv.Atoi(number)
		to, known := map[string]*int{"hours": &k.Hours, "days": &k.Days, "weeks": &k.Weeks}[name]
		if err != nil || !known || seen[name] || n < 0 || n > keepMax {
			return Keep{}, bad
		}
		seen[name], *to = true, n
	}
	if k == (Keep{}) {
		return Keep{}, bad
	}
	return k, nil
}

// String returns the text that ParseKeep parses.
func (k Keep) String() string {
	if k == (Keep{}) {
		return keepAll
	}
	return fmt.Sprintf("hours=%d,days=%d,weeks=%d", k.Hours, k.Days, k.Weeks)
}

// kept reports for each backup whether it stays. begun has their beginnings, the newest first.
func (k Keep) kept(begun []time.Time) []bool {
	stays := make([]bool, len(begun))
	for i := range min(goodMin, len(begun)) {
		stays[i] = true
	}
	for _, rule := range []struct {
		n      int
		period func(t time.Time) time.Time
	}{
		{k.Hours, func(t time.Time) time.Time { return t.UTC().Truncate(time.Hour) }},
		{k.Days, func(t time.Time) time.Time { return t.UTC().Truncate(24 * time.Hour) }},
		{k.Weeks, func(t time.Time) time.Time { return t.UTC().Truncate(7 * 24 * time.Hour) }}, // from Monday
	} {
		var last time.Time
		for i, t := range begun {
			if period := rule.period(t); rule.n > 0 && (last.IsZero() || period.Before(last)) {
				stays[i], last, rule.n = true, period, rule.n-1
			}
		}
	}
	return stays
}

// Pruned describes what Prune deleted.
type Pruned struct {
	Backups []string // names
	Kept    int      // backups
	Chunks  int
}

// Prune deletes the backups that keep gives up, and then all chunks that no backup names. The zero Keep gives up none.
// made is the backup that the caller has just made, which always stays, or "": it may be called after a backup that
// failed, too. Prune deletes nothing if made is not there. It returns ErrBusy while another run uses the archive. If it
// fails or is killed, the remaining backups are whole, and the next Prune goes on.
func (a *Archive) Prune(ctx context.Context, keep Keep, made string) (out Pruned, err error) {
	c, err := a.take(ctx, claimSweep)
	if err != nil {
		return out, err
	}
	defer c.release(ctx)
	ctx, cancel := context.WithTimeout(ctx, c.kind.runMax)
	defer cancel()
	if out.Backups, err = a.deleteBackups(ctx, c, keep, made); err != nil {
		return out, err
	}
	named, kept, err := a.named(ctx)
	if err != nil {
		return out, fmt.Errorf("cannot delete chunks while it is unknown which are needed: %w; delete the backup's file in %s, if it is lost", err, backupsDir)
	}
	out.Kept = kept
	out.Chunks, err = a.sweep(ctx, c, named)
	return out, err
}

// deleteBackups deletes the manifests that keep gives up, except made. It passes over backups that cannot be read or lack
// a chunk: they neither count for keep, nor are they deleted, because a part of them may be all that is left. Those that
// lie in the future are passed over too: they would take the places of the newest ones.
func (a *Archive) deleteBackups(ctx context.Context, c *claim, keep Keep, made string) (deleted []string, err error) {
	there, err := a.chunks(ctx)
	if err != nil {
		return nil, err
	}
	var good []string
	var begun []time.Time
	found := made == ""
	if err := a.each(ctx, func(e Entry) {
		found = found || e.Name == made
		if e.Err == nil && !a.isFuture(e.Name) && e.Manifest.isThere(there) {
			good, begun = append(good, e.Name), append(begun, e.Begun())
		}
	}); err != nil {
		return nil, err
	}
	if !found {
		return nil, fmt.Errorf("the new backup %s is not in the archive, so nothing of it is deleted: something else changes it", made)
	}
	if keep == (Keep{}) {
		return nil, nil
	}
	slices.Reverse(good)
	slices.Reverse(begun)
	for i, stays := range keep.kept(begun) {
		if stays || good[i] == made {
			continue
		}
		if err := errors.Join(c.inTime(), a.target.Delete(ctx, manifestPath(good[i]))); err != nil {
			return deleted, fmt.Errorf("cannot delete backup %s: %w", good[i], err)
		}
		deleted = append(deleted, good[i])
	}
	return deleted, nil
}

func (m *Manifest) isThere(chunks map[string]bool) bool {
	for name := range m.chunks {
		if !chunks[name] {
			return false
		}
	}
	return true
}

// named returns the names of the chunks that manifests name, and the number of manifests. It reads all manifests, also
// those that were there before, because only what is in the target now counts.
func (a *Archive) named(ctx context.Context) (chunks map[string]bool, manifests int, err error) {
	names, err := a.names(ctx)
	if err != nil {
		return nil, 0, err
	}
	chunks = map[string]bool{}
	for _, name := range names {
		m, err := a.manifest(ctx, name)
		if err != nil {
			return nil, 0, err
		}
		for chunk := range m.chunks {
			chunks[chunk] = true
		}
	}
	return chunks, len(names), nil
}

// sweep deletes the chunks that are not named, and what killed runs left: temporary files and void claims.
func (a *Archive) sweep(ctx context.Context, c *claim, named map[string]bool) (deleted int, err error) {
	files, err := a.target.List(ctx, "")
	if err != nil {
		return 0, fmt.Errorf("cannot list the archive: %w", err)
	}
	for _, file := range files {
		base, isChunk := path.Base(file), false
		switch dir := path.Dir(file) + "/"; {
		case strings.HasPrefix(file, chunksDir):
			isChunk = chunkName.MatchString(base)
			if isChunk && named[base] || !isChunk && !isTemporary(base) {
				continue
			}
		case dir == backupsDir:
			if !isTemporary(base) {
				continue
			}
		case dir == claimsDir:
			if parts := claimName.FindStringSubmatch(base); parts == nil || !a.void(parts[1], parts[2]) {
				continue
			}
		default:
			continue
		}
		if err := errors.Join(c.inTime(), a.target.Delete(ctx, file)); err != nil {
			return deleted, fmt.Errorf("cannot delete %s: %w", file, err)
		}
		if isChunk {
			deleted++
		}
	}
	return deleted, nil
}
