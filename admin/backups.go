package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/backup"
	clientadmin "github.com/countd/countd/client/admin"
)

const (
	// backupLookEvery is the interval in which the scheduler looks whether a backup is due, and whether this
	// node still leads the catalog.
	backupLookEvery = time.Second
	// backupReadEvery is the interval in which a node reads, after a failed backup, whether somebody else has made one.
	backupReadEvery = time.Minute
	// backupMax bounds one backup. It equals the age at which sweeps ignore its claim on the archive.
	backupMax = 24 * time.Hour
	// backupListTimeout bounds the wait for a list of the catalog, while the catalog elects a leader.
	backupListTimeout = time.Minute
	// The pause after a failed backup is backupPauseMin, or half an interval of the schedule if that is
	// shorter. It doubles with each further failure, up to an interval or backupPauseMax.
	backupPauseMin, backupPauseMax = time.Minute, 30 * time.Minute
)

// errNotLeading ends a backup of a node that no longer leads the catalog.
var errNotLeading = errors.New("another node leads the catalog now")

// BackupSettings says where and when the catalog's leader backs the cluster up.
type BackupSettings struct {
	To       string                                 // the target, as in commands; "" for no backups
	Schedule interface{ Next(time.Time) time.Time } // Next returns the first time of the schedule after its argument, which is in UTC; nil for no backups
	Keep     backup.Keep                            // which backups Prune keeps; zero to keep all
	// Recipients can open the backups, which are sealed; nil for backups that are not.
	Recipients *backup.Recipients
	// Seen outlives the process; nil for a node that does not remember.
	Seen seenArchives
}

// command returns the command that backs up to the same target, and begins an archive there if there is none.
func (s *BackupSettings) command() string {
	text := "countctl backup --to '" + s.To + "'"
	if s.Recipients != nil {
		text += " --backup-recipients FILE"
	}
	return text
}

// archiver is the archive of the cluster's backups. Its methods return soon after their context ends.
type archiver interface {
	// newest returns when the newest whole backup began; zero if there is none.
	newest(ctx context.Context) (time.Time, error)
	// add backs the cluster up and checks the new backup.
	add(ctx context.Context) (addedBackup, error)
	// prune removes the backups that need not be kept, and what failed backups left. It returns the number of backups.
	prune(ctx context.Context) (int, error)
}

type addedBackup struct {
	name          string
	begun         time.Time
	bytes, stored int64 // length of the snapshots, and the part of it that no earlier backup had
}

// Backups backs the cluster up by a schedule while this node leads the catalog. A new leader reads from the
// archive when the newest backup began, so the schedule goes on. An overdue backup begins at once. Backups
// never run concurrently on a node. Start starts the goroutines; Close stops them and waits for them.
type Backups struct {
	settings BackupSettings
	open     func(ctx context.Context, begin bool) (archiver, error) // opens the archive in the target; if there is none and begin is set, begins one
	leads    func() bool
	now      func() time.Time
	logger   *slog.Logger
	audit    func(clientadmin.AuditEvent)

	success, overdue, bytes, stored, seconds prometheus.Gauge
	failures, pruneFailures                  prometheus.Counter

	clusterID func() (string, error)
	has       func(context.Context) (bool, error) // reports whether an archive of this cluster is in the target
	seen      atomic.Bool                         // this node has seen one; it stays set
	noting    sync.Mutex                          // one call of noteSeen at a time

	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	running sync.WaitGroup
	mu      struct {
		sync.Mutex
		backupState
	}
}

// backupState is what this node knows of the backups since it leads the catalog.
type backupState struct {
	since  time.Time // since when it leads; zero if it does not
	read   bool      // newest was read from the archive
	readAt time.Time // when the last try or read began
	newest time.Time // when the newest whole backup began, at most the present; zero for none
	failed error     // of the last try; nil after a success
	tries  int       // failures in a row
	retry  time.Time // when to try again; zero after a success
	// unpruned is why the last try could not remove old backups; nil if it could, or if another run was under way for the
	// first time in a row.
	unpruned error
	busy     bool // the last prune met another run
}

// NewBackups returns the scheduled backups of a node. The function audit gets an event for each backup.
func NewBackups(a *Cluster, settings BackupSettings, audit func(clientadmin.AuditEvent), to prometheus.Registerer) (*Backups, error) {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "countd_backup_" + name, Help: help + ", on the node that leads the catalog; 0 on other nodes."})
	}
	b := &Backups{
		settings: settings, leads: a.leadsCatalog, now: time.Now, logger: a.cfg.Logger, audit: audit,
		success: gauge("last_success_timestamp_seconds", "When the newest whole backup in --backup-to began"),
		overdue: gauge("overdue_timestamp_seconds", "When the newest backup is older than two intervals of --backup-schedule"),
		bytes:   gauge("last_bytes", "Length of the snapshots in the last backup of this node"),
		stored:  gauge("last_new_bytes", "Bytes that the last backup of this node added to the archive, compressed"),
		seconds: gauge("last_seconds", "Time that the last backup of this node took, with its check"),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "countd_backup_failures_total", Help: "Backups of --backup-schedule that failed on this node.",
		}),
		pruneFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "countd_backup_prune_failures_total", Help: "Times that this node could not remove the backups that --backup-keep gives up.",
		}),
	}
	for _, c := range []prometheus.Collector{b.success, b.overdue, b.bytes, b.stored, b.seconds, b.failures, b.pruneFailures} {
		if err := to.Register(c); err != nil {
			return nil, fmt.Errorf("cannot register metrics: %w", err)
		}
	}
	b.open = func(ctx context.Context, begin bool) (archiver, error) { return a.openArchive(ctx, settings, begin) }
	b.clusterID = func() (string, error) { return backupSource{a}.ID(context.Background()) }
	b.has = func(ctx context.Context) (bool, error) { return a.hasArchive(ctx, settings.To) }
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b, nil
}

func (a *Cluster) leadsCatalog() bool {
	n, err := a.cfg.Node()
	return err == nil && n.LeadsCatalog()
}

// Scheduled reports whether the settings ask for backups.
func (b *Backups) Scheduled() bool { return b.settings.To != "" && b.settings.Schedule != nil }

// Start begins to look each second whether a backup is due.
func (b *Backups) Start() {
	if !b.Scheduled() {
		return
	}
	b.running.Go(b.awaitArchive)
	b.running.Go(func() {
		for {
			select {
			case <-b.ctx.Done():
				return
			case <-time.After(backupLookEvery):
				b.look()
			}
		}
	})
}

// Close ends a backup that is under way; it implements a step of a stop. It waits until ctx ends, because a
// target that hangs may hold the backup up.
func (b *Backups) Close(ctx context.Context) error {
	b.cancel()
	ended := make(chan struct{})
	go func() { b.running.Wait(); close(ended) }() // ends with the backup, or with the process
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// look makes a backup if one is due. After a failure, it also reads in between whether somebody else has made one.
func (b *Backups) look() {
	if !b.noteLeader() {
		return
	}
	now := b.now()
	b.mu.Lock()
	due := !now.Before(b.dueLocked())
	reads := b.mu.failed != nil && now.Sub(b.mu.readAt) >= backupReadEvery
	if due || reads {
		b.mu.readAt = now
	}
	b.mu.Unlock()
	if !due && !reads {
		return
	}
	ctx, cancel := b.whileLeading()
	defer cancel()
	if added, err := b.try(ctx, now); err != nil && (due || added) {
		b.fail(ctx, err)
	}
}

// noteLeader reports whether this node leads the catalog. It begins the state of a new leader, and clears that of a
// node that does not lead.
func (b *Backups) noteLeader() bool {
	leads := b.leads()
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case leads && b.mu.since.IsZero():
		b.mu.since = b.now()
		b.show()
	case !leads && !b.mu.since.IsZero():
		b.mu.backupState = backupState{}
		for _, g := range []prometheus.Gauge{b.success, b.overdue, b.bytes, b.stored, b.seconds} {
			g.Set(0)
		}
	}
	return leads
}

// dueLocked returns when the next try is due.
func (b *Backups) dueLocked() time.Time {
	switch {
	case !b.mu.retry.IsZero():
		return b.mu.retry
	case !b.mu.read || b.mu.newest.IsZero():
		return b.mu.since
	}
	return b.next(b.mu.newest)
}

func (b *Backups) next(after time.Time) time.Time { return b.settings.Schedule.Next(after.UTC()) }

// overdueLocked returns when two intervals have passed since the newest backup.
func (b *Backups) overdueLocked() time.Time {
	from := b.mu.newest
	if from.IsZero() {
		from = b.mu.since
	}
	return b.next(b.next(from))
}

// show exports the state. The caller holds b.mu.
func (b *Backups) show() {
	b.overdue.Set(float64(b.overdueLocked().Unix()))
	if !b.mu.newest.IsZero() {
		b.success.Set(float64(b.mu.newest.Unix()))
	}
}

// whileLeading returns a context that ends with backupMax, with Close, or once this node no longer leads the
// catalog. Until the caller calls the function, the node's state follows the leadership, also if the target hangs.
func (b *Backups) whileLeading() (context.Context, context.CancelFunc) {
	ctx, end := context.WithTimeoutCause(b.ctx, backupMax, fmt.Errorf("it took longer than %v", backupMax))
	ctx, cancel := context.WithCancelCause(ctx)
	returned := make(chan struct{})
	go func() { // ends once the caller calls the function
		for {
			select {
			case <-returned:
				return
			case <-time.After(backupLookEvery):
				if !b.noteLeader() {
					cancel(errNotLeading)
				}
			}
		}
	}()
	return ctx, func() { close(returned); cancel(nil); end() }
}

// try makes a backup if one is due, and removes old ones. If the backup fails, it removes old ones too, because the
// target may be full. It reports whether it began a backup.
func (b *Backups) try(ctx context.Context, now time.Time) (added bool, err error) {
	// A node that cannot read whether it has seen an archive begins none, but backs up into one that is there.
	seen, unread := b.hasSeen()
	archive, err := b.open(ctx, !seen && unread == nil)
	if err != nil {
		if unread != nil {
			err = fmt.Errorf("%w; %w", err, unread)
		}
		return false, err
	}
	b.noteSeen()
	if due, err := b.stillDue(ctx, archive, now); err != nil || !due {
		return false, err
	}
	made, failed := archive.add(ctx)
	took := b.now().Sub(now)
	removed := 0
	if !errors.Is(failed, backup.ErrIncomplete) && ctx.Err() == nil { // what is left of a damaged archive stays for its repair
		removed, err = archive.prune(ctx)
		b.pruned(ctx, err)
	}
	if failed != nil {
		return true, failed
	}
	b.logger.Info("backed up", "to", b.settings.To, "name", made.name, "bytes", made.bytes, "new_bytes", made.stored, "removed", removed, "after", took.Round(time.Millisecond).String())
	b.audit(clientadmin.AuditEvent{Time: b.now(), What: "backup", Target: b.settings.To + " " + made.name, Outcome: "ok"})
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.since.IsZero() { // the state is that of a node that does not lead
		return true, nil
	}
	b.mu.read, b.mu.newest, b.mu.failed, b.mu.tries, b.mu.retry = true, made.begun, nil, 0, time.Time{}
	b.show()
	b.bytes.Set(float64(made.bytes))
	b.stored.Set(float64(made.stored))
	b.seconds.Set(took.Seconds())
	return true, nil
}

// stillDue reports whether a backup is due. It reads when the newest backup began, if this node does not know it yet or
// the last try failed. If somebody else has made a backup meanwhile, the failure no longer counts.
func (b *Backups) stillDue(ctx context.Context, archive archiver, now time.Time) (bool, error) {
	b.mu.Lock()
	known := b.mu.read && b.mu.failed == nil
	b.mu.Unlock()
	if known {
		return true, nil
	}
	newest, err := archive.newest(ctx)
	if err != nil {
		return false, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.mu.since.IsZero():
		return false, errNotLeading
	case !b.mu.read && newest.After(now): // a clock was wrong: the schedule must not wait until then
		newest = now
	case b.mu.read && (newest.After(now) || !newest.After(b.mu.newest)): // nobody has made a backup since the failure
		return !now.Before(b.dueLocked()), nil
	}
	b.mu.read, b.mu.newest, b.mu.retry = true, newest, time.Time{}
	b.show()
	if now.Before(b.dueLocked()) {
		b.mu.failed, b.mu.tries = nil, 0
		return false, nil
	}
	return true, nil
}

// pruned notes whether old backups could be removed. Somebody who backs up at the same moment is no problem, but the
// claim of a killed run keeps each later try from it.
func (b *Backups) pruned(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	busy := errors.Is(err, backup.ErrBusy)
	first := busy && !b.mu.busy
	b.mu.busy, b.mu.unpruned = busy, nil
	if err == nil {
		return
	}
	if !first {
		b.mu.unpruned = err
	}
	b.pruneFailures.Inc()
	b.logger.Warn("old backups could not be removed, and it is tried again after the next backup", "to", b.settings.To, "err", err)
}

// fail notes why a try failed, and when to try again.
func (b *Backups) fail(ctx context.Context, err error) {
	if b.ctx.Err() != nil {
		return
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if errors.Is(err, errNotLeading) {
		b.logger.Info("a backup ended before it was whole", "to", b.settings.To, "why", err)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.since.IsZero() { // the leadership ended in this moment
		return
	}
	b.mu.failed = err
	b.mu.tries++
	now := b.now()
	pause := b.pause(now, b.mu.tries)
	b.mu.retry = now.Add(pause)
	b.show()
	b.failures.Inc()
	b.logger.Warn("a backup failed", "to", b.settings.To, "err", err, "again_in", pause.Round(time.Second).String())
	b.audit(clientadmin.AuditEvent{Time: b.now(), What: "backup", Target: b.settings.To, Outcome: "failed: " + err.Error()})
}

// pause returns the pause after a number of failures in a row.
func (b *Backups) pause(now time.Time, tries int) time.Duration {
	first := b.next(now)
	interval := b.next(first).Sub(first)
	pause := min(backupPauseMin, interval/2)
	longest := max(pause, min(interval, backupPauseMax))
	for range tries - 1 {
		if pause = min(2*pause, longest); pause == longest {
			break
		}
	}
	return pause
}

// Problem returns what is wrong with the backups, with a command that helps if there is one, or "". On a node that does not
// lead the catalog, it returns "".
func (b *Backups) Problem(now time.Time) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.since.IsZero() {
		return ""
	}
	var what []string
	late := now.After(b.overdueLocked())
	switch {
	case !late:
	case b.mu.newest.IsZero():
		what = append(what, "there is no backup in "+b.settings.To)
	default:
		what = append(what, fmt.Sprintf("the newest backup in %s began at %s, over two intervals of --backup-schedule ago", b.settings.To, b.mu.newest.UTC().Format(time.RFC3339)))
	}
	if b.mu.failed != nil {
		what = append(what, fmt.Sprintf("the last %d tries to back up to %s failed: %v", b.mu.tries, b.settings.To, b.mu.failed))
	} else if late {
		what = append(what, b.settings.command()+" makes one now")
	}
	if b.mu.unpruned != nil {
		what = append(what, fmt.Sprintf("old backups in %s cannot be removed: %v", b.settings.To, b.mu.unpruned))
	}
	if errors.Is(b.mu.failed, backup.ErrIncomplete) || errors.Is(b.mu.unpruned, backup.ErrIncomplete) {
		what = append(what, "countctl backup verify '"+b.settings.To+"' names the damaged files")
	}
	return strings.Join(what, "; ")
}
