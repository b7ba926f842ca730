package backup

import (
	"cmp"
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
	c, err := a.take(ctx, claimSweep, &Report{})
	if err != nil {
		return out, err
	}
	defer c.release(ctx)
	ctx, cancel := context.WithTimeout(ctx, c.kind.runMax)
	defer cancel()
	d := deletion{target: a.target, claim: c}
	var rest []string
	if out.Backups, rest, err = a.deleteBackups(ctx, &d, keep, made); err != nil {
		return out, errors.Join(err, d.failed())
	}
	named, kept, err := a.named(ctx, rest)
	if err != nil {
		return out, errors.Join(fmt.Errorf("cannot delete chunks while it is unknown which are needed: %w", err), d.failed())
	}
	out.Kept = kept
	out.Chunks, err = a.sweep(ctx, &d, named)
	return out, errors.Join(err, d.failed())
}

// checkEvery is the number of deletions after which a sweep looks again for its claim and those of others.
const checkEvery = 100

// deletion deletes files under a claim. It goes on past files that it cannot delete.
type deletion struct {
	target Target
	claim  *claim
	tries  int
	failures
}

// failures counts errors, and has the first.
type failures struct {
	n     int
	first error
}

func (f *failures) failed() error {
	if f.n > 1 {
		return fmt.Errorf("cannot delete %d files, such as: %w", f.n, f.first)
	}
	return f.first
}

// delete reports whether it deleted a file. The error says that nothing more may be deleted.
func (d *deletion) delete(ctx context.Context, name string) (bool, error) {
	may := d.claim.inTime
	if d.tries%checkEvery == 0 {
		may = func() error { return d.claim.check(ctx) }
	}
	d.tries++
	if err := cmp.Or(ctx.Err(), may()); err != nil {
		return false, err
	}
	err := d.target.Delete(ctx, name)
	if err != nil {
		d.claim.note(err)
		d.n++
		d.first = cmp.Or(d.first, fmt.Errorf("cannot delete %s: %w", name, err))
	}
	return err == nil, nil
}

// deleteBackups deletes the manifests that keep gives up, except made. It passes over backups that cannot be read or lack
// a chunk: they neither count for keep, nor are they deleted, because a part of them may be all that is left. Those that
// lie in the future are passed over too: they would take the places of the newest ones. rest has the backups that it did
// not try to delete.
func (a *Archive) deleteBackups(ctx context.Context, d *deletion, keep Keep, made string) (deleted, rest []string, err error) {
	there, err := a.chunks(ctx)
	if err != nil {
		return nil, nil, err
	}
	var good []string
	var begun []time.Time
	if err := a.each(ctx, func(e Entry) {
		if e.Err == nil && !a.isFuture(e.Name) && e.Manifest.missing(there) == "" {
			good, begun = append(good, e.Name), append(begun, e.Begun())
		} else {
			rest = append(rest, e.Name)
		}
	}); err != nil {
		return nil, nil, err
	}
	if made != "" && !slices.Contains(rest, made) && !slices.Contains(good, made) {
		return nil, nil, fmt.Errorf("the new backup %s is not in the archive, so nothing of it is deleted: something else changes it", made)
	}
	slices.Reverse(good)
	slices.Reverse(begun)
	for i, stays := range keep.kept(begun) {
		if stays || good[i] == made || keep == (Keep{}) {
			rest = append(rest, good[i])
			continue
		}
		switch done, err := d.delete(ctx, manifestPath(good[i])); {
		case err != nil:
			return deleted, nil, err
		case done:
			deleted = append(deleted, good[i])
		}
	}
	return deleted, rest, nil
}

// missing returns the stored name of a chunk that is not among those there, or "".
func (m *Manifest) missing(there map[string]bool) string {
	for name := range m.chunks {
		if !there[name] {
			return name
		}
	}
	return ""
}

// named returns the names of the chunks that manifests name, and the number of manifests. It reads all manifests, also
// those that were there before, because only what is in the target now counts. A list that has none, or lacks one of
// must, is of a target that somebody else changes, or that cannot be seen whole: then each chunk may be needed.
func (a *Archive) named(ctx context.Context, must []string) (chunks map[string]bool, manifests int, err error) {
	names, err := a.names(ctx)
	if err != nil {
		return nil, 0, err
	}
	if len(names) == 0 {
		return nil, 0, fmt.Errorf("there is no backup in %s", backupsDir)
	}
	for _, name := range must {
		if !slices.Contains(names, name) {
			return nil, 0, fmt.Errorf("backup %s has vanished from %s", name, backupsDir)
		}
	}
	chunks = map[string]bool{}
	for _, name := range names {
		m, err := a.manifest(ctx, name)
		if err != nil {
			return nil, 0, fmt.Errorf("%w; delete its file %s, if it is lost", err, manifestPath(name))
		}
		for chunk := range m.chunks {
			chunks[chunk] = true
		}
	}
	return chunks, len(names), nil
}

// sweep deletes the chunks that are not named, and what killed runs left: temporary files and void claims.
func (a *Archive) sweep(ctx context.Context, d *deletion, named map[string]bool) (chunks int, err error) {
	var files []string
	for _, dir := range []string{chunksDir, backupsDir, claimsDir} {
		more, err := a.target.List(ctx, dir)
		if err != nil {
			return 0, fmt.Errorf("cannot list %s of the archive: %w", dir, err)
		}
		files = append(files, more...)
	}
	for _, file := range files {
		base := path.Base(file)
		isChunk := strings.HasPrefix(file, chunksDir) && chunkName.MatchString(base)
		claimed := claimName.FindStringSubmatch(base)
		switch {
		case isChunk && !named[base]:
		case isTemporary(base) && !strings.HasPrefix(file, claimsDir):
		case path.Dir(file)+"/" == claimsDir && claimed != nil && a.void(claimed[1], claimed[2]):
		default:
			continue
		}
		done, err := d.delete(ctx, file)
		if err != nil {
			return chunks, err
		}
		if done && isChunk {
			chunks++
		}
	}
	return chunks, nil
}
